// The loops of a CPU: simd.cpp, compiled once for each instruction set, and the choice among them.
//
// Every pointer may have any alignment, also less than that of an element, and any length will do.
// A destination may be one of the sources; it must not overlap one in part. All instruction sets
// give the bits that `combine` and `scale` of reduce/ops.h give.
#pragma once

#include <cstring>

#include "core/types.h"

namespace ringkern {

// out[i] = incoming[i] (op) mine[i], and the same to `next` where that is not null: one pass feeds
// the output and the slot at next.
using ReduceLoop = void (*)(void* out, void* next, const void* incoming, const void* mine,
                            int64_t n);
// out[i] = in[i] * factor, or in[i] / factor
using ScaleLoop = void (*)(void* out, const void* in, int64_t n, double factor);

// Null where an operation does not exist: bitwise ones on floats, scales of integers.
struct Kernels {
  const char* isa = "";
  ReduceLoop reduce[kDTypes][kCombines] = {};
  ScaleLoop multiply[kDTypes] = {};
  ScaleLoop divide[kDTypes] = {};
};

enum class Isa : uint8_t { baseline, avx2, avx512, avx512bf16 };

// Null where the build or this CPU lacks it. For tests: everybody else wants the next one.
const Kernels* kernels_for(Isa isa);
// The best that this CPU has, chosen once.
const Kernels& kernels();

// What a link does with the elements of one collective.
class Reducer {
 public:
  explicit Reducer(const Reduction& reduction, const Kernels& loops = kernels());

  int64_t element_bytes() const { return element_bytes_; }

  // out = mine, as it enters the ring: multiplied for premul_sum.
  void input(void* out, const void* mine, int64_t n) const;
  bool scales_input() const { return multiply_ != nullptr; }
  // out = incoming (op) mine, and the same to `next` where that is not null. `finishes`: the chunk
  // is complete with this rank's part, and is divided for avg.
  void reduce(void* out, void* next, const void* incoming, const void* mine, int64_t n,
              bool finishes) const;
  // The same where both are as they enter the ring already.
  void combine(void* out, void* next, const void* a, const void* b, int64_t n,
               bool finishes) const {
    if (divide_ == nullptr || !finishes) return reduce_(out, next, a, b, n);
    combine_divided(out, next, a, b, n);
  }

 private:
  void combine_divided(void* out, void* next, const void* a, const void* b, int64_t n) const;

  int64_t element_bytes_;
  ReduceLoop reduce_;
  ScaleLoop multiply_ = nullptr;  // null where there is nothing to multiply
  ScaleLoop divide_ = nullptr;
  double factor_;
};

inline void copy_one(void* out, const void* in, int64_t bytes) {
  if (bytes > 0) memcpy(out, in, size_t(bytes));
}
// The same bytes to two places.
void copy_two(void* out, void* next, const void* in, int64_t bytes);

}  // namespace ringkern
