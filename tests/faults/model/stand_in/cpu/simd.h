// Replaces csrc/cpu/simd.h: int64 only, and the first element of a block stands for all of them, so
// that a slot is one place to race for.
#pragma once

#include <cstring>

#include "core/types.h"

namespace ringkern {

inline constexpr int64_t kPartialRoom = 0;

class Reducer {
 public:
  explicit Reducer(const Reduction&) {}

  int64_t element_bytes() const { return 8; }
  bool scales_input() const { return false; }
  void input(void* out, const void* mine, int64_t n) const {
    if (n > 0) model::copy(out, mine, 8);
  }
  void reduce(void* out, void* next, const void* incoming, const void* mine, int64_t n,
              bool) const {
    if (n == 0) return;
    int64_t a, b;
    model::copy(&a, incoming, 8);
    model::copy(&b, mine, 8);
    a += b;
    model::copy(out, &a, 8);
    if (next != nullptr) model::copy(next, &a, 8);
  }
  void combine(void* out, void* next, const void* a, const void* b, int64_t n, bool last) const {
    reduce(out, next, a, b, n, last);
  }
  // The moves are the same whether sums are kept in floats or not.
  bool widens(int) const { return false; }
  void add_wide(float*, const void*, int64_t, bool) const {}
  void narrow(void*, const float*, int64_t) const {}
};

inline void copy_one(void* out, const void* in, int64_t bytes) {
  if (bytes > 0) model::copy(out, in, 8);
}
inline void copy_two(void* out, void* next, const void* in, int64_t bytes) {
  copy_one(out, in, bytes);
  copy_one(next, in, bytes);
}

}  // namespace ringkern
