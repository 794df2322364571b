// Combines the versions of a pack of 16 bytes, one from each rank; or of a word of 8 bytes, in the
// order of core/tree.h.
#pragma once

#include <bit>

#include "core/tree.h"
#include "cuda/copy.cuh"

namespace ringkern::cuda {

// Packs or words whose loads are issued before the first is used.
template <class A>
inline constexpr int packs_at_once = A::kBytes == 1 ? 4 : 8;

// A combination of the versions from rank 0 up, as in LLMesh (cuda/direct.cuh).
template <class A, bool tree = false>
class Combination {
 public:
  using Unit = Words;

  // `multiplies`: false if the inputs are already multiplied.
  RK_DEVICE explicit Combination(const A& arithmetic, int, bool multiplies = true)
      : arithmetic_(arithmetic), multiplies_(multiplies) {}

  RK_DEVICE void take(Words next, int rank) {
    if (multiplies_ && arithmetic_.multiplies(Verb::send)) next = arithmetic_.multiply(next);
    if (arithmetic_.widens()) A::add(lo_, next.lo), A::add(hi_, next.hi);
    else value_ = rank == 0 ? next : arithmetic_.combine(value_, next);
  }
  // Returns the result, after which another combination may begin.
  RK_DEVICE Words end() {
    const Words value = result();
    lo_ = hi_ = A::nothing();
    return value;
  }
  RK_DEVICE Words result() const {
    constexpr Verb verb = Verb::recv_reduce_copy;
    if (arithmetic_.widens()) return {arithmetic_.narrow(lo_, verb), arithmetic_.narrow(hi_, verb)};
    return arithmetic_.divides(verb) ? arithmetic_.divide(value_) : value_;
  }

  // Load and store a whole unit, or `left` bytes of it, element by element.
  RK_DEVICE static Words load(const std::byte* p) { return ld_stream16(p); }
  RK_DEVICE static Words load(const std::byte* p, int left) {
    return load_pack<A::kBytes>(p, false, left);
  }
  RK_DEVICE static void store(std::byte* p, Words value) { st_stream16(p, value); }
  RK_DEVICE static void store(std::byte* p, Words value, int left) {
    store_pack<A::kBytes>(p, value, false, left);
  }

 private:
  const A& arithmetic_;
  const bool multiplies_;
  Words value_{};
  typename A::Partial lo_ = A::nothing(), hi_ = A::nothing();
};

// The same in the order of core/tree.h. Words, because the open nodes of a pack would take too many
// registers.
template <class A>
class Combination<A, true> {
 public:
  using Unit = uint64_t;

  RK_DEVICE explicit Combination(const A& arithmetic, int ranks, bool multiplies = true)
      : arithmetic_(arithmetic), tree_{ranks}, multiplies_(multiplies) {}

  RK_DEVICE void take(uint64_t next, int rank) {
    if (multiplies_ && arithmetic_.multiplies(Verb::send)) next = arithmetic_.multiply(next);
    Node node = A::node_of(next);
    // All indices are constants, so that the nodes stay in registers.
    RK_NO_UNROLL for (unsigned sums = tree_.completed_by(rank); sums != 0; sums &= sums - 1) {
      node = arithmetic_.sum_of(open_[0], node);
      for (int i = 1; i < kOpen; ++i) open_[i - 1] = open_[i];
    }
    for (int i = kOpen - 1; i > 0; --i) open_[i] = open_[i - 1];
    open_[0] = node;
  }
  RK_DEVICE uint64_t end() const { return result(); }
  RK_DEVICE uint64_t result() const {
    constexpr Verb verb = Verb::recv_reduce_copy;
    if constexpr (A::kWidens) return arithmetic_.narrow(open_[0], verb);
    else return arithmetic_.divides(verb) ? arithmetic_.divide(open_[0]) : open_[0];
  }

  RK_DEVICE static uint64_t load(const std::byte* p) { return ld_weak<8>(p); }
  RK_DEVICE static uint64_t load(const std::byte* p, int left) {
    return load_elements<A::kBytes>(p, left);
  }
  RK_DEVICE static void store(std::byte* p, uint64_t value) { st_weak<8>(p, value); }
  RK_DEVICE static void store(std::byte* p, uint64_t value, int left) {
    store_elements<A::kBytes>(p, value, left);
  }

 private:
  using Node = typename A::Node;
  // Nodes that wait for one on their right, the last first: at most one of each level.
  static constexpr int kOpen = std::bit_width(unsigned(MeshGeometry::kMostRanks - 1));

  const A& arithmetic_;
  const ShardTree tree_;
  const bool multiplies_;
  Node open_[kOpen]{};
};

}  // namespace ringkern::cuda
