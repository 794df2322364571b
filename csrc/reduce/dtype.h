// The element types: the C++ type that stores each DType, and the conversions of the small floats.
//
// One rule for NaN: an operation that gives NaN gives one bit pattern, positive and with every
// mantissa bit set, as GPUs do. So a result depends neither on which operand held a NaN nor on the
// instruction set, and CPU and CUDA agree to the bit.
#pragma once

#include <cstring>
#include <type_traits>

#include "core/types.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

// Never an out-of-line copy: csrc/cpu/simd.cpp is compiled once per instruction set, and the linker
// could keep the AVX-512 copy for everyone, which is an illegal instruction on an older CPU.
#if defined(__CUDACC__)
#define RK_INLINE __host__ __device__ __forceinline__
#else
#define RK_INLINE inline __attribute__((always_inline))
#endif

namespace ringkern {

inline constexpr int32_t kInfinity = 0x7f800000;  // of a float, and its exponent bits

template <class To, class From>
RK_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// A float of 8 or 16 bits: sign, exponent, mantissa. `greatest` is the largest magnitude that is
// not NaN, and the result of an overflow: infinity, or in e4m3, which has no infinity, the largest
// number.
template <class Bits_, int exponent_bits, int mantissa_bits, int greatest>
struct SmallFloat {
  using Bits = Bits_;
  static constexpr int kMantissaBits = mantissa_bits;
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int kShift = 23 - mantissa_bits;  // from this mantissa to that of a float
  static constexpr int kRebias = 127 - kBias;        // from this exponent to that of a float
  static constexpr int kGreatest = greatest;
  static constexpr int kNaN = (1 << (exponent_bits + mantissa_bits)) - 1;
  static constexpr bool kHasInfinity = (greatest & ((1 << mantissa_bits) - 1)) == 0;
  Bits bits;
};

using f32_t = float;
using f64_t = double;
using f16_t = SmallFloat<uint16_t, 5, 10, 0x7c00>;
using bf16_t = SmallFloat<uint16_t, 8, 7, 0x7f80>;
using i8_t = int8_t;
using u8_t = uint8_t;
using i16_t = int16_t;
using i32_t = int32_t;
using i64_t = int64_t;
using boolean_t = u8_t;
using e4m3_t = SmallFloat<uint8_t, 4, 3, 0x7e>;
using e5m2_t = SmallFloat<uint8_t, 5, 2, 0x7c>;

// `value`: a DType; `type`: the type that stores its elements.
template <DType>
struct DTypeTag;
#define RK_TAG(name, torch_name, bytes, kind)                                  \
  template <>                                                                  \
  struct DTypeTag<DType::name> {                                               \
    using type = name##_t;                                                     \
    static constexpr DType value = DType::name;                                \
    static_assert(sizeof(type) == bytes);                                      \
    static_assert(std::is_integral_v<type> == (Kind::kind != Kind::floating)); \
  };
RK_DTYPES(RK_TAG)
#undef RK_TAG

template <DType D>
using storage_t = typename DTypeTag<D>::type;

// Calls f(DTypeTag<D>{}) with D equal to `dtype`.
template <class F>
constexpr decltype(auto) with_dtype(DType dtype, F&& f) {
  switch (dtype) {
#define RK_CASE(e, ...) case DType::e: return f(DTypeTag<DType::e>{});
    RK_DTYPES(RK_CASE)
#undef RK_CASE
  }
  __builtin_unreachable();
}

template <class T>
inline constexpr bool is_small_float = !std::is_arithmetic_v<T>;

// The type in which arithmetic on a T is done. A small float is rounded to T after every operation.
template <class T>
using wide_t = std::conditional_t<is_small_float<T>, float, T>;

// Converts one element or a vector of them: I is int32_t or a vector of it, F a float or a vector
// of the same length. The bits of a T are the low ones of an integer. Neither conversion adds
// denormals, which is slow on some CPUs and gives zero in a program that flushes them.

// Exact.
template <class T, class F, class I>
RK_INLINE F floats_of(I bits) {
  if constexpr (T::kRebias == 0) {
    return bits_as<F>(bits << T::kShift);
  } else {
    const I zero{}, magnitude = bits & T::kNaN;
    const I sign = (bits ^ magnitude) << (32 - 8 * int(sizeof(T)));
    // A subnormal is given the leading 1 that it lacks, which is then subtracted.
    constexpr int32_t normal = T::kRebias << 23, least = normal + (1 << 23);
    const auto subnormal = magnitude < (1 << T::kMantissaBits);
    const I biased = (magnitude << T::kShift) + (subnormal ? zero + least : zero + normal);
    const F value = bits_as<F>(biased) - bits_as<F>(subnormal ? zero + least : zero);
    // Infinity and NaN get the largest exponent of a float, and keep the mantissa.
    constexpr int32_t special = T::kGreatest + (T::kHasInfinity ? 0 : 1);
    const I exponent = magnitude < special ? zero : zero + kInfinity;
    return bits_as<F>(bits_as<I>(value) | exponent | sign);
  }
}

// Rounds to nearest, ties to even.
template <class T, class I, class F>
RK_INLINE I bits_of(F x) {
  const I zero{}, bits = bits_as<I>(x), magnitude = bits & 0x7fffffff;
  const I sign = bits >> (32 - 8 * int(sizeof(T))) & (T::kNaN + 1);
  I rounded;
  if constexpr (T::kRebias == 0) {
    // Rounds with one last bit less, and adds that bit after the shift: a NaN must not overflow.
    constexpr int32_t half = 1 << (T::kShift - 1);
    rounded = ((magnitude - half - 1 + (magnitude >> T::kShift & 1)) >> T::kShift) + 1;
  } else {
    // The adder rounds: the sum has a last bit worth that of the result. The float to add follows
    // from the exponent of the number, or from the least one of T if it is subnormal.
    constexpr int32_t least = (T::kRebias + 1) << 23;
    constexpr int32_t too_large = (127 + T::kBias + 2) << 23;  // also for e4m3, which goes further
    const I bounded = magnitude < too_large ? magnitude : zero + too_large;
    const I binade = bounded & kInfinity;
    const I exponent = binade > least ? binade : zero + least;
    const I large = exponent + (T::kShift << 23);
    const I sum = bits_as<I>(bits_as<F>(bounded) + bits_as<F>(large));
    rounded = (sum - large) + ((exponent - least) >> T::kShift);
    rounded = rounded < T::kGreatest ? rounded : zero + T::kGreatest;
  }
  return magnitude > kInfinity ? zero + T::kNaN : rounded | sign;
}

// A GPU has instructions that give the same bits.
template <class T>
RK_INLINE float to_float(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, f16_t>) return __half2float(__ushort_as_half(x.bits));
  if constexpr (std::is_same_v<T, e5m2_t>)  // the upper byte of a float16
    return __half2float(__ushort_as_half(uint16_t(x.bits << 8)));
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (std::is_same_v<T, e4m3_t>)
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
#endif
  return floats_of<T, float>(int32_t(x.bits));
}

template <class T>
RK_INLINE T from_float(float x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, f16_t>) return T{__half_as_ushort(__float2half_rn(x))};
  if constexpr (std::is_same_v<T, bf16_t>) return T{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (std::is_same_v<T, e4m3_t>)
    return T{__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
  if constexpr (std::is_same_v<T, e5m2_t>) {
    const uint8_t finite = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    // Half way from the largest number to the next, were there one.
    return T{fabsf(x) >= 61440.0f ? uint8_t((finite & 0x80) | T::kGreatest) : finite};
  }
#endif
  return T{typename T::Bits(bits_of<T, int32_t>(x))};
}

}  // namespace ringkern
