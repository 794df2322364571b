// Compares the loops of every instruction set with reduce/ops.h, element by element and bit by bit.
#include "cpu/simd.h"

#include <cmath>

#include "check.h"
#include "reduce/normed.h"
#include "reduce/samples.h"

namespace ringkern::test {
namespace {

constexpr int64_t kMost = 4099;  // a prime: more than a block, and no multiple of a vector

// A buffer at a chosen distance from alignment, with guard bytes around it.
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
    check_around();
    for (int64_t i = 0; i < bytes_ / int64_t(sizeof(T)); ++i) {
      T x;
      memcpy(&x, data() + i * int64_t(sizeof(T)), sizeof x);
      CHECK_EQ(bits(x), bits(expected[size_t(i)]));
    }
  }

  void check_around() const {
    for (int64_t i = 0; i < int64_t(all_.size()); ++i)
      if (i < at_ || i >= at_ + bytes_) CHECK_EQ(int(all_[size_t(i)]), 0xa5);
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
    // In place, like every all-reduce of one tensor.
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

// Adds several ranks in floats, for accumulate="float32": rounded once. The bytes after the partial
// sums are free up to kPartialRoom, and must not change after that.
template <DType D>
void test_wide(const Kernels& k) {
  using T = storage_t<D>;
  constexpr int kRanks = 4;
  std::vector<T> in[kRanks];
  for (int p = 0; p < kRanks; ++p) in[p] = samples<T>(kMost, uint64_t(p + 1));
  for (const Op op : {Op::sum, Op::avg, Op::prod}) {
    const Reducer reducer(Reduction::of(op, D, kRanks, 1.0, /*wide=*/true), k);
    std::vector<T> expected, by_tree;
    for (size_t i = 0; i < size_t(kMost); ++i) {
      by_tree.push_back(from_float<T>((to_float(in[0][i]) + to_float(in[1][i])) +
                                      (to_float(in[2][i]) + to_float(in[3][i]))));
      float x = to_float(in[0][i]);
      for (int p = 1; p < kRanks; ++p)
        x = op == Op::prod ? x * to_float(in[p][i]) : x + to_float(in[p][i]);
      expected.push_back(from_float<T>(op == Op::avg ? x / kRanks : x));
    }
    each_length([&](int64_t n, int offset) {
      Buffer partial((n + kPartialRoom) * int64_t(sizeof(float)), 4 * offset);
      auto* const floats = reinterpret_cast<float*>(partial.data());
      Buffer out(n * int64_t(sizeof(T)), (offset + 2) % 9);
      for (int p = 0; p < kRanks; ++p) {
        Buffer one(in[p], n, (offset + p) % 7);
        reducer.add_wide(floats, one.data(), n, p == 0);
        one.check(in[p]);
      }
      reducer.narrow(out.data(), floats, n);
      out.check(expected);
      partial.check_around();
      if (op != Op::sum) return;
      // The sum of two partial sums, as in a tree.
      Buffer other((n + kPartialRoom) * int64_t(sizeof(float)), 4 * offset);
      auto* const right = reinterpret_cast<float*>(other.data());
      for (int p = 0; p < kRanks; ++p)
        reducer.add_wide(p < 2 ? floats : right, in[p].data(), n, p % 2 == 0);
      reducer.add_partials(floats, right, n);
      reducer.narrow(out.data(), floats, n);
      out.check(by_tree);
      partial.check_around();
      other.check_around();
    });
  }
}

void test_what_is_wide(const Kernels& k) {
  const auto widens = [&](Op op, DType dtype, int ranks, bool wide) {
    return Reducer(Reduction::of(op, dtype, ranks, 2.0, wide), k).widens(ranks);
  };
  for (const DType dtype : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    for (const Op op : {Op::sum, Op::avg, Op::premul_sum, Op::prod}) {
      CHECK(widens(op, dtype, 3, true));
      CHECK(!widens(op, dtype, 3, false));
      // Two numbers are rounded once in either mode, unless they are divided then.
      CHECK_EQ(widens(op, dtype, 2, true), op == Op::avg);
    }
    for (const Op op : {Op::min, Op::max}) CHECK(!widens(op, dtype, 3, true));
  }
  for (const DType dtype : {DType::f32, DType::f64, DType::i8, DType::i64}) {
    CHECK(!widens(Op::sum, dtype, 3, true));
    CHECK_EQ(k.narrow[int(dtype)] != nullptr, false);
  }
}

template <class T>
void test_add_rms_norm(const Kernels& k, DType dtype) {
  Random random(3);
  std::vector<T> x, residual, weight;
  for (std::vector<T>* v : {&x, &residual, &weight})
    for (int64_t i = 0; i < kMost; ++i) v->push_back(moderate<T>(random));
  const Inputs<T> any;  // with infinities and NaNs
  const auto test = [&](const std::vector<T>& a, const std::vector<T>& b, int64_t n, int offset) {
    const Normed<T> expected(a, b, weight, n, 1e-5f);
    Buffer sum(a, n, offset), added(b, n, (offset + 1) % 5), w(weight, n, (offset + 2) % 9);
    Buffer out(n * int64_t(sizeof(T)), (offset + 3) % 11);
    k.add_rms_norm[int(dtype)](out.data(), sum.data(), added.data(), w.data(), n, 1e-5f);
    out.check(expected.out);
    sum.check(expected.sum);
    added.check(b);
    w.check(weight);
  };
  each_length([&](int64_t n, int offset) {
    if (n == 0) return;
    test(x, residual, n, offset);
    test(any.x, any.y, n, offset);
  });
}

void test_norms(const Kernels& k) {
  test_add_rms_norm<float>(k, DType::f32);
  test_add_rms_norm<f16_t>(k, DType::f16);
  test_add_rms_norm<bf16_t>(k, DType::bf16);
  for (const DType dtype : {DType::f64, DType::e4m3, DType::e5m2, DType::i32})
    CHECK(k.add_rms_norm[int(dtype)] == nullptr);
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
  if constexpr (is_small_float<T>) test_wide<D>(k);
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

// The uses of a link: avg divides the finished chunk, premul_sum multiplies the input to the ring.
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

// Runs `body` with the loops of each instruction set that this CPU and this build have.
template <class F>
void each_isa(F&& body) {
  for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512bf16})
    if (const Kernels* k = kernels_for(isa)) body(*k);
}

TEST_CASE("the loops of some instruction sets are present") {
  CHECK(kernels_for(Isa::baseline) != nullptr);
  each_isa([](const Kernels& k) { std::printf("  tested: %s\n", k.isa); });
  std::printf("  in use: %s\n", kernels().isa);
}

TEST_CASE("the loops reduce and scale like single elements") {
  each_isa([](const Kernels& k) { each_dtype([&](auto tag) { test_dtype<tag.value>(k); }); });
}

TEST_CASE("a reducer calls the loops of its reduction") { each_isa(test_reducer); }

TEST_CASE("wide sums are in floats") { each_isa(test_what_is_wide); }

TEST_CASE("a norm has the bits of its definition") { each_isa(test_norms); }

TEST_CASE("elements are copied to one place or two") { test_copy_two(); }

}  // namespace
}  // namespace ringkern::test
