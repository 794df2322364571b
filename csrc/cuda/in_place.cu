// The all-reduce of ranks that are all in one launch, over the tensors themselves: `two_shot` over
// Simple on a GPU. A thread has one pack of all tensors, waits for no other thread, and stages
// nothing.
#include "cuda/packs.cuh"

namespace ringkern::cuda {
namespace {

template <class T, bool sum>
RK_KERNEL(kMostInPlaceThreads, kBlocksPerSM)
in_place(RK_ARGUMENT InPlaceArgs args) {
  using A = Arithmetic<T, sum>;
  const A arithmetic(args.reduction);
  const int64_t thread = int64_t(block_index()) * thread_count() + thread_index();
  reduce_packs(arithmetic, args.tensors, thread, int64_t(block_count()) * thread_count());
}

}  // namespace

const void* in_place_kernel(DType dtype, Combine combine) {
  return with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return combine == Combine::sum ? reinterpret_cast<const void*>(&in_place<T, true>)
                                   : reinterpret_cast<const void*>(&in_place<T, false>);
  });
}

}  // namespace ringkern::cuda
