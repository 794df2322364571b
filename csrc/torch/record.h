// Records of a call for profilers: torch's record of a collective, as for NCCL, and an NVTX range.
// The event with the backend's name ("ringkern:all_reduce") is the Work's.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#if RK_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "torch/compat.h"
#include "torch/work.h"

namespace ringkern::torch_ext {

// Returns the name that NCCL's records give this kind of call.
inline const char* record_name(c10d::OpType type) {
  using enum c10d::OpType;
  switch (type) {
    case BROADCAST: return "broadcast";
    case ALLREDUCE: return "allreduce";
    case ALLREDUCE_COALESCED: return "allreduce_coalesced";
    case _ALLREDUCE_SPARSE: return "allreduce_sparse";
    case REDUCE: return "reduce";
    case ALLGATHER: return "all_gather";
    case _ALLGATHER_BASE: return "_allgather_base";
    case ALLGATHER_COALESCED: return "allgather_into_tensor_coalesced";
    case REDUCE_SCATTER: return "reduce_scatter";
    case _REDUCE_SCATTER_BASE: return "_reduce_scatter_base";
    case kReduceScatterTensorCoalesced: return "reduce_scatter_tensor_coalesced";
    case GATHER: return "gather";
    case SCATTER: return "scatter";
    case ALLTOALL: return "all_to_all";
    case ALLTOALL_BASE: return "all_to_allv";
    case SEND: return "send";
    case RECV: return "recv";
    case RECVANYSOURCE: return "recvAnySource";
    case BARRIER: return "barrier";
    default: return "unknown";
  }
}

// The description of a group in a record.
struct GroupRecord {
  std::string name, description;
  int rank = 0, size = 1;
  int first = 0, stride = 1;  // of its ranks in the default group; stride -1: not constant
};

inline GroupRecord group_record(int rank, int size, const std::vector<int64_t>& global_ranks) {
  GroupRecord group;
  group.rank = rank, group.size = size;
  if (global_ranks.empty()) return group;  // the default group
  group.first = int(global_ranks.front());
  for (size_t i = 1; i < global_ranks.size(); ++i) {
    const int step = int(global_ranks[i] - global_ranks[i - 1]);
    if (i == 1) group.stride = step;
    if (step != group.stride) group.stride = -1;
  }
  return group;
}

// The record of a call. It covers the time from here to the end of its scope.
class Record {
 public:
  Record(const GroupRecord& group, const Call& call, uint64_t sequence, bool async_op) {
#if RK_WITH_CUDA
    nvtxRangePushA(call.title);
#endif
    if (at::hasCallbacks()) begin(group, call, sequence, async_op);
  }
  ~Record() {
#if RK_WITH_CUDA
    nvtxRangePop();
#endif
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

 private:
  // Returns the rank that NCCL's records have in this field: the other end of a message, the root
  // of a collective with a root, or this rank.
  static int rank_of(const Call& call, int rank) {
    using enum c10d::OpType;
    if (call.type == BROADCAST || call.type == REDUCE) return call.tasks.front().task.root;
    if (call.type == SEND || call.type == RECV || call.type == RECVANYSOURCE)
      return call.transfers.front().peer;
    // A rank that is not the root of a gather or a scatter has one transfer; the root's go the
    // other way.
    if (call.type == GATHER || call.type == SCATTER)
      for (const Transfer& t : call.transfers)
        if (t.sends == (call.type == GATHER)) return t.peer;
    return rank;
  }

  static int64_t elements(const std::vector<at::Tensor>& tensors) {
    return std::accumulate(
        tensors.begin(), tensors.end(), int64_t(0),
        [](int64_t n, const at::Tensor& t) { return n + (t.defined() ? t.numel() : 0); });
  }

  void begin(const GroupRecord& group, const Call& call, uint64_t sequence, bool async_op) {
    const std::vector<at::Tensor>& inputs = call.inputs;
    const std::string name = record_name(call.type);
    const int rank = rank_of(call, group.rank);
    const auto& tensors = inputs.empty() ? call.outputs : inputs;
    const at::ScalarType dtype =
        tensors.empty() || !tensors[0].defined() ? at::kByte : tensors[0].scalar_type();
    const auto names = std::make_tuple(group.name, group.description);
    const std::vector<int64_t> no_splits;
    info_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO,
                  param_comms_info(async_op, names, rank, std::string(name), elements(inputs),
                                   elements(call.outputs), dtype, no_splits, no_splits, group.first,
                                   group.stride, group.size));
    function_.emplace(at::RecordScope::FUNCTION);
    if (!function_->isActive()) return;
    const auto number = std::make_tuple(int64_t(sequence), c10d::isP2POp(call.type));
    const std::vector<c10::IValue> values = {
        c10::IValue(inputs), number,      names,        rank,       name,    no_splits,
        no_splits,           group.first, group.stride, group.size, async_op};
    const c10::ArrayRef<const c10::IValue> view(values.data(), values.size());
    if (function_->needsInputs()) function_->before(at::kParamCommsCallName, view);
    else function_->before(at::kParamCommsCallName);
  }

  std::optional<c10::DebugInfoGuard> info_;
  std::optional<at::RecordFunction> function_;
};

}  // namespace ringkern::torch_ext
