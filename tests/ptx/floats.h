// Arithmetic of PTX in the types that C++ lacks, and its NaN. It is written independently of
// csrc/reduce, because tests compare the two.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace ptx {

// Returns x, or for any NaN the one pattern that an operation's NaN has.
inline float canonical(float x) { return std::isnan(x) ? std::bit_cast<float>(0x7FFFFFFFu) : x; }
inline double canonical(double x) {
  return std::isnan(x) ? std::bit_cast<double>(0x7FFFFFFFFFFFFFFFu) : x;
}

// A small floating-point type. One without infinity has numbers with the largest exponent, too, and
// its only NaN is all ones.
struct Format {
  int exponent_bits, mantissa_bits;
  bool infinity;
  uint32_t nan;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  uint32_t sign() const { return 1u << (bits() - 1); }
  // Returns the bits of the largest number, without a sign.
  uint32_t largest() const {
    const uint32_t top = ((1u << exponent_bits) - 1) << mantissa_bits;
    return infinity ? top - 1 : top | ((1u << mantissa_bits) - 2);
  }
};
inline constexpr Format kF16{5, 10, true, 0x7FFF};
inline constexpr Format kBF16{8, 7, true, 0x7FFF};
inline constexpr Format kE4M3{4, 3, false, 0x7F};
inline constexpr Format kE5M2{5, 2, true, 0x7F};

inline double decode(const Format& f, uint32_t bits) {
  const uint32_t magnitude = bits & (f.sign() - 1);
  const auto exponent = int(magnitude >> f.mantissa_bits);
  const uint32_t mantissa = magnitude & ((1u << f.mantissa_bits) - 1);
  double x;
  if (magnitude > f.largest() && !(f.infinity && mantissa == 0)) x = NAN;
  else if (magnitude > f.largest()) x = INFINITY;
  else if (exponent == 0) x = std::ldexp(mantissa, 1 - f.bias() - f.mantissa_bits);
  else x = std::ldexp(mantissa + (1u << f.mantissa_bits), exponent - f.bias() - f.mantissa_bits);
  return (bits & f.sign()) != 0 ? -x : x;
}

// Rounds to the nearest, ties to even. `saturate`: a number that is too large becomes the largest.
inline uint32_t encode(const Format& f, double x, bool saturate = false) {
  if (std::isnan(x)) return f.nan;
  const uint32_t sign = std::signbit(x) ? f.sign() : 0;
  x = std::fabs(x);
  const uint32_t too_large = saturate ? f.largest() : f.infinity ? f.largest() + 1 : f.nan;
  if (std::isinf(x)) return sign | too_large;
  // In units of the last place; scaling by a power of two is exact.
  const int exponent = x == 0 ? 1 - f.bias() : std::max(std::ilogb(x), 1 - f.bias());
  const double units = std::nearbyint(std::ldexp(x, f.mantissa_bits - exponent));
  const auto magnitude =
      uint32_t(int64_t(units) + (int64_t(exponent + f.bias() - 1) << f.mantissa_bits));
  return sign | (magnitude > f.largest() ? too_large : magnitude);
}

// Returns a * b + c, rounded to odd, so that it can be rounded once more. The product must be
// exact.
inline double fused(double a, double b, double c) {
  const double product = a * b, sum = product + c;
  if (!std::isfinite(sum) || sum == 0) return sum;
  const double other = sum - product;
  const double error = (product - (sum - other)) + (c - other);
  if (error == 0 || (std::bit_cast<uint64_t>(sum) & 1) != 0) return sum;
  return std::nextafter(sum, error > 0 ? INFINITY : -INFINITY);
}

// Return the smaller, or the larger; -0 is smaller than +0. A NaN if either is one.
inline double smaller(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return NAN;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
inline double larger(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return NAN;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}

}  // namespace ptx
