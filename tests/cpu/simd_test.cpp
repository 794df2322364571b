// The loops of every instruction set against reduce/ops.h, element by element and to the bit.
#include "cpu/simd.h"

#include <cstring>

#include "check.h"
#include "reduce/samples.h"

namespace ringkern::test {
namespace {

constexpr int64_t kMost = 4099;  // a prime: more than a block, and whole vectors of nothing

// A buffer at a chosen distance from alignment, with bytes around it that nobody may write.
class Buffer {
 public:
  static constexpr int64_t kGuard = 128;
  Buffer(int64_t bytes, int offset)
      : bytes_(bytes), at_(kGuard + offset), all_(size_t(at_ + bytes + kGuard)) {
    memset(all_.data(), 0xa5, all_.size());
  }
  template <class T>
  Buffer(const std::vector<T>& from, int64_t n, int offset)
      : Buffer(n * int64_t(sizeof(T)), offset) {
    if (n > 0) memcpy(data(), from.data(), size_t(bytes_));
  }
  unsigned char* data() { return all_.data() + at_; }

  template <class T>
  void check(const std::vector<T>& expected) {
    for (int64_t i = 0; i < int64_t(all_.size()); ++i)
      if (i < at_ || i >= at_ + bytes_) CHECK_EQ(int(all_[size_t(i)]), 0xa5);
    for (int64_t i = 0; i < bytes_ / int64_t(sizeof(T)); ++i) {
      T x;
      memcpy(&x, data() + i * int64_t(sizeof(T)), sizeof x);
      CHECK_EQ(bits(x), bits(expected[size_t(i)]));
    }
  }

 private:
  int64_t bytes_, at_;
  std::vector<unsigned char> all_;
};

// Lengths with every remainder of a vector, each at another misalignment, and long ones.
template <class F>
void each_length(F f) {
  for (int64_t n = 0; n <= 70; ++n) f(n, int(n % 7));
  for (int64_t n : {255, 256, 1000, 1024, int(kMost)}) f(n, int(n % 3));
}

template <class T>
struct Inputs {
  std::vector<T> x = samples<T>(kMost, 1), y = samples<T>(kMost, 2);
};

template <class T>
void test_reduce(ReduceLoop loop, const Inputs<T>& in, const std::vector<T>& expected) {
  each_length([&](int64_t n, int offset) {
    const int64_t bytes = n * int64_t(sizeof(T));
    Buffer a(in.x, n, offset), b(in.y, n, (offset + 1) % 5), out(bytes, (offset + 2) % 9),
        next(bytes, (offset + 3) % 11);
    loop(out.data(), nullptr, a.data(), b.data(), n);
    out.check(expected);
    a.check(in.x);
    b.check(in.y);
    Buffer again(bytes, offset);
    loop(again.data(), next.data(), a.data(), b.data(), n);
    again.check(expected);
    next.check(expected);
    // In place, as every all-reduce of one tensor is.
    loop(b.data(), next.data(), a.data(), b.data(), n);
    b.check(expected);
    Buffer c(in.y, n, offset);
    loop(a.data(), nullptr, a.data(), c.data(), n);
    a.check(expected);
  });
}

template <class T>
void test_scale(ScaleLoop loop, const Inputs<T>& in, double factor,
                const std::vector<T>& expected) {
  each_length([&](int64_t n, int offset) {
    Buffer a(in.x, n, offset), out(n * int64_t(sizeof(T)), (offset + 2) % 9);
    loop(out.data(), a.data(), n, factor);
    out.check(expected);
    loop(a.data(), a.data(), n, factor);
    a.check(expected);
  });
}

template <DType D>
void test_dtype(const Kernels& k) {
  using T = storage_t<D>;
  const Inputs<T> in;
  for (int c = 0; c < kCombines; ++c)
    CHECK_EQ(k.reduce[int(D)][c] != nullptr, std::is_integral_v<T> || !is_bitwise(Combine(c)));
  each_combine<T>([&](auto c) {
    std::vector<T> expected;
    for (size_t i = 0; i < in.x.size(); ++i) expected.push_back(combine<c()>(in.x[i], in.y[i]));
    test_reduce<T>(k.reduce[int(D)][int(c())], in, expected);
  });
  CHECK_EQ(k.multiply[int(D)] != nullptr, !std::is_integral_v<T>);
  CHECK_EQ(k.divide[int(D)] != nullptr, !std::is_integral_v<T>);
  if constexpr (!std::is_integral_v<T>) {
    for (double factor : {3.0, 0.1, -1e-3}) {
      using enum Reduction::Scale;
      const auto f = wide_t<T>(factor);
      std::vector<T> products, quotients;
      for (T x : in.x) {
        products.push_back(scale<multiply_input>(x, f));
        quotients.push_back(scale<divide_result>(x, f));
      }
      test_scale<T>(k.multiply[int(D)], in, factor, products);
      test_scale<T>(k.divide[int(D)], in, factor, quotients);
    }
  }
}

// What a link asks for: avg divides the finished chunk, premul_sum multiplies what enters the ring.
void test_reducer(const Kernels& k) {
  using T = f16_t;
  const Inputs<T> in;
  const float factor = 0.3f;
  std::vector<T> sums, averages, products, product_sums;
  for (size_t i = 0; i < in.x.size(); ++i) {
    using enum Reduction::Scale;
    sums.push_back(combine<Combine::sum>(in.x[i], in.y[i]));
    averages.push_back(scale<divide_result>(sums[i], 3.0f));
    products.push_back(scale<multiply_input>(in.y[i], factor));
    product_sums.push_back(combine<Combine::sum>(in.x[i], products[i]));
  }
  const Reducer sum(Reduction::of(Op::sum, DType::f16, 3), k);
  const Reducer avg(Reduction::of(Op::avg, DType::f16, 3), k);
  const Reducer premul(Reduction::of(Op::premul_sum, DType::f16, 3, 0.3), k);
  CHECK_EQ(avg.element_bytes(), 2);

  each_length([&](int64_t n, int offset) {
    auto test_input = [&](const Reducer& r, const std::vector<T>& expected) {
      Buffer mine(in.y, n, offset), out(n * 2, (offset + 1) % 5);
      r.input(out.data(), mine.data(), n);
      out.check(expected);
    };
    auto test_reduced = [&](const Reducer& r, bool finishes, const std::vector<T>& expected) {
      Buffer a(in.x, n, offset), b(in.y, n, (offset + 1) % 5), next(n * 2, (offset + 3) % 11);
      Buffer out(n * 2, (offset + 2) % 9);
      r.reduce(out.data(), nullptr, a.data(), b.data(), n, finishes);
      out.check(expected);
      r.reduce(b.data(), next.data(), a.data(), b.data(), n, finishes);
      b.check(expected);
      next.check(expected);
    };
    test_input(sum, in.y);
    test_input(avg, in.y);
    test_input(premul, products);
    test_reduced(sum, true, sums);
    test_reduced(avg, false, sums);
    test_reduced(avg, true, averages);
    test_reduced(premul, false, product_sums);
    test_reduced(premul, true, product_sums);
  });
}

void test_copy_two() {
  const auto from = samples<u8_t>(3 * kMost, 1);
  for (int64_t n : {0, 1, 63, 4095, 4096, 4097, int(3 * kMost)}) {
    Buffer in(from, n, 1), out(n, 2), next(n, 3);
    copy_two(out.data(), next.data(), in.data(), n);
    out.check(from);
    next.check(from);
    copy_two(in.data(), next.data(), in.data(), n);
    in.check(from);
  }
  copy_two(nullptr, nullptr, nullptr, 0);
}

}  // namespace
}  // namespace ringkern::test

int main() {
  using namespace ringkern;
  CHECK(kernels_for(Isa::baseline) != nullptr);
  for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512bf16}) {
    const Kernels* k = kernels_for(isa);
    if (!k) {
      std::printf("skipped: instruction set %d, which this CPU or this build lacks\n", int(isa));
      continue;
    }
    std::printf("testing: %s\n", k->isa);
    test::each_dtype([&](auto tag) { test::test_dtype<tag.value>(*k); });
    test::test_reducer(*k);
  }
  test::test_copy_two();
  std::printf("in use: %s\n", kernels().isa);
}
