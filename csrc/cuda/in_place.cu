// The all-reduce of ranks that are all in one launch, over the tensors themselves: `two_shot` over
// Simple on a GPU. A thread reads 16 bytes of each rank's input, combines them from rank 0 up, as
// LLMesh does (cuda/direct.cuh), and writes them to each rank's output. It waits for no other
// thread and stages nothing. The bytes that it writes are those that it has read, and no other
// thread reads them: inputs may be the outputs.
#include "cuda/copy.cuh"

namespace ringkern::cuda {
namespace {

// Ranks whose loads are issued before the first is used.
template <class A>
inline constexpr int at_once = A::kBytes == 1 ? 4 : 8;

template <class A>
class Combination {
 public:
  RK_DEVICE explicit Combination(const A& arithmetic) : arithmetic_(arithmetic) {}

  RK_DEVICE void take(Words next, bool first) {
    if (arithmetic_.multiplies(Verb::send)) next = arithmetic_.multiply(next);
    if (arithmetic_.widens()) A::add(lo_, next.lo), A::add(hi_, next.hi);
    else value_ = first ? next : arithmetic_.combine(value_, next);
  }
  RK_DEVICE Words result() const {
    constexpr Verb verb = Verb::recv_reduce_copy;
    if (arithmetic_.widens()) return {arithmetic_.narrow(lo_, verb), arithmetic_.narrow(hi_, verb)};
    return arithmetic_.divides(verb) ? arithmetic_.divide(value_) : value_;
  }

 private:
  const A& arithmetic_;
  Words value_{};
  typename A::Partial lo_ = A::nothing(), hi_ = A::nothing();
};

template <class T, bool sum>
RK_KERNEL(kMostInPlaceThreads, kBlocksPerSM)
in_place(RK_ARGUMENT InPlaceArgs args) {
  using A = Arithmetic<T, sum>;
  const A arithmetic(args.reduction);
  const int64_t at = 16 * (int64_t(block_index()) * thread_count() + thread_index());
  if (at >= args.bytes) return;
  const int left = int(min64(args.bytes - at, 16));
  const bool whole = args.aligned && left == 16;
  constexpr int kAtOnce = at_once<A>;
  Combination<A> combination(arithmetic);
  RK_NO_UNROLL for (int first = 0; first < args.ranks; first += kAtOnce) {
    Words next[kAtOnce] = {};
    if (whole) {
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i < args.ranks) next[i] = ld_stream16(args.in[first + i] + at);
    } else {
      // One load in the code, and below one combination: the words are moved past them.
      RK_NO_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        for (int j = 1; j < kAtOnce; ++j) next[j - 1] = next[j];
        if (first + i < args.ranks)
          next[kAtOnce - 1] = load_pack<A::kBytes>(args.in[first + i] + at, false, left);
      }
    }
    RK_NO_UNROLL for (int i = 0; i < kAtOnce && first + i < args.ranks; ++i) {
      combination.take(next[0], first + i == 0);
      for (int j = 1; j < kAtOnce; ++j) next[j - 1] = next[j];
    }
  }
  const Words value = combination.result();
  RK_NO_UNROLL for (int rank = 0; rank < args.ranks; ++rank) {
    std::byte* out = args.out[rank] + at;
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
