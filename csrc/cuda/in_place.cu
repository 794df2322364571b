// The all-reduce over the tensors themselves if all ranks are in one launch: `two_shot` over Simple
// on a GPU. A thread reads one pack, or by the tree one word, from the input of each rank, and
// writes the result to each output. It waits for no other thread and stages nothing. It writes only
// bytes that it has read, and no other thread reads them, so inputs may be the outputs.
#include "cuda/packs.cuh"

namespace ringkern::cuda {
namespace {

template <class T, bool sum, bool tree>
RK_KERNEL(kMostInPlaceThreads / (tree ? 2 : 1), kBlocksPerSM)
in_place(RK_ARGUMENT InPlaceArgs args) {
  using A = Arithmetic<T, sum>;
  using Sum = Combination<A, tree>;
  using Unit = typename Sum::Unit;
  constexpr int kUnit = int(sizeof(Unit));
  const A arithmetic(args.reduction);
  const Tensors& tensors = args.tensors;
  const int64_t at = kUnit * (int64_t(block_index()) * thread_count() + thread_index());
  if (at >= tensors.bytes) return;
  const int left = int(min64(tensors.bytes - at, kUnit));
  const bool whole = tensors.aligned && left == kUnit;
  constexpr int kAtOnce = packs_at_once<A>;
  Sum combination(arithmetic, tensors.ranks);
  RK_NO_UNROLL for (int first = 0; first < tensors.ranks; first += kAtOnce) {
    Unit next[kAtOnce] = {};
    if (whole) {
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i < tensors.ranks) next[i] = Sum::load(tensors.in[first + i] + at);
    } else {
      // Keeps one load in the code, and below one combination: the units shift.
      RK_NO_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        for (int j = 1; j < kAtOnce; ++j) next[j - 1] = next[j];
        if (first + i < tensors.ranks)
          next[kAtOnce - 1] = Sum::load(tensors.in[first + i] + at, left);
      }
    }
    RK_NO_UNROLL for (int i = 0; i < kAtOnce && first + i < tensors.ranks; ++i) {
      combination.take(next[0], first + i);
      for (int j = 1; j < kAtOnce; ++j) next[j - 1] = next[j];
    }
  }
  const Unit value = combination.result();
  RK_NO_UNROLL for (int rank = 0; rank < tensors.ranks; ++rank) {
    std::byte* out = tensors.out[rank] + at;
    if (whole) Sum::store(out, value);
    else Sum::store(out, value, left);
  }
}

}  // namespace

const void* in_place_kernel(DType dtype, Combine combine, bool tree) {
  return with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T>)
      if (tree) return reinterpret_cast<const void*>(&in_place<T, true, true>);
    return combine == Combine::sum ? reinterpret_cast<const void*>(&in_place<T, true, false>)
                                   : reinterpret_cast<const void*>(&in_place<T, false, false>);
  });
}

}  // namespace ringkern::cuda
