#include "cuda/residency.h"

#include <algorithm>

#include "cuda/device.h"
#include "cuda/launch.h"

namespace ringkern::cuda {
namespace {

template <class F>
void for_each_kernel(F&& f) {
  for (int p = 0; p < kProtocols; ++p)
    for (int d = 0; d < kDTypes; ++d)
      for (const Combine c : {Combine::sum, Combine::prod}) f(kernel_for(Protocol(p), DType(d), c));
  for (int p = 0; p < kProtocols; ++p) f(timed_kernel_for(Protocol(p)));
  for (int d = 0; d < kDTypes; ++d) {
    for (const Combine c : {Combine::sum, Combine::prod}) {
      f(direct_kernel_for(DType(d), c));
      f(in_place_kernel(DType(d), c));
      f(across_kernel(DType(d), c));
    }
    f(alone_kernel(DType(d)));
  }
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

int resident_blocks(int device) {
  int each = 1 << 20;
  for_each_kernel([&](const void* kernel) {
    load(kernel);
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kMaxThreads, 0),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    each = std::min(each, blocks);
  });
  return each * attribute(cudaDevAttrMultiProcessorCount, device);
}

std::vector<cudaLaunchAttribute> attributes_of_waiting(int device, bool together) {
  std::vector<cudaLaunchAttribute> found;
  // Or a fence would wait for the stores of all kernels beside this one, as of a GEMM. What crosses
  // from domain to domain within a device must be ordered by fences of system scope, or by the
  // stream; within a launch all is in one domain.
  if (attribute(cudaDevAttrComputeCapabilityMajor, device) >= 9) {
    auto& domain = found.emplace_back();
    domain.id = cudaLaunchAttributeMemSyncDomain;
    domain.val.memSyncDomain = cudaLaunchMemSyncDomainRemote;
  }
  // Or two rings, on streams of different priority, could have room for a part of their blocks each.
  if (together && attribute(cudaDevAttrCooperativeLaunch, device) != 0) {
    auto& cooperative = found.emplace_back();
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
  }
  return found;
}

}  // namespace ringkern::cuda
