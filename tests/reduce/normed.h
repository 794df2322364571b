// The definition of RmsNormLoop in cpu/simd.h, element by element.
#pragma once

#include <cmath>
#include <vector>

#include "cpu/simd.h"
#include "reduce/ops.h"

namespace ringkern::test {

// One element after the other, like RmsNormLoop.
template <class T>
struct Normed {
  std::vector<T> sum, out;

  Normed(const std::vector<T>& x, const std::vector<T>& residual, const std::vector<T>& weight,
         int64_t n, float eps) {
    float squares[kSquareSums] = {};
    for (size_t i = 0; i < size_t(n); ++i) {
      sum.push_back(combine<Combine::sum>(x[i], residual[i]));
      const float s = widened(sum[i]), square = s * s;
      squares[i % kSquareSums] += square;
    }
    for (int half = kSquareSums / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) squares[j] += squares[j + half];
    const float scale = 1 / std::sqrt(squares[0] / float(n) + eps);
    for (size_t i = 0; i < size_t(n); ++i)
      out.push_back(narrowed(widened(sum[i]) * scale * widened(weight[i])));
  }

 private:
  static float widened(T x) {
    if constexpr (is_small_float<T>) return to_float(x);
    else return x;
  }
  static T narrowed(float x) {
    if constexpr (is_small_float<T>) return from_float<T>(x);
    else return one_nan(x);
  }
};

}  // namespace ringkern::test
