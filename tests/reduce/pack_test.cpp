// Words and packs against their elements, one by one.
#include "reduce/pack.h"
#include "check.h"
#include "reduce/samples.h"

namespace ringkern::test {
namespace {

template <class T>
std::vector<uint64_t> words(uint64_t seed) {
  constexpr int lanes = Lanes<T>::kCount, n = 20000;
  const auto elements = samples<T>(lanes * n, seed);
  std::vector<uint64_t> all(n);
  memcpy(all.data(), elements.data(), n * sizeof all[0]);
  return all;
}

template <class T, class F>
uint64_t each_lane(uint64_t x, uint64_t y, F f) {
  uint64_t r = 0;
  for (int shift = 0; shift < 64; shift += 8 * int(sizeof(T)))
    r |= uint64_t(bits(f(element<T>(x >> shift), element<T>(y >> shift)))) << shift;
  return r;
}

// The kernels use this one.
struct Pack {
  uint64_t lo, hi;
};

void check_pack(Pack r, uint64_t lo, uint64_t hi) {
  CHECK_EQ(r.lo, lo);
  CHECK_EQ(r.hi, hi);
}

template <Combine C, class T>
void test_combine(uint64_t x, uint64_t y) {
  auto f = [](T a, T b) { return combine<C>(a, b); };
  const uint64_t one = each_lane<T>(x, y, f), other = each_lane<T>(~x, y, f);
  CHECK_EQ((combine_word<C, T>(x, y)), one);
  CHECK_EQ(combine_word<T>(C, x, y), one);
  check_pack(combine_pack<C, T>(Pack{x, ~x}, Pack{y, y}), one, other);
  check_pack(combine_pack<T>(C, Pack{x, ~x}, Pack{y, y}), one, other);
}

template <Reduction::Scale S, class T>
void test_scale(uint64_t x) {
  const auto factor = wide_t<T>(3);
  auto f = [=](T a, T) { return scale<S>(a, factor); };
  const uint64_t one = each_lane<T>(x, x, f), other = each_lane<T>(~x, x, f);
  CHECK_EQ((scale_word<S, T>(x, factor)), one);
  CHECK_EQ(scale_word<T>(S, x, factor), one);
  check_pack(scale_pack<S, T>(Pack{x, ~x}, factor), one, other);
  check_pack(scale_pack<T>(S, Pack{x, ~x}, factor), one, other);
}

template <class T>
void test_type() {
  const auto x = words<T>(1), y = words<T>(2);
  for (size_t i = 0; i < x.size(); ++i) {
    each_combine<T>([&](auto c) { test_combine<c(), T>(x[i], y[i]); });
    if constexpr (!std::is_integral_v<T>) {
      test_scale<Reduction::Scale::multiply_input, T>(x[i]);
      test_scale<Reduction::Scale::divide_result, T>(x[i]);
    }
    CHECK_EQ(scale_word<T>(Reduction::Scale::none, x[i], wide_t<T>(3)), x[i]);
  }
}

// The arithmetic takes any structure of two words, such as that of the kernels.
struct alignas(16) Other {
  uint64_t lo, hi;
};

TEST_CASE("words and packs are reduced as their elements are") {
  each_dtype([](auto tag) { test_type<typename decltype(tag)::type>(); });
}

TEST_CASE("a pack may be any structure of two words") {
  const Other r = combine_pack<uint8_t>(Combine::sum, Other{255, 1}, Other{1, 2});
  CHECK_EQ(r.lo, 0u);
  CHECK_EQ(r.hi, 3u);
}

}  // namespace
}  // namespace ringkern::test
