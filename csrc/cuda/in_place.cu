// The all-reduce over the tensors themselves if all ranks are in one launch: `two_shot` over Simple
// on a GPU. A thread reads one pack from the input of each rank, and writes the result to each
// output. It waits for no other thread and stages nothing. It writes only bytes that it has read,
// and no other thread reads them, so inputs may be the outputs.
#include "cuda/packs.cuh"

namespace ringkern::cuda {
namespace {

template <class T, bool sum>
RK_KERNEL(kMostInPlaceThreads, kBlocksPerSM)
in_place(RK_ARGUMENT InPlaceArgs args) {
  using A = Arithmetic<T, sum>;
  const A arithmetic(args.reduction);
  const Tensors& tensors = args.tensors;
  const int64_t at = 16 * (int64_t(block_index()) * thread_count() + thread_index());
  if (at >= tensors.bytes) return;
  const int left = int(min64(tensors.bytes - at, 16));
  const bool whole = tensors.aligned && left == 16;
  constexpr int kAtOnce = packs_at_once<A>;
  Combination<A> combination(arithmetic);
  RK_NO_UNROLL for (int first = 0; first < tensors.ranks; first += kAtOnce) {
    Words next[kAtOnce] = {};
    if (whole) {
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i < tensors.ranks) next[i] = ld_stream16(tensors.in[first + i] + at);
    } else {
      // Keeps one load in the code, and below one combination: the words shift.
      RK_NO_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        for (int j = 1; j < kAtOnce; ++j) next[j - 1] = next[j];
        if (first + i < tensors.ranks)
          next[kAtOnce - 1] = load_pack<A::kBytes>(tensors.in[first + i] + at, false, left);
      }
    }
    RK_NO_UNROLL for (int i = 0; i < kAtOnce && first + i < tensors.ranks; ++i) {
      combination.take(next[0], first + i == 0);
      for (int j = 1; j < kAtOnce; ++j) next[j - 1] = next[j];
    }
  }
  const Words value = combination.result();
  RK_NO_UNROLL for (int rank = 0; rank < tensors.ranks; ++rank) {
    std::byte* out = tensors.out[rank] + at;
    if (whole) st_stream16(out, value);
    else store_pack<A::kBytes>(out, value, false, left);
  }
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
