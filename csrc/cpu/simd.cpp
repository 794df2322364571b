// The loops of a CPU, written for the compiler to turn into vector code. Compiled once for each
// instruction set: RK_ISA is the namespace of a copy, RK_ISA_NAME its name.

// GCC takes a floating-point operation for one that may trap, and then does not turn a loop with a
// choice behind one into vector code.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math")
#endif

#include "cpu/simd.h"

#include "reduce/ops.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

// A destination that is a source is so element by element. Without this, the compiler compares the
// pointers at run time and sends such calls through a loop of single elements.
#if defined(__clang__)
#define RK_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RK_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace ringkern::RK_ISA {
namespace {

template <class T>
struct Raw {
  using type = T;
};
template <class B, int e, int m, unsigned g>
struct Raw<SmallFloat<B, e, m, g>> {
  using type = B;
};

// An element at any address. Small floats are read as the integers they are made of: a structure is
// not an element of a vector.
template <class T>
struct __attribute__((packed, may_alias)) Unaligned {
  typename Raw<T>::type raw;

  RK_INLINE T get() const {
    if constexpr (is_small_float<T>) return T{raw};
    else return raw;
  }
  RK_INLINE void set(T x) {
    if constexpr (is_small_float<T>) raw = x.bits;
    else raw = x;
  }
};

// ---- float16 ------------------------------------------------------------------------------------
// Its conversions are instructions, but not ones that a compiler finds in a loop. Each function does
// as many elements as fill whole vectors, and returns how many.
#if defined(__AVX512F__)
using Floats = __m512;
RK_INLINE Floats load_halves(const f16_t* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
RK_INLINE void store_halves(void* p, Floats x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
using Floats = __m256;
RK_INLINE Floats load_halves(const f16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
RK_INLINE void store_halves(void* p, Floats x) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#endif

#if defined(__F16C__)
// reduce/dtype.h: one NaN.
RK_INLINE Floats one_nan(Floats x) {
  const Floats nan = Floats{} + bits_as<float>(0x7fffffffu);
  return x == x ? x : nan;
}
template <Combine C>
RK_INLINE int64_t reduce_halves(f16_t* out, f16_t* next, const f16_t* a, const f16_t* b, int64_t n) {
  constexpr int64_t width = sizeof(Floats) / sizeof(float);
  int64_t i = 0;
  for (; i + width <= n; i += width) {
    const Floats x = load_halves(a + i), y = load_halves(b + i);
    const Floats r = one_nan(C == Combine::sum ? x + y : x * y);
    store_halves(out + i, r);
    if (next) store_halves(next + i, r);
  }
  return i;
}
#endif

// ---- every type ---------------------------------------------------------------------------------
template <Combine C, class T>
void reduce(void* out, void* next, const void* incoming, const void* mine, int64_t n) {
  auto* const to = static_cast<Unaligned<T>*>(out);
  auto* const to_next = static_cast<Unaligned<T>*>(next);
  auto* const a = static_cast<const Unaligned<T>*>(incoming);
  auto* const b = static_cast<const Unaligned<T>*>(mine);
  int64_t i = 0;
#if defined(__F16C__) && !defined(NOF16)
  if constexpr (std::is_same_v<T, f16_t> && (C == Combine::sum || C == Combine::prod)) {
    i = reduce_halves<C>((f16_t*)out, (f16_t*)next, (f16_t*)incoming, (f16_t*)mine, n);
  }
#endif
  if (next) {
    RK_INDEPENDENT
    for (; i < n; ++i) {
      const T r = combine<C>(a[i].get(), b[i].get());
      to[i].set(r);
      to_next[i].set(r);
    }
  } else {
    RK_INDEPENDENT
    for (; i < n; ++i) to[i].set(combine<C>(a[i].get(), b[i].get()));
  }
}

template <Reduction::Scale S, class T>
void scale_all(void* out, const void* in, int64_t n, double factor) {
  auto* const to = static_cast<Unaligned<T>*>(out);
  auto* const from = static_cast<const Unaligned<T>*>(in);
  const auto wide = static_cast<wide_t<T>>(factor);
  RK_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) to[i].set(scale<S>(from[i].get(), wide));
}

template <DType D>
constexpr void add(Kernels& k) {
  using T = storage_t<D>;
#define RK_ADD(c) \
  if constexpr (combines<Combine::c, T>) k.reduce[int(D)][int(Combine::c)] = &reduce<Combine::c, T>;
  RK_COMBINES(RK_ADD)
#undef RK_ADD
  if constexpr (!std::is_integral_v<T>) {
    k.multiply[int(D)] = &scale_all<Reduction::Scale::multiply_input, T>;
    k.divide[int(D)] = &scale_all<Reduction::Scale::divide_result, T>;
  }
}

constexpr Kernels make() {
  Kernels k;
  k.isa = RK_ISA_NAME;
#define RK_ADD(e, ...) add<DType::e>(k);
  RK_DTYPES(RK_ADD)
#undef RK_ADD
  return k;
}

}  // namespace

extern constexpr Kernels table = make();

}  // namespace ringkern::RK_ISA
