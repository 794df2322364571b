// The loops of a CPU: simd.cpp, compiled once for each instruction set, and the choice among them.
//
// Every pointer may have any alignment, even less than that of an element, and any length is valid.
// A destination may be one of the sources; it must not overlap one in part. All instruction sets
// give the bits that `combine` and `scale` of reduce/ops.h give.
#pragma once

#include <cstring>

#include "core/tree.h"
#include "core/types.h"

namespace ringkern {

// out[i] = incoming[i] (op) mine[i]. Also writes the result to `next` if that is not null, so that
// one pass fills the output and the slot at next.
using ReduceLoop = void (*)(void* out, void* next, const void* incoming, const void* mine,
                            int64_t n);
// out[i] = in[i] * factor, or in[i] / factor
using ScaleLoop = void (*)(void* out, const void* in, int64_t n, double factor);
// Combines small floats in floats, which are rounded only at the end. `partial` has room for n and
// kPartialRoom more. The loops define the order in it: it must be read with the same n.
using WidenLoop = void (*)(float* partial, const void* in, int64_t n);
// partial[i] += other[i], in the order of both.
using AddPartialsLoop = void (*)(float* partial, const float* other, int64_t n);
// out[i] = partial[i], or partial[i] / divisor, rounded.
using NarrowLoop = void (*)(void* out, const float* partial, int64_t n, double divisor);
inline constexpr int64_t kPartialRoom = 15;
// A row of floats: sum[i] += residual[i], rounded, and out[i] = sum[i] / rms * weight[i] in floats,
// rounded once, where rms = sqrt(mean of sum[i]^2 + eps). The squares are added in one order on all
// machines: square i to partial sum i % kSquareSums, and of these the upper half to the lower one
// until one is left.
using RmsNormLoop = void (*)(void* out, void* sum, const void* residual, const void* weight,
                             int64_t n, float eps);
inline constexpr int kSquareSums = 32;

// The loops of one instruction set; null if an operation does not exist: bitwise ones on floats,
// scales of integers.
struct Kernels {
  const char* isa = "";
  ReduceLoop reduce[kDTypes][kCombines] = {};
  ScaleLoop multiply[kDTypes] = {};
  ScaleLoop divide[kDTypes] = {};
  // For small floats: partial[i] = in[i]; partial[i] = partial[i] (op) in[i], of sums and products;
  // and the way back.
  WidenLoop widen[kDTypes] = {};
  WidenLoop add_wide[kDTypes][kCombines] = {};
  AddPartialsLoop add_partials = nullptr;
  NarrowLoop narrow[kDTypes] = {};
  NarrowLoop narrow_divided[kDTypes] = {};
  // For float32, float16 and bfloat16.
  RmsNormLoop add_rms_norm[kDTypes] = {};
};

enum class Isa : uint8_t { baseline, avx2, avx512, avx512bf16 };

// Returns null if the build or this CPU lacks it. For tests; other code calls kernels().
const Kernels* kernels_for(Isa isa);
// Returns the best loops that this CPU can run, chosen once.
const Kernels& kernels();

// The arithmetic of a link on the elements of one collective.
class Reducer {
 public:
  explicit Reducer(const Reduction& reduction, const Kernels& loops = kernels());

  int64_t element_bytes() const { return element_bytes_; }

  // out = mine, as it enters the ring: multiplied for premul_sum.
  void input(void* out, const void* mine, int64_t n) const;
  bool scales_input() const { return multiply_ != nullptr; }
  // out = incoming (op) mine, with `mine` multiplied for premul_sum. Also writes the result to
  // `next` if that is not null. `finishes`: the chunk is complete with this rank's part, and is
  // divided for avg.
  void reduce(void* out, void* next, const void* incoming, const void* mine, int64_t n,
              bool finishes) const;
  // Like reduce(), for two sources that input() has already multiplied.
  void combine(void* out, void* next, const void* a, const void* b, int64_t n,
               bool finishes) const {
    if (divide_ == nullptr || !finishes) return reduce_(out, next, a, b, n);
    combine_divided(out, next, a, b, n);
  }

  // Returns whether the inputs of this many ranks are added in another order than from rank 0 up.
  bool by_tree(int ranks) const { return tree_ && !ShardTree{ranks}.is_from_first_to_last(); }
  // Returns whether the inputs of this many ranks must be combined by the functions below, and
  // not by combine(). Two inputs that are not divided are rounded only once anyway.
  bool widens(int ranks) const { return narrow_ != nullptr && (ranks > 2 || divide_ != nullptr); }
  // partial = in if `first`, else partial (op) in. input() has already multiplied `in`.
  void add_wide(float* partial, const void* in, int64_t n, bool first) const {
    (first ? widen_ : add_wide_)(partial, in, n);
  }
  void add_partials(float* partial, const float* other, int64_t n) const {
    add_partials_(partial, other, n);
  }
  // out = partial, divided for avg, and rounded. `partial` has all ranks' parts.
  void narrow(void* out, const float* partial, int64_t n) const {
    narrow_(out, partial, n, factor_);
  }

 private:
  void combine_divided(void* out, void* next, const void* a, const void* b, int64_t n) const;

  int64_t element_bytes_;
  ReduceLoop reduce_;
  ScaleLoop multiply_ = nullptr;  // null if nothing is multiplied
  ScaleLoop divide_ = nullptr;
  WidenLoop widen_ = nullptr, add_wide_ = nullptr;  // null if nothing is kept in floats
  NarrowLoop narrow_ = nullptr;
  AddPartialsLoop add_partials_;
  bool tree_;
  double factor_;
};

inline void copy_one(void* out, const void* in, int64_t bytes) {
  if (bytes > 0) memcpy(out, in, size_t(bytes));
}
// Copies the bytes to two places.
void copy_two(void* out, void* next, const void* in, int64_t bytes);

}  // namespace ringkern
