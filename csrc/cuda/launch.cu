// Selects the kernel of each collective; holds the kernel of a ring of one rank.
#include "cuda/kernels.cuh"

namespace ringkern::cuda {
namespace {

template <class T>
RK_KERNEL(kMaxThreads, kBlocksPerSM)
alone(RK_ARGUMENT AloneArgs args) {
  using A = Arithmetic<T, true>;
  const A arithmetic(args.reduction);
  const int64_t threads = int64_t(block_count()) * thread_count();
  const int64_t first = int64_t(block_index()) * thread_count() + thread_index();
  RK_NO_UNROLL for (int64_t i = first; i < args.count; i += threads) {
    uint64_t word = ld_weak<A::kBytes>(args.in + i * A::kBytes);
    if (arithmetic.multiplies(Verb::send)) word = arithmetic.multiply(word);
    st_weak<A::kBytes>(args.out + i * A::kBytes, word);
  }
}

}  // namespace

const void* alone_kernel(DType dtype) {
  return with_dtype(dtype, [](auto tag) {
    return reinterpret_cast<const void*>(&alone<typename decltype(tag)::type>);
  });
}

const void* kernel_for(Protocol protocol, DType dtype, Combine combine) {
  switch (protocol) {
#define RK_CASE(e) \
  case Protocol::e: return e##_kernel(dtype, combine);
    RK_PROTOCOLS(RK_CASE)
#undef RK_CASE
  }
  return nullptr;
}

}  // namespace ringkern::cuda
