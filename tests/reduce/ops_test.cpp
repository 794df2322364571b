// The arithmetic of one element against the same in wider types.
#include <algorithm>
#include <limits>
#include <utility>

#include "check.h"
#include "reduce/samples.h"
#include "reduce/slow_float.h"

namespace ringkern::test {
namespace {

// The bits of a float or double, of a NaN those of the one NaN.
template <class T>
auto rounded(T x) {
  return x == x ? bits(x) : bits(element<T>(~uint64_t(0) >> 1 >> (64 - 8 * sizeof(T))));
}

template <class T>
double value(T x) {
  if constexpr (is_small_float<T>) return slow<T>().decode(bits(x));
  else return x;
}

template <Combine C, class T>
auto expected_extreme(T x, T y) {
  const double a = value(x), b = value(y);
  if constexpr (!std::is_integral_v<T>) {
    if (std::isnan(a) || std::isnan(b)) {
      if constexpr (is_small_float<T>) return bits(element<T>(slow<T>().nan()));
      else return rounded(std::numeric_limits<T>::quiet_NaN());
    }
    if (a == 0 && b == 0) return std::signbit(a) == (C == Combine::min) ? bits(x) : bits(y);
    return (C == Combine::min ? a < b : a > b) ? bits(x) : bits(y);
  } else {
    return bits(C == Combine::min ? std::min(x, y) : std::max(x, y));
  }
}

template <Combine C, class T>
auto expected(T x, T y) {
  constexpr bool sum = C == Combine::sum;
  if constexpr (C == Combine::min || C == Combine::max) {
    return expected_extreme<C>(x, y);
  } else if constexpr (std::is_integral_v<T>) {
    // Twice as wide, where nothing overflows; the low half is what wraps around.
    const auto a = __int128(x), b = __int128(y);
    if constexpr (sum) return bits(T(a + b));
    else if constexpr (C == Combine::prod) return bits(T(a * b));
    else if constexpr (C == Combine::band) return bits(T(a & b));
    else if constexpr (C == Combine::bor) return bits(T(a | b));
    else return bits(T(a ^ b));
  } else if constexpr (is_small_float<T>) {
    const float a = float(value(x)), b = float(value(y));
    return bits(element<T>(slow<T>().encode(sum ? a + b : a * b)));
  } else {
    return rounded(sum ? x + y : x * y);
  }
}

template <Combine C, class T>
void check(T x, T y) {
  const auto r = bits(combine<C>(x, y));
  CHECK_EQ(r, (expected<C, T>(x, y)));
  CHECK_EQ(r, bits(combine<C>(y, x)));  // the ring's order is by rank, not by operand
}

template <Reduction::Scale S, class T>
void check_scale(T x, double factor) {
  constexpr bool multiply = S == Reduction::Scale::multiply_input;
  const auto f = wide_t<T>(factor);
  const auto r = bits(scale<S>(x, f));
  if constexpr (is_small_float<T>) {
    const float a = float(value(x));
    CHECK_EQ(unsigned(r), slow<T>().encode(multiply ? a * f : a / f));
  } else {
    CHECK_EQ(r, rounded(multiply ? x * f : x / f));
  }
}

// All pairs of bytes; of larger types, all pairs of special values, and random ones.
template <class T>
std::vector<std::pair<T, T>> pairs() {
  std::vector<std::pair<T, T>> all;
  if constexpr (sizeof(T) == 1) {
    for (int i = 0; i < 65536; ++i) all.emplace_back(element<T>(i), element<T>(i >> 8));
    return all;
  }
  const auto x = samples<T>(100000, 1), y = samples<T>(100000, 2), few = samples<T>(200, 3);
  for (T a : few)
    for (T b : few) all.emplace_back(a, b);
  for (size_t i = 0; i < x.size(); ++i) all.emplace_back(x[i], y[i]);
  return all;
}

template <class T>
void test_type() {
  const auto all = pairs<T>();
  each_combine<T>([&](auto c) {
    for (auto [x, y] : all) check<c()>(x, y);
  });
  if constexpr (!std::is_integral_v<T>) {
    for (double factor : {1.0, 3.0, 7.0, 1024.0, 0.1, -0.3, 1e-5, 0.0, 1e300}) {
      for (T x : samples<T>(20000, 4)) {
        check_scale<Reduction::Scale::multiply_input>(x, factor);
        check_scale<Reduction::Scale::divide_result>(x, factor);
      }
    }
  }
}

TEST_CASE("integers wrap around") {
  CHECK_EQ(int(combine<Combine::sum>(i8_t(127), i8_t(1))), -128);
  CHECK_EQ(int(combine<Combine::prod>(u8_t(16), u8_t(17))), 16);
  CHECK_EQ(combine<Combine::sum>(i32_t(INT32_MAX), i32_t(1)), INT32_MIN);
  CHECK_EQ(combine<Combine::prod>(i64_t(INT64_MIN), i64_t(-1)), INT64_MIN);
}

TEST_CASE("each operation on each dtype is exact, or rounds as a wider type does") {
  each_dtype([](auto tag) { test_type<typename decltype(tag)::type>(); });
}

}  // namespace
}  // namespace ringkern::test
