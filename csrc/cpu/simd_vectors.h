// A vector of floats, and its conversions from and to small floats. Included by simd.cpp alone, and
// compiled with it once for each instruction set.
//
// A compiler vectorises these conversions poorly: with elements of 8, 16 and 32 bits in one loop,
// the code spends its time on converting masks. Here a vector has as many floats as the instruction
// set takes at once, and only loads and stores are special to it.
#pragma once

#include "reduce/ops.h"

#if defined(__AVX2__) && defined(__F16C__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's AVX-512 intrinsics start from a value that is "undefined" on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#define RK_X86_VECTORS 1
#endif

namespace ringkern::RK_ISA {
namespace {

#if defined(RK_X86_VECTORS) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define RK_X86_VECTORS_512 1
constexpr int kLanes = 16;
#elif defined(RK_X86_VECTORS)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

template <class E, int lanes>
struct VectorOf {
  typedef E type __attribute__((vector_size(lanes * sizeof(E))));
};
using Floats = VectorOf<float, kLanes>::type;
using Ints = VectorOf<int32_t, kLanes>::type;

// Load and store kLanes integers of 8 or 16 bits at any address, as the low bits of vector
// elements.
#if defined(RK_X86_VECTORS_512)
template <class Bits>
RK_INLINE Ints load_bits(const void* p) {
  if constexpr (sizeof(Bits) == 2)
    return (Ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  else return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
template <class Bits>
RK_INLINE void store_bits(void* p, Ints x) {
  if constexpr (sizeof(Bits) == 2)
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16((__m512i)x));
  else _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)x));
}
RK_INLINE Floats load_halves(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
RK_INLINE void store_halves(void* p, Floats x) {
  const __m256i halves = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(static_cast<__m256i*>(p), halves);
}

#elif defined(RK_X86_VECTORS)
template <class Bits>
RK_INLINE Ints load_bits(const void* p) {
  if constexpr (sizeof(Bits) == 2)
    return (Ints)_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  else return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
template <class Bits>
RK_INLINE void store_bits(void* p, Ints x) {
  const __m256i all = (__m256i)x;
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  if constexpr (sizeof(Bits) == 2) _mm_storeu_si128(static_cast<__m128i*>(p), words);
  else _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
RK_INLINE Floats load_halves(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
RK_INLINE void store_halves(void* p, Floats x) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#else
template <class Bits>
RK_INLINE Ints load_bits(const void* p) {
  typename VectorOf<Bits, kLanes>::type bits;
  memcpy(&bits, p, sizeof bits);
  return __builtin_convertvector(bits, Ints);
}
template <class Bits>
RK_INLINE void store_bits(void* p, Ints x) {
  const auto bits = __builtin_convertvector(x, typename VectorOf<Bits, kLanes>::type);
  memcpy(p, &bits, sizeof bits);
}
#endif

template <class T>
RK_INLINE Floats load_floats(const void* p) {
#if defined(RK_X86_VECTORS)
  if constexpr (std::is_same_v<T, f16_t>) return load_halves(p);
#endif
  return floats_of<T, Floats>(load_bits<typename T::Bits>(p));
}

template <class T>
RK_INLINE void store_floats(void* p, Floats x) {
#if defined(RK_X86_VECTORS)
  if constexpr (std::is_same_v<T, f16_t>) {
    const Floats nan = Floats{} + bits_as<float>(0x7fffffff);  // the one NaN
    return store_halves(p, x == x ? x : nan);
  }
#endif
  store_bits<typename T::Bits>(p, bits_of<T, Ints>(x));
}

// Loads a vector of integers that holds two bfloat16 a lane. A bfloat16 is the upper half of a
// float, so a mask or a shift converts it. Widening lane by lane would take many more instructions.
RK_INLINE Ints load_pairs(const void* p) {
  Ints pairs;
  memcpy(&pairs, p, sizeof pairs);
  return pairs;
}
RK_INLINE Floats upper_floats(Ints pairs) { return bits_as<Floats>(pairs & int32_t(0xffff0000)); }
RK_INLINE Floats lower_floats(Ints pairs) { return bits_as<Floats>(pairs << 16); }

// Rounds floats to bfloat16 in their upper half, ties to even; the lower half has no meaning.
RK_INLINE Ints rounded_up_half(Floats x) {
  const Ints bits = bits_as<Ints>(x), nan = Ints{} + 0x7fffffff;  // the one NaN
  const Ints rounded = bits + (0x7fff + (bits >> 16 & 1));
  return x == x ? rounded : nan;
}
#if defined(RK_X86_VECTORS_512)
// Returns the indices 0 16 1 17 ..., which interleave the two halves of a vector.
RK_INLINE __m512i interleaved() {
  const __m512i i = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_or_si512(i, _mm512_slli_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(16)), 16));
}
#endif
RK_INLINE Ints pairs_of(Floats upper, Floats lower) {
#if defined(RK_X86_VECTORS_512) && defined(__AVX512BF16__)
  // The instruction rounds in the same way, except for denormals, which it treats as zeros, and
  // NaNs, which it does not replace by the one NaN. It puts the elements of `lower` first.
  constexpr int nan_or_denormal = 0x01 | 0x20 | 0x80;
  if (__builtin_expect(_mm512_kortestz(_mm512_fpclass_ps_mask(upper, nan_or_denormal),
                                       _mm512_fpclass_ps_mask(lower, nan_or_denormal)),
                       1)) {
    const __m512i apart = (__m512i)_mm512_cvtne2ps_pbh(upper, lower);
    return (Ints)_mm512_permutexvar_epi16(interleaved(), apart);
  }
#endif
  const Ints low = rounded_up_half(lower) >> 16 & 0xffff;
  return (rounded_up_half(upper) & int32_t(0xffff0000)) | low;
}

// out[i] = f(a[i], b[i]). Also writes the result to `next` if that is not null.
template <class T, class F>
RK_INLINE void by_vectors(void* out, void* next, const void* a, const void* b, int64_t n, F f) {
  constexpr int64_t width = kLanes * sizeof(T);
  char* const to = static_cast<char*>(out);
  char* const to_next = static_cast<char*>(next);
  const char* const x = static_cast<const char*>(a);
  const char* const y = static_cast<const char*>(b);
  const int64_t bytes = n * int64_t(sizeof(T));
  int64_t at = 0;
  if constexpr (std::is_same_v<T, bf16_t>) {
    for (; at + 2 * width <= bytes; at += 2 * width) {
      const Ints v = load_pairs(x + at), w = load_pairs(y + at);
      const Ints r =
          pairs_of(f(upper_floats(v), upper_floats(w)), f(lower_floats(v), lower_floats(w)));
      memcpy(to + at, &r, sizeof r);
      if (next) memcpy(to_next + at, &r, sizeof r);
    }
  }
  for (; at + width <= bytes; at += width) {
    const Floats r = f(load_floats<T>(x + at), load_floats<T>(y + at));
    store_floats<T>(to + at, r);
    if (next) memcpy(to_next + at, to + at, width);
  }
  if (at == bytes) return;
  // The rest is copied to buffers in which a whole vector can be read and written.
  const size_t left = size_t(bytes - at);
  char last_x[width] = {}, last_y[width] = {};
  memcpy(last_x, x + at, left);
  memcpy(last_y, y + at, left);
  store_floats<T>(last_x, f(load_floats<T>(last_x), load_floats<T>(last_y)));
  memcpy(to + at, last_x, left);
  if (next) memcpy(to_next + at, last_x, left);
}

// Convert n small floats to and from floats in memory, by vectors: f(i, x) stores the vector x at
// place i, and f(i) returns the vector there. Two vectors of bfloat16 at once have the order of
// load_pairs: the elements with odd indices, then those with even ones.
template <class T, class F>
RK_INLINE void widen_by_vectors(const void* in, int64_t n, F f) {
  constexpr int64_t width = kLanes;
  const char* const x = static_cast<const char*>(in);
  constexpr int64_t bytes = sizeof(T);
  int64_t i = 0;
  if constexpr (std::is_same_v<T, bf16_t>) {
    for (; i + 2 * width <= n; i += 2 * width) {
      const Ints pairs = load_pairs(x + i * bytes);
      f(i, upper_floats(pairs));
      f(i + width, lower_floats(pairs));
    }
  }
  for (; i + width <= n; i += width) f(i, load_floats<T>(x + i * bytes));
  if (i == n) return;
  char last[width * bytes] = {};
  memcpy(last, x + i * bytes, size_t((n - i) * bytes));
  f(i, load_floats<T>(last));
}
template <class T, class F>
RK_INLINE void narrow_by_vectors(void* out, int64_t n, F f) {
  constexpr int64_t width = kLanes;
  char* const to = static_cast<char*>(out);
  constexpr int64_t bytes = sizeof(T);
  int64_t i = 0;
  if constexpr (std::is_same_v<T, bf16_t>) {
    for (; i + 2 * width <= n; i += 2 * width) {
      const Ints pairs = pairs_of(f(i), f(i + width));
      memcpy(to + i * bytes, &pairs, sizeof pairs);
    }
  }
  for (; i + width <= n; i += width) store_floats<T>(to + i * bytes, f(i));
  if (i == n) return;
  char last[width * bytes];
  store_floats<T>(last, f(i));
  memcpy(to + i * bytes, last, size_t((n - i) * bytes));
}

RK_INLINE Floats load_partial(const float* p) {
  Floats x;
  memcpy(&x, p, sizeof x);
  return x;
}
RK_INLINE void store_partial(float* p, Floats x) { memcpy(p, &x, sizeof x); }

}  // namespace
}  // namespace ringkern::RK_ISA
