// The conversions of the small floats against the slow ones of slow_float.h.
#include <cfloat>

#include "check.h"
#include "reduce/samples.h"
#include "reduce/slow_float.h"

namespace ringkern::test {
namespace {

template <class T>
void check_from_float(float x) {
  CHECK_EQ(unsigned(bits(from_float<T>(x))), slow<T>().encode(double(x)));
}

// Every bit pattern there is.
template <class T>
void to_float_is_exact() {
  for (unsigned b = 0; b < 2 * slow<T>().sign_bit(); ++b) {
    const float x = to_float(element<T>(b));
    const double expected = slow<T>().decode(b);
    CHECK_EQ(std::isnan(x), std::isnan(expected));
    if (std::isnan(x)) continue;
    CHECK_EQ(double(x), expected);
    CHECK_EQ(std::signbit(x), std::signbit(expected));
    CHECK_EQ(unsigned(bits(from_float<T>(x))), b);
  }
}

// Each number, the middle to the next one, and the floats to both sides of either.
template <class T>
void from_float_rounds_to_nearest_even() {
  const auto& numbers = slow<T>().numbers();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double next = i + 1 < numbers.size() ? numbers[i + 1] : 2 * numbers[i] - numbers[i - 1];
    for (double place : {numbers[i], (numbers[i] + next) / 2}) {
      const float x = float(place);
      for (float y : {x, std::nextafter(x, -FLT_MAX), std::nextafter(x, FLT_MAX)}) {
        check_from_float<T>(y);
        check_from_float<T>(-y);
      }
    }
  }
}

template <class T>
void from_float_of_anything() {
  for (float x : special<float>()) check_from_float<T>(x);
  Random random(1);
  for (int i = 0; i < 200000; ++i) check_from_float<T>(element<float>(random.next()));
}

template <class T>
void overflow() {
  const float infinity = std::numeric_limits<float>::infinity();
  constexpr unsigned greatest = T::kGreatest, sign = T::kNaN + 1;
  for (float x : {infinity, FLT_MAX}) {
    CHECK_EQ(unsigned(bits(from_float<T>(x))), greatest);
    CHECK_EQ(unsigned(bits(from_float<T>(-x))), sign | greatest);
  }
  CHECK_EQ(std::isinf(to_float(element<T>(greatest))), T::kHasInfinity);
}

template <class T>
void conversions() {
  to_float_is_exact<T>();
  from_float_rounds_to_nearest_even<T>();
  from_float_of_anything<T>();
  overflow<T>();
}

TEST_CASE("each dtype has a storage type of its size") {
  each_dtype([](auto tag) {
    using T = storage_t<tag.value>;
    CHECK_EQ(int(sizeof(T)), size_of(tag.value));
    const int size =
        with_dtype(tag.value, [](auto t) { return int(sizeof(typename decltype(t)::type)); });
    CHECK_EQ(size, int(sizeof(T)));
  });
}

TEST_CASE("float16 is converted as the slow model does") { conversions<f16_t>(); }
TEST_CASE("bfloat16 is converted as the slow model does") { conversions<bf16_t>(); }
TEST_CASE("float8_e4m3 is converted as the slow model does") { conversions<e4m3_t>(); }
TEST_CASE("float8_e5m2 is converted as the slow model does") { conversions<e5m2_t>(); }

TEST_CASE("large floats round to the same numbers as in torch") {
  CHECK_EQ(unsigned(from_float<e4m3_t>(1e6f).bits), 0x7eu);
  CHECK_EQ(unsigned(from_float<e4m3_t>(465.0f).bits), 0x7eu);
  CHECK_EQ(unsigned(from_float<e5m2_t>(61440.0f).bits), 0x7cu);
  CHECK_EQ(unsigned(from_float<e5m2_t>(61439.0f).bits), 0x7bu);
  CHECK_EQ(unsigned(from_float<f16_t>(65520.0f).bits), 0x7c00u);
  CHECK_EQ(unsigned(from_float<bf16_t>(FLT_MAX).bits), 0x7f80u);
}

}  // namespace
}  // namespace ringkern::test
