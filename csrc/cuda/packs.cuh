// An all-reduce of packs of 16 bytes, read from all ranks' inputs and written to all their outputs.
// A thread writes the bytes that it has read, and no other thread reads them: inputs may be the
// outputs.
#pragma once

#include "cuda/copy.cuh"

namespace ringkern::cuda {

// Packs whose loads are issued before the first is used.
template <class A>
inline constexpr int packs_at_once = A::kBytes == 1 ? 4 : 8;

// The versions of a pack, combined from rank 0 up, as LLMesh does (cuda/direct.cuh).
template <class A>
class Combination {
 public:
  RK_DEVICE Combination(const A& arithmetic, bool multiplies)
      : arithmetic_(arithmetic), multiplies_(multiplies) {}

  RK_DEVICE void take(Words next, bool first) {
    if (multiplies_ && arithmetic_.multiplies(Verb::send)) next = arithmetic_.multiply(next);
    if (arithmetic_.widens()) {
      if (first) lo_ = hi_ = A::nothing();
      A::add(lo_, next.lo), A::add(hi_, next.hi);
    } else {
      value_ = first ? next : arithmetic_.combine(value_, next);
    }
  }
  RK_DEVICE Words result() const {
    constexpr Verb verb = Verb::recv_reduce_copy;
    if (arithmetic_.widens()) return {arithmetic_.narrow(lo_, verb), arithmetic_.narrow(hi_, verb)};
    return arithmetic_.divides(verb) ? arithmetic_.divide(value_) : value_;
  }

 private:
  const A& arithmetic_;
  const bool multiplies_;
  Words value_{};
  typename A::Partial lo_{}, hi_{};
};

// By one thread: packs `pack`, `pack + stride` and so on of `tensors`, which has what Tensors has.
// Those that are whole come
// as one row of loads, pack by pack and rank by rank, so that few ranks have as many loads on their
// way as many have.
template <class A, class AllTensors>
RK_DEVICE void reduce_packs(const A& arithmetic, const AllTensors& tensors, int64_t pack,
                            int64_t stride) {
  constexpr int kAtOnce = packs_at_once<A>;
  const int64_t whole = tensors.aligned ? tensors.bytes / 16 : 0;
  const int64_t all = (tensors.bytes + 15) / 16;
  Combination<A> combination(arithmetic, tensors.multiplies());
  int64_t loaded = pack;
  int from = 0, rank = 0;  // whose pack is loaded next, and combined
  RK_NO_UNROLL while (pack < whole) {
    Words next[kAtOnce] = {};
    for (int i = 0; i < kAtOnce; ++i) {
      if (loaded >= whole) continue;
      next[i] = ld_stream16(tensors.in_of(from) + 16 * loaded);
      if (++from == tensors.ranks) from = 0, loaded += stride;
    }
    // One combination in the code: the packs are moved past it.
    RK_NO_UNROLL for (int i = 0; i < kAtOnce && pack < whole; ++i) {
      combination.take(next[0], rank == 0);
      for (int j = 1; j < kAtOnce; ++j) next[j - 1] = next[j];
      if (++rank < tensors.ranks) continue;
      const Words value = combination.result();
      RK_NO_UNROLL for (int to = 0; to < tensors.ranks; ++to)
        st_stream16(tensors.out_of(to) + 16 * pack, value);
      rank = 0, pack += stride;
    }
  }
  RK_NO_UNROLL for (; pack < all; pack += stride) {
    const int left = int(min64(tensors.bytes - 16 * pack, 16));
    RK_NO_UNROLL for (rank = 0; rank < tensors.ranks; ++rank)
      combination.take(load_pack<A::kBytes>(tensors.in_of(rank) + 16 * pack, false, left),
                       rank == 0);
    const Words value = combination.result();
    RK_NO_UNROLL for (rank = 0; rank < tensors.ranks; ++rank)
      store_pack<A::kBytes>(tensors.out_of(rank) + 16 * pack, value, false, left);
  }
}

}  // namespace ringkern::cuda
