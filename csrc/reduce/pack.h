// The arithmetic of the ring on whole words, which one thread of a CUDA kernel combines at once.
//
// A word is 8 bytes of elements, the data of an LL line. A pack is 16 bytes, the widest access of
// the kernels: any structure of two words, `lo` and `hi`. Each element gets the bits that `combine`
// and `scale` of reduce/ops.h give it. The rest of a partly filled word is computed as well, which
// does no harm.
#pragma once

#include "reduce/ops.h"

namespace ringkern {

// The elements of a word.
template <class T>
struct Lanes {
  static constexpr int kCount = int(sizeof(uint64_t) / sizeof(T));
  T at[kCount];
};

#if defined(__CUDA_ARCH__)
// Instructions that compute two or four elements at once, where they give the bits of `combine`:
// all return the one NaN, and min and max take -0 to be less than +0. `combine` goes through a
// float, while these do not (f16, bf16) or go through an f16 (fp8): rounding twice equals rounding
// once if the number in between has more than twice the bits. This does not hold for products of
// bf16: next to zero a float, which has the same exponents, has no bits to spare.
namespace device {

template <Combine C, class T>
constexpr bool has_quick_combine() {
  constexpr bool extreme = C == Combine::min || C == Combine::max;
  if constexpr (std::is_integral_v<T>) return sizeof(T) == 1 && extreme;
  if constexpr (std::is_same_v<T, f16_t>) return true;
  if constexpr (std::is_same_v<T, bf16_t>) return C != Combine::prod;
  if constexpr (std::is_same_v<T, e5m2_t>) return !extreme;
#if __CUDA_ARCH__ >= 890
  if constexpr (std::is_same_v<T, e4m3_t>) return !extreme;
#endif
  return false;
}

template <Combine C, class Two>
RK_INLINE Two combine_two(Two x, Two y) {
  if constexpr (C == Combine::sum) return __hadd2_rn(x, y);
  if constexpr (C == Combine::prod) return __hmul2_rn(x, y);
  if constexpr (C == Combine::min) return __hmin2_nan(x, y);
  if constexpr (C == Combine::max) return __hmax2_nan(x, y);
}

// Half a word of fp8 is two pairs of f16. An e5m2 is the upper byte of an f16.
template <class T>
RK_INLINE __half2 halves_of(uint32_t four, bool upper) {
  if constexpr (std::is_same_v<T, e5m2_t>) {
    return bits_as<__half2>(__byte_perm(four, 0, upper ? 0x3424 : 0x1404));
  } else {
    return __half2(__nv_cvt_fp8x2_to_halfraw2(uint16_t(upper ? four >> 16 : four), __NV_E4M3));
  }
}
template <class T>
RK_INLINE uint32_t four_of(__half2 lower, __half2 upper) {
  if constexpr (std::is_same_v<T, e5m2_t>) {
    auto rounded = [](__half2 x) {
      const uint32_t h = bits_as<uint32_t>(x), nan = __vcmpeq2(h, 0x7fff7fffu);
      return h + ((0x007f007fu + (h >> 8 & 0x00010001u)) & ~nan);
    };
    return __byte_perm(rounded(lower), rounded(upper), 0x7531);
  } else {
    const uint32_t low = __nv_cvt_halfraw2_to_fp8x2(lower, __NV_SATFINITE, __NV_E4M3);
    return low | uint32_t(__nv_cvt_halfraw2_to_fp8x2(upper, __NV_SATFINITE, __NV_E4M3)) << 16;
  }
}

template <Combine C, class T>
RK_INLINE uint32_t quick_combine(uint32_t x, uint32_t y) {
  if constexpr (is_small_float<T> && sizeof(T) == 1) {
    const __half2 low = combine_two<C>(halves_of<T>(x, false), halves_of<T>(y, false));
    return four_of<T>(low, combine_two<C>(halves_of<T>(x, true), halves_of<T>(y, true)));
  } else if constexpr (is_small_float<T>) {
    using Two = std::conditional_t<std::is_same_v<T, f16_t>, __half2, __nv_bfloat162>;
    return bits_as<uint32_t>(combine_two<C>(bits_as<Two>(x), bits_as<Two>(y)));
  } else if constexpr (std::is_signed_v<T>) {
    return C == Combine::min ? __vmins4(x, y) : __vmaxs4(x, y);
  } else {
    return C == Combine::min ? __vminu4(x, y) : __vmaxu4(x, y);
  }
}

}  // namespace device
#endif

template <Combine C, class T>
RK_INLINE uint64_t combine_word(uint64_t incoming, uint64_t mine) {
  static_assert(combines<C, T>);
  if constexpr (is_bitwise(C)) {
    return combine_integer<C>(incoming, mine);
  } else if constexpr (C == Combine::sum && std::is_integral_v<T> && sizeof(T) == 1) {
    // Eight sums in one: without their top bits, no sum carries into the next.
    constexpr uint64_t top = 0x8080808080808080u;
    return ((incoming & ~top) + (mine & ~top)) ^ ((incoming ^ mine) & top);
  } else {
#if defined(__CUDA_ARCH__)
    if constexpr (device::has_quick_combine<C, T>()) {
      using device::quick_combine;
      const uint32_t low = quick_combine<C, T>(uint32_t(incoming), uint32_t(mine));
      const uint64_t high = quick_combine<C, T>(uint32_t(incoming >> 32), uint32_t(mine >> 32));
      return high << 32 | low;
    }
#endif
    const auto x = bits_as<Lanes<T>>(incoming), y = bits_as<Lanes<T>>(mine);
    Lanes<T> r;
    for (int i = 0; i < r.kCount; ++i) r.at[i] = combine<C>(x.at[i], y.at[i]);
    return bits_as<uint64_t>(r);
  }
}

template <Reduction::Scale S, class T>
RK_INLINE uint64_t scale_word(uint64_t word, wide_t<T> factor) {
  auto lanes = bits_as<Lanes<T>>(word);
  for (int i = 0; i < lanes.kCount; ++i) lanes.at[i] = scale<S>(lanes.at[i], factor);
  return bits_as<uint64_t>(lanes);
}

template <Combine C, class T, class P>
RK_INLINE P combine_pack(P incoming, P mine) {
  return P{combine_word<C, T>(incoming.lo, mine.lo), combine_word<C, T>(incoming.hi, mine.hi)};
}
template <Reduction::Scale S, class T, class P>
RK_INLINE P scale_pack(P pack, wide_t<T> factor) {
  return P{scale_word<S, T>(pack.lo, factor), scale_word<S, T>(pack.hi, factor)};
}

// ---- The same with the combine given at run time: this needs fewer kernels, and a switch per pack
// costs little next to its accesses to memory. For a combine that T lacks, they return `incoming`;
// integers have no scales.

#define RK_CASE(e)                                                               \
  case Combine::e:                                                               \
    if constexpr (combines<Combine::e, T>) return RK_EACH(Combine::e);      \
    break;

template <class T>
RK_INLINE uint64_t combine_word(Combine c, uint64_t incoming, uint64_t mine) {
#define RK_EACH(e) combine_word<e, T>(incoming, mine)
  switch (c) { RK_COMBINES(RK_CASE) }
#undef RK_EACH
  return incoming;
}
template <class T, class P>
RK_INLINE P combine_pack(Combine c, P incoming, P mine) {
#define RK_EACH(e) combine_pack<e, T>(incoming, mine)
  switch (c) { RK_COMBINES(RK_CASE) }
#undef RK_EACH
  return incoming;
}
#undef RK_CASE

template <class T>
RK_INLINE uint64_t scale_word(Reduction::Scale s, uint64_t word, wide_t<T> factor) {
  if constexpr (!std::is_integral_v<T>) {
    using enum Reduction::Scale;
    if (s == multiply_input) return scale_word<multiply_input, T>(word, factor);
    if (s == divide_result) return scale_word<divide_result, T>(word, factor);
  }
  return word;
}
template <class T, class P>
RK_INLINE P scale_pack(Reduction::Scale s, P pack, wide_t<T> factor) {
  return P{scale_word<T>(s, pack.lo, factor), scale_word<T>(s, pack.hi, factor)};
}

}  // namespace ringkern
