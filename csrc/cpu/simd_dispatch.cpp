// Chooses the copy of the loops for this CPU, and runs them for a link.
#include <cstring>
#include <initializer_list>

#include "cpu/simd.h"

namespace ringkern {
namespace {

constexpr int64_t kBlockBytes = 4096;

}  // namespace

// clang-format off: a table
namespace baseline { extern const Kernels table; }
#if defined(RK_HAVE_AVX2)
namespace avx2 { extern const Kernels table; }
#endif
#if defined(RK_HAVE_AVX512)
namespace avx512 { extern const Kernels table; }
namespace avx512bf16 { extern const Kernels table; }
#endif
// clang-format on

const Kernels* kernels_for(Isa isa) {
  switch (isa) {
    case Isa::baseline: return &baseline::table;
    case Isa::avx2:
#if defined(RK_HAVE_AVX2)
      if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
          __builtin_cpu_supports("f16c"))
        return &avx2::table;
#endif
      return nullptr;
    case Isa::avx512:
#if defined(RK_HAVE_AVX512)
      if (kernels_for(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vl"))
        return &avx512::table;
#endif
      return nullptr;
    case Isa::avx512bf16:
#if defined(RK_HAVE_AVX512)
      if (kernels_for(Isa::avx512) && __builtin_cpu_supports("avx512bf16"))
        return &avx512bf16::table;
#endif
      return nullptr;
  }
  return nullptr;
}

const Kernels& kernels() {
  static const Kernels* const best = [] {
    for (const Isa isa : {Isa::avx512bf16, Isa::avx512, Isa::avx2})
      if (const Kernels* const found = kernels_for(isa)) return found;
    return kernels_for(Isa::baseline);
  }();
  return *best;
}

Reducer::Reducer(const Reduction& r, const Kernels& loops)
    : element_bytes_(size_of(r.dtype)), reduce_(loops.reduce[int(r.dtype)][int(r.combine)]),
      add_partials_(loops.add_partials), tree_(r.tree), factor_(r.factor) {
  if (r.scale == Reduction::Scale::multiply_input) multiply_ = loops.multiply[int(r.dtype)];
  if (r.scale == Reduction::Scale::divide_result) divide_ = loops.divide[int(r.dtype)];
  if (!r.wide) return;
  widen_ = loops.widen[int(r.dtype)];
  add_wide_ = loops.add_wide[int(r.dtype)][int(r.combine)];
  narrow_ = (divide_ ? loops.narrow_divided : loops.narrow)[int(r.dtype)];
}

void Reducer::input(void* out, const void* mine, int64_t n) const {
  if (multiply_) {
    multiply_(out, mine, n, factor_);
  } else if (n > 0) {
    memmove(out, mine, size_t(n * element_bytes_));
  }
}

// A scale is a pass of its own, over blocks that stay in the innermost cache.

void Reducer::reduce(void* out, void* next, const void* incoming, const void* mine, int64_t n,
                     bool finishes) const {
  if (!multiply_) return combine(out, next, incoming, mine, n, finishes);
  alignas(64) char block[kBlockBytes];
  const int64_t block_elements = kBlockBytes / element_bytes_;
  for (int64_t i = 0; i < n; i += block_elements) {
    const int64_t some = min64(block_elements, n - i), at = i * element_bytes_;
    multiply_(block, static_cast<const char*>(mine) + at, some, factor_);
    combine(static_cast<char*>(out) + at, next ? static_cast<char*>(next) + at : nullptr,
            static_cast<const char*>(incoming) + at, block, some, finishes);
  }
}

void Reducer::combine_divided(void* out, void* next, const void* a, const void* b,
                              int64_t n) const {
  alignas(64) char block[kBlockBytes];
  const int64_t block_elements = kBlockBytes / element_bytes_;
  for (int64_t i = 0; i < n; i += block_elements) {
    const int64_t some = min64(block_elements, n - i), at = i * element_bytes_;
    char* const to = static_cast<char*>(out) + at;
    reduce_(block, nullptr, static_cast<const char*>(a) + at, static_cast<const char*>(b) + at,
            some);
    divide_(to, block, some, factor_);
    if (next) memcpy(static_cast<char*>(next) + at, to, size_t(some * element_bytes_));
  }
}

void copy_two(void* out, void* next, const void* in, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kBlockBytes) {
    const size_t some = size_t(min64(kBlockBytes, bytes - at));
    const char* const from = static_cast<const char*>(in) + at;
    memmove(static_cast<char*>(next) + at, from, some);
    memmove(static_cast<char*>(out) + at, from, some);
  }
}

}  // namespace ringkern
