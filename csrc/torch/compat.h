// Differences between the C++ APIs of the versions of torch that ringkern is compiled against. Each
// names the version that needs it, so that it can go with that version.
#pragma once

#include <torch/headeronly/version.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <utility>

#define RK_TORCH_BEFORE(major, minor) \
  (TORCH_VERSION_MAJOR < (major) ||   \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR < (minor)))

namespace ringkern::torch_ext {

// torch 2.11 has no OpType of its own for this call; NCCL's backend names it COALESCED there.
inline constexpr c10d::OpType kReduceScatterTensorCoalesced =
#if RK_TORCH_BEFORE(2, 12)
    c10d::OpType::COALESCED;
#else
    c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#endif

// Makes a profiler's record of a collective. torch 2.11 keeps no `async_op`, the last argument.
template <class... Arguments>
std::shared_ptr<torch::ParamCommsDebugInfo> param_comms_info(bool async_op,
                                                             Arguments&&... arguments) {
#if RK_TORCH_BEFORE(2, 12)
  static_cast<void>(async_op);
  return std::make_shared<torch::ParamCommsDebugInfo>(std::forward<Arguments>(arguments)...);
#else
  return std::make_shared<torch::ParamCommsDebugInfo>(std::forward<Arguments>(arguments)...,
                                                      async_op);
#endif
}

}  // namespace ringkern::torch_ext
