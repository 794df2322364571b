// The loops of a CPU, written for the compiler to turn into vector code. Compiled once for each
// instruction set: RK_ISA is the namespace of a copy, RK_ISA_NAME its name.

// GCC assumes that a floating-point operation may trap, and then does not vectorise a loop with a
// choice after one.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math")
#endif

#include "cpu/simd.h"

#include <cmath>

#include "cpu/simd_vectors.h"

// A destination may be equal to a source, so elements are independent. Without this, the compiler
// compares the pointers at run time and runs such calls through a loop of single elements.
#if defined(__clang__)
#define RK_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RK_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace ringkern::RK_ISA {
namespace {

// An element at any address. Small floats are read as their integers, because a structure cannot be
// an element of a vector.
template <class T>
struct Raw {
  using type = T;
};
template <class Bits, int... parameters>
struct Raw<SmallFloat<Bits, parameters...>> {
  using type = Bits;
};
template <class T>
struct __attribute__((packed, may_alias)) Unaligned {
  typename Raw<T>::type raw;

  RK_INLINE T get() const { return bits_as<T>(raw); }
  RK_INLINE void set(T x) { raw = bits_as<typename Raw<T>::type>(x); }
};

template <Combine C, class T>
void reduce(void* out, void* next, const void* incoming, const void* mine, int64_t n) {
  if constexpr (is_small_float<T> && (C == Combine::sum || C == Combine::prod)) {
    return by_vectors<T>(out, next, incoming, mine, n, [](Floats x, Floats y) {
      if constexpr (C == Combine::sum) return x + y;
      else return x * y;
    });
  } else {
    auto* const to = static_cast<Unaligned<T>*>(out);
    auto* const to_next = static_cast<Unaligned<T>*>(next);
    auto* const a = static_cast<const Unaligned<T>*>(incoming);
    auto* const b = static_cast<const Unaligned<T>*>(mine);
    if (next) {
      RK_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) {
        const T r = combine<C>(a[i].get(), b[i].get());
        to[i].set(r);
        to_next[i].set(r);
      }
    } else {
      RK_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) to[i].set(combine<C>(a[i].get(), b[i].get()));
    }
  }
}

template <Reduction::Scale S, class T>
void scale_all(void* out, const void* in, int64_t n, double factor) {
  const auto wide = static_cast<wide_t<T>>(factor);
  if constexpr (is_small_float<T>) {
    by_vectors<T>(out, nullptr, in, in, n, [wide](Floats x, Floats) {
      if constexpr (S == Reduction::Scale::multiply_input) return x * wide;
      else return x / wide;
    });
  } else {
    auto* const to = static_cast<Unaligned<T>*>(out);
    auto* const from = static_cast<const Unaligned<T>*>(in);
    RK_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) to[i].set(scale<S>(from[i].get(), wide));
  }
}

template <class T>
void widen(float* partial, const void* in, int64_t n) {
  widen_by_vectors<T>(in, n, [=](int64_t i, Floats x) { store_partial(partial + i, x); });
}
template <Combine C, class T>
void add_wide(float* partial, const void* in, int64_t n) {
  widen_by_vectors<T>(in, n, [=](int64_t i, Floats x) {
    const Floats so_far = load_partial(partial + i);
    store_partial(partial + i, C == Combine::sum ? so_far + x : so_far * x);
  });
}
void add_partials(float* partial, const float* other, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes)
    store_partial(partial + i, load_partial(partial + i) + load_partial(other + i));
}
template <bool divided, class T>
void narrow(void* out, const float* partial, int64_t n, double divisor) {
  const auto by = static_cast<float>(divisor);
  narrow_by_vectors<T>(out, n, [=](int64_t i) {
    const Floats x = load_partial(partial + i);
    if constexpr (divided) return x / by;
    else return x;
  });
}

template <class T>
RK_INLINE Floats vector_at(const char* p) {
  if constexpr (is_small_float<T>) return load_floats<T>(p);
  else return load_partial(reinterpret_cast<const float*>(p));
}

template <class T>
float sum_of_squares(const void* in, int64_t n) {
  constexpr int64_t bytes = sizeof(T);
  Floats partial[kSquareSums / kLanes] = {};
  const auto add_some = [&](const char* x) {
    for (int j = 0; j < kSquareSums / kLanes; ++j) {
      const Floats v = vector_at<T>(x + j * kLanes * bytes);
      partial[j] += v * v;
    }
  };
  const char* const x = static_cast<const char*>(in);
  int64_t i = 0;
  for (; i + kSquareSums <= n; i += kSquareSums) add_some(x + i * bytes);
  if (i < n) {  // zeros add nothing
    char last[kSquareSums * bytes] = {};
    memcpy(last, x + i * bytes, size_t((n - i) * bytes));
    add_some(last);
  }
  float sums[kSquareSums];
  memcpy(sums, partial, sizeof sums);
  for (int half = kSquareSums / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
  return sums[0];
}

template <class T>
void add_rms_norm(void* out, void* sum, const void* residual, const void* weight, int64_t n,
                  float eps) {
  reduce<Combine::sum, T>(sum, nullptr, sum, residual, n);
  const float scale = 1 / std::sqrt(sum_of_squares<T>(sum, n) / float(n) + eps);
  if constexpr (is_small_float<T>) {
    by_vectors<T>(out, nullptr, sum, weight, n,
                  [scale](Floats x, Floats w) { return x * scale * w; });
  } else {
    auto* const to = static_cast<Unaligned<T>*>(out);
    auto* const x = static_cast<const Unaligned<T>*>(sum);
    auto* const w = static_cast<const Unaligned<T>*>(weight);
    RK_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) to[i].set(one_nan(x[i].get() * scale * w[i].get()));
  }
}

template <DType D>
constexpr void add(Kernels& k) {
  using T = storage_t<D>;
#define RK_ADD(c) \
  if constexpr (combines<Combine::c, T>) k.reduce[int(D)][int(Combine::c)] = &reduce<Combine::c, T>;
  RK_COMBINES(RK_ADD)
#undef RK_ADD
  if constexpr (!std::is_integral_v<T>) {
    k.multiply[int(D)] = &scale_all<Reduction::Scale::multiply_input, T>;
    k.divide[int(D)] = &scale_all<Reduction::Scale::divide_result, T>;
  }
  if constexpr (is_small_float<T>) {
    static_assert(kLanes <= kPartialRoom + 1);
    k.widen[int(D)] = &widen<T>;
    k.add_wide[int(D)][int(Combine::sum)] = &add_wide<Combine::sum, T>;
    k.add_wide[int(D)][int(Combine::prod)] = &add_wide<Combine::prod, T>;
    k.narrow[int(D)] = &narrow<false, T>;
    k.narrow_divided[int(D)] = &narrow<true, T>;
  }
  if constexpr (D == DType::f32 || D == DType::f16 || D == DType::bf16)
    k.add_rms_norm[int(D)] = &add_rms_norm<T>;
}

constexpr Kernels make() {
  Kernels k;
  k.isa = RK_ISA_NAME;
  k.add_partials = &add_partials;
#define RK_ADD(e, ...) add<DType::e>(k);
  RK_DTYPES(RK_ADD)
#undef RK_ADD
  return k;
}

}  // namespace

extern constexpr Kernels table = make();

}  // namespace ringkern::RK_ISA
