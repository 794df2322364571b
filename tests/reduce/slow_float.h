// Small floats the slow way: each number is looked up in the list of all numbers of its format.
// Written from the definition of the formats, without reduce/dtype.h.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

namespace ringkern::test {

class SlowFloat {
 public:
  enum class Top { infinity, largest };  // what overflow becomes

  SlowFloat(int exponent_bits, int mantissa_bits, Top top)
      : mantissa_bits_(mantissa_bits), bias_((1 << (exponent_bits - 1)) - 1),
        sign_bit_(1u << (exponent_bits + mantissa_bits)), top_(top) {
    // IEEE uses the highest exponent for infinity and NaN; e4m3fn uses only its last pattern for
    // NaN.
    const unsigned end = top == Top::infinity ? sign_bit_ - (1u << mantissa_bits) : sign_bit_ - 1;
    for (unsigned m = 0; m < end; ++m) numbers_.push_back(magnitude(m));
  }

  // The numbers that are not negative, least first; each has the bits of its index.
  const std::vector<double>& numbers() const { return numbers_; }
  unsigned sign_bit() const { return sign_bit_; }
  unsigned nan() const { return sign_bit_ - 1; }

  double decode(unsigned bits) const {
    const unsigned m = bits & (sign_bit_ - 1);
    double x = std::numeric_limits<double>::quiet_NaN();
    if (m < numbers_.size()) x = numbers_[m];
    if (m == numbers_.size() && top_ == Top::infinity) x = std::numeric_limits<double>::infinity();
    return bits & sign_bit_ ? -x : x;
  }

  // Rounds to the nearest, ties to even; any NaN becomes the one NaN.
  unsigned encode(double x) const {
    if (std::isnan(x)) return nan();
    const unsigned sign = std::signbit(x) ? sign_bit_ : 0;
    const double m = std::fabs(x);
    unsigned low = 0, high = unsigned(numbers_.size());  // `high`: the number that would come next
    while (high - low > 1) {
      const unsigned middle = (low + high) / 2;
      (numbers_[middle] <= m ? low : high) = middle;
    }
    const double below = m - numbers_[low], above = magnitude(high) - m;
    const bool up = above < below || (above == below && low % 2 == 1);
    if (up && high == numbers_.size() && top_ == Top::largest) return sign | low;
    return sign | (up ? high : low);
  }

 private:
  double magnitude(unsigned m) const {
    const int exponent = int(m >> mantissa_bits_), mantissa = int(m & ((1u << mantissa_bits_) - 1));
    const int one = 1 << mantissa_bits_;
    return exponent == 0 ? std::ldexp(mantissa, 1 - bias_ - mantissa_bits_)
                         : std::ldexp(one + mantissa, exponent - bias_ - mantissa_bits_);
  }

  int mantissa_bits_, bias_;
  unsigned sign_bit_;
  Top top_;
  std::vector<double> numbers_;
};

// The format of each T of reduce/dtype.h, stated anew.
template <class T>
const SlowFloat& slow();
template <>
inline const SlowFloat& slow<f16_t>() {
  static const SlowFloat f(5, 10, SlowFloat::Top::infinity);
  return f;
}
template <>
inline const SlowFloat& slow<bf16_t>() {
  static const SlowFloat f(8, 7, SlowFloat::Top::infinity);
  return f;
}
template <>
inline const SlowFloat& slow<e4m3_t>() {
  static const SlowFloat f(4, 3, SlowFloat::Top::largest);
  return f;
}
template <>
inline const SlowFloat& slow<e5m2_t>() {
  static const SlowFloat f(5, 2, SlowFloat::Top::infinity);
  return f;
}

}  // namespace ringkern::test
