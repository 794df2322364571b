// Elements of every type for the tests of arithmetic: random bit patterns, and special ones.
#pragma once

#include <vector>

#include "reduce/ops.h"

namespace ringkern::test {

template <int bytes>
struct UIntOf;
template <>
struct UIntOf<1> {
  using type = uint8_t;
};
template <>
struct UIntOf<2> {
  using type = uint16_t;
};
template <>
struct UIntOf<4> {
  using type = uint32_t;
};
template <>
struct UIntOf<8> {
  using type = uint64_t;
};

// Returns the bits of an element, by which two are compared.
template <class T>
auto bits(T x) {
  return bits_as<typename UIntOf<sizeof(T)>::type>(x);
}
template <class T>
T element(uint64_t bits) {
  return bits_as<T>(typename UIntOf<sizeof(T)>::type(bits));
}

// The same numbers in every run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {  // splitmix64
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
  }

 private:
  uint64_t state_;
};

// Bit patterns around every place where something happens: zero, the ends of each binade of the
// exponent, infinity, NaNs of both kinds; for integers, the ends of their range. With both signs.
template <class T>
std::vector<T> special() {
  constexpr int width = 8 * int(sizeof(T));
  std::vector<T> all;
  for (int top = 0; top < width; ++top) {
    for (int low = 0; low <= top; ++low) {
      const uint64_t run = (uint64_t(2) << top) - (uint64_t(1) << low);  // ones from low to top
      for (uint64_t x : {run - 1, run, run + 1}) {
        all.push_back(element<T>(x));
        all.push_back(element<T>(x ^ uint64_t(1) << (width - 1)));
      }
    }
  }
  return all;
}

// Typical numbers of a program: of moderate size, with sums and products that are not special.
template <class T>
T moderate(Random& random) {
  const int64_t n = int64_t(random.next() % 255) - 127;
  if constexpr (std::is_integral_v<T>) return T(n);
  else if constexpr (is_small_float<T>) return from_float<T>(float(n) / 16);
  else return T(n) / 16 + T(random.next() % 1024) / 3;
}

// n elements, of all the sorts above.
template <class T>
std::vector<T> samples(int64_t n, uint64_t seed) {
  static const std::vector<T> specials = special<T>();
  Random random(seed);
  std::vector<T> all;
  for (int64_t i = 0; i < n; ++i) {
    switch (random.next() % 3) {
      case 0: all.push_back(element<T>(random.next())); break;
      case 1: all.push_back(specials[random.next() % specials.size()]); break;
      default: all.push_back(moderate<T>(random));
    }
  }
  return all;
}

// Calls f(DTypeTag) for each dtype.
template <class F>
void each_dtype(F f) {
#define RK_CALL(e, ...) f(DTypeTag<DType::e>{});
  RK_DTYPES(RK_CALL)
#undef RK_CALL
}

// Calls f(std::integral_constant<Combine, C>) for each combine that T has.
template <class T, class F>
void each_combine(F f) {
#define RK_CALL(e) \
  if constexpr (combines<Combine::e, T>) f(std::integral_constant<Combine, Combine::e>{});
  RK_COMBINES(RK_CALL)
#undef RK_CALL
}

}  // namespace ringkern::test
