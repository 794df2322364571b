// Combines the versions of a pack of 16 bytes, one from each rank.
#pragma once

#include "cuda/copy.cuh"

namespace ringkern::cuda {

// Packs whose loads are issued before the first is used.
template <class A>
inline constexpr int packs_at_once = A::kBytes == 1 ? 4 : 8;

// A combination of the versions of a pack from rank 0 up, as in LLMesh (cuda/direct.cuh).
template <class A>
class Combination {
 public:
  // `multiplies`: false if the inputs are already multiplied.
  RK_DEVICE explicit Combination(const A& arithmetic, bool multiplies = true)
      : arithmetic_(arithmetic), multiplies_(multiplies) {}

  RK_DEVICE void take(Words next, bool first) {
    if (multiplies_ && arithmetic_.multiplies(Verb::send)) next = arithmetic_.multiply(next);
    if (arithmetic_.widens()) A::add(lo_, next.lo), A::add(hi_, next.hi);
    else value_ = first ? next : arithmetic_.combine(value_, next);
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

 private:
  const A& arithmetic_;
  const bool multiplies_;
  Words value_{};
  typename A::Partial lo_ = A::nothing(), hi_ = A::nothing();
};

}  // namespace ringkern::cuda
