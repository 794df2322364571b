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
    }
    f(alone_kernel(DType(d)));
    if (const void* const norm = norm_kernel_for(DType(d))) f(norm);
  }
}

}  // namespace

int resident_blocks(int device) {
  int processors = 0;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  int each = 1 << 20;
  for_each_kernel([&](const void* kernel) {
    load(kernel);
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kMaxThreads, 0),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    each = std::min(each, blocks);
  });
  return each * processors;
}

}  // namespace ringkern::cuda
