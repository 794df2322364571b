// The arithmetic of the ring on one element: how two partial results become one, and the scales of
// avg and premul_sum.
//
// Integers wrap. Floats are rounded once an operation, small floats through float, so that the wire
// carries exactly what was computed. min and max propagate NaN from either side and take -0 to be
// less than +0, so they do not depend on the order of their operands.
#pragma once

#include "reduce/dtype.h"

namespace ringkern {

constexpr bool is_bitwise(Combine c) {
  return c == Combine::band || c == Combine::bor || c == Combine::bxor;
}

template <Combine C, class T>
inline constexpr bool combines = std::is_integral_v<T> || !is_bitwise(C);

// The layout of a float type in memory, for arithmetic on its bits.
template <class T>
struct FloatBits {
  using Bits = typename T::Bits;
  static constexpr Bits kGreatest = T::kGreatest, kNaN = T::kNaN;
};
template <>
struct FloatBits<float> {
  using Bits = uint32_t;
  static constexpr Bits kGreatest = 0x7f800000u, kNaN = 0x7fffffffu;
};
template <>
struct FloatBits<double> {
  using Bits = uint64_t;
  static constexpr Bits kGreatest = 0x7ff0000000000000u, kNaN = 0x7fffffffffffffffu;
};

// Also keeps a compiler from fusing a multiplication with the addition that follows it.
template <class T>
RK_INLINE T one_nan(T x) {
  return x == x ? x : bits_as<T>(FloatBits<T>::kNaN);
}

// Returns the smaller or the larger of two floats of any size by comparing their bits: read as
// integers, with the magnitude of negative ones inverted, they are in order.
template <Combine C, class T>
RK_INLINE T extreme_float(T x, T y) {
  using Bits = typename FloatBits<T>::Bits;
  using Key = std::make_signed_t<Bits>;
  constexpr Bits magnitude = FloatBits<T>::kNaN, greatest = FloatBits<T>::kGreatest;
  const Bits a = bits_as<Bits>(x), b = bits_as<Bits>(y);
  const Key ka = Key(a ^ (Bits(Key(a) >> (8 * sizeof(T) - 1)) & magnitude));
  const Key kb = Key(b ^ (Bits(Key(b) >> (8 * sizeof(T) - 1)) & magnitude));
  const Bits ma = a & magnitude, mb = b & magnitude;
  const Bits chosen = (C == Combine::min ? ka < kb : ka > kb) ? a : b;
  return bits_as<T>((ma > mb ? ma : mb) > greatest ? magnitude : chosen);
}

template <Combine C, class T>
RK_INLINE T combine_integer(T x, T y) {
  using U = std::common_type_t<unsigned, std::make_unsigned_t<T>>;  // signed overflow is undefined
  if constexpr (C == Combine::sum) return T(U(x) + U(y));
  if constexpr (C == Combine::prod) return T(U(x) * U(y));
  if constexpr (C == Combine::min) return x < y ? x : y;
  if constexpr (C == Combine::max) return x > y ? x : y;
  if constexpr (C == Combine::band) return T(x & y);
  if constexpr (C == Combine::bor) return T(x | y);
  if constexpr (C == Combine::bxor) return T(x ^ y);
}

template <Combine C, class T>
RK_INLINE T combine(T incoming, T mine) {
  static_assert(combines<C, T>);
  if constexpr (std::is_integral_v<T>) {
    return combine_integer<C>(incoming, mine);
  } else if constexpr (C == Combine::min || C == Combine::max) {
    return extreme_float<C>(incoming, mine);
  } else if constexpr (is_small_float<T>) {
    const float x = to_float(incoming), y = to_float(mine);
    return from_float<T>(C == Combine::sum ? x + y : x * y);
  } else {
    return one_nan(C == Combine::sum ? incoming + mine : incoming * mine);
  }
}

// Scales exist for floats; the factor is rounded to wide_t<T> before it is used.
template <Reduction::Scale S, class T>
RK_INLINE T scale(T x, wide_t<T> factor) {
  static_assert(!std::is_integral_v<T> && S != Reduction::Scale::none);
  constexpr bool multiply = S == Reduction::Scale::multiply_input;
  if constexpr (is_small_float<T>) {
    return from_float<T>(multiply ? to_float(x) * factor : to_float(x) / factor);
  } else {
    return one_nan(multiply ? x * factor : x / factor);
  }
}

}  // namespace ringkern
