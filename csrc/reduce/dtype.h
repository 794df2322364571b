// The element types: what each DType is stored as, and the conversions of the small floats.
//
// One rule for NaN: arithmetic that ends in NaN ends in one bit pattern, positive and with every
// mantissa bit set, which is what GPUs make. A result then depends neither on which operand held the
// NaN nor on the instruction set, and CPU and CUDA agree to the bit.
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

template <class To, class From>
RK_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// A float of 8 or 16 bits: sign, exponent, mantissa. `greatest` is the largest magnitude that is not
// NaN and what overflow becomes: infinity, or the largest number in e4m3, which has no infinity.
template <class Bits_, int exponent_bits, int mantissa_bits, unsigned greatest>
struct SmallFloat {
  using Bits = Bits_;
  static constexpr int kMantissaBits = mantissa_bits;
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int kShift = 23 - mantissa_bits;  // from this mantissa to that of a float
  static constexpr int kRebias = 127 - kBias;        // from this exponent to that of a float
  static constexpr uint32_t kGreatest = greatest;
  static constexpr uint32_t kNaN = (1u << (exponent_bits + mantissa_bits)) - 1;
  static constexpr bool kHasInfinity = (greatest & ((1u << mantissa_bits) - 1)) == 0;
  Bits bits;
};

using f32_t = float;
using f64_t = double;
using f16_t = SmallFloat<uint16_t, 5, 10, 0x7c00>;
using bf16_t = SmallFloat<uint16_t, 8, 7, 0x7f80>;
using i8_t = int8_t;
using u8_t = uint8_t;
using i32_t = int32_t;
using i64_t = int64_t;
using e4m3_t = SmallFloat<uint8_t, 4, 3, 0x7e>;
using e5m2_t = SmallFloat<uint8_t, 5, 2, 0x7c>;

// `value`: a DType; `type`: what its elements are stored as.
template <DType>
struct DTypeTag;
#define RK_TAG(name, torch_name, bytes, kind)                                 \
  template <>                                                                 \
  struct DTypeTag<DType::name> {                                              \
    using type = name##_t;                                                    \
    static constexpr DType value = DType::name;                               \
    static_assert(sizeof(type) == bytes);                                     \
    static_assert(std::is_integral_v<type> == (Kind::kind == Kind::integer)); \
  };
RK_DTYPES(RK_TAG)
#undef RK_TAG

template <DType D>
using storage_t = typename DTypeTag<D>::type;

// Calls f(DTypeTag<D>{}) where D is `dtype`.
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

// What arithmetic on a T is done in. A small float is rounded to T after every operation.
template <class T>
using wide_t = std::conditional_t<is_small_float<T>, float, T>;

// Exact. Neither conversion has a choice between floating-point results, which would keep a loop
// from becoming vector code, or a denormal operand, which is slow on some CPUs and zero in a program
// that flushes denormals.
template <class T>
RK_INLINE float to_float(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, f16_t>) return __half2float(__ushort_as_half(x.bits));
#endif
  if constexpr (T::kRebias == 0) {
    return bits_as<float>(uint32_t(x.bits) << T::kShift);
  } else {
    const uint32_t sign = uint32_t(x.bits) << (32 - 8 * sizeof x) & 0x80000000u;
    const uint32_t magnitude = x.bits & T::kNaN;
    // A subnormal is given the leading 1 that it lacks, which is then subtracted.
    constexpr uint32_t normal = uint32_t(T::kRebias) << 23, least = normal + (1u << 23);
    const bool subnormal = magnitude < (1u << T::kMantissaBits);
    const uint32_t biased = (magnitude << T::kShift) + (subnormal ? least : normal);
    const float value = bits_as<float>(biased) - bits_as<float>(subnormal ? least : 0);
    // Infinity and NaN: the exponent of a float's, the mantissa as it is.
    constexpr uint32_t special = T::kGreatest + (T::kHasInfinity ? 0 : 1);
    const uint32_t exponent = magnitude < special ? 0 : 0x7f800000u;
    return bits_as<float>(bits_as<uint32_t>(value) | exponent | sign);
  }
}

// Rounds to nearest, ties to even.
template <class T>
RK_INLINE T from_float(float x) {
  const uint32_t bits = bits_as<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits ^ magnitude) >> (32 - 8 * sizeof(T));
  uint32_t rounded;
  if constexpr (T::kRebias == 0) {
    const uint32_t odd = magnitude >> T::kShift & 1;
    rounded = (magnitude + (1u << (T::kShift - 1)) - 1 + odd) >> T::kShift;
  } else {
    // The adder rounds: next to a float whose last bit is worth what the last bit of the result is
    // worth. That is by the exponent of the number, or by the least one of T if it is subnormal.
    constexpr uint32_t least = uint32_t(T::kRebias + 1) << 23;
    constexpr uint32_t too_large = uint32_t(127 + T::kBias + 1) << 23;
    const uint32_t bounded = magnitude < too_large ? magnitude : too_large;
    const uint32_t exponent = (bounded & 0x7f800000u) > least ? bounded & 0x7f800000u : least;
    const uint32_t large = exponent + (uint32_t(T::kShift) << 23);
    const uint32_t sum = bits_as<uint32_t>(bits_as<float>(bounded) + bits_as<float>(large));
    rounded = (sum - large) + ((exponent - least) >> T::kShift);
  }
  rounded = rounded < T::kGreatest ? rounded : T::kGreatest;
  return T{typename T::Bits(rounded | (magnitude > 0x7f800000u ? T::kNaN : sign))};
}

}  // namespace ringkern
