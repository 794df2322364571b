// The arithmetic of the ring on whole words: what one thread of a CUDA kernel combines at once.
//
// A word is 8 bytes of elements, what an LL line carries. A pack is 16 bytes, the widest access of a
// GPU: any structure of two words, `lo` and `hi`. Both give each element the bits that `combine` and
// `scale` of reduce/ops.h give it. Bytes that belong to no element (a word filled in part) are
// computed on as well, which does no harm.
#pragma once

#include "reduce/ops.h"

namespace ringkern {

struct alignas(16) Pack {
  uint64_t lo, hi;
};

// The elements of a word.
template <class T>
struct Lanes {
  static constexpr int kCount = int(sizeof(uint64_t) / sizeof(T));
  T at[kCount];
};

#if defined(__CUDA_ARCH__)
// Instructions that do several elements at once, where they give the bits of `combine`. Sums: the
// float that `combine` goes through has so many more bits than the operands that rounding to it
// first changes nothing, which cannot be said of products. All of these end in the one NaN, and min
// and max take -0 to be less than +0.
namespace device {

template <class T>
inline constexpr bool is_16_bit_float = is_small_float<T> && sizeof(T) == 2;

template <Combine C, class T>
inline constexpr bool has_quick_combine =
    is_16_bit_float<T> ? C == Combine::sum || C == Combine::min || C == Combine::max
                       : std::is_integral_v<T> && sizeof(T) == 1 &&
                             (C == Combine::min || C == Combine::max);

template <Combine C, class T>
RK_INLINE uint32_t quick_combine(uint32_t incoming, uint32_t mine) {
  if constexpr (is_16_bit_float<T>) {
    using Two = std::conditional_t<std::is_same_v<T, f16_t>, __half2, __nv_bfloat162>;
    const Two x = bits_as<Two>(incoming), y = bits_as<Two>(mine);
    if constexpr (C == Combine::sum) return bits_as<uint32_t>(__hadd2_rn(x, y));
    if constexpr (C == Combine::min) return bits_as<uint32_t>(__hmin2_nan(x, y));
    if constexpr (C == Combine::max) return bits_as<uint32_t>(__hmax2_nan(x, y));
  } else if constexpr (std::is_signed_v<T>) {
    return C == Combine::min ? __vmins4(incoming, mine) : __vmaxs4(incoming, mine);
  } else {
    return C == Combine::min ? __vminu4(incoming, mine) : __vmaxu4(incoming, mine);
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
    // Eight sums in one: without their top bits, none carries into the next.
    constexpr uint64_t top = 0x8080808080808080u;
    return ((incoming & ~top) + (mine & ~top)) ^ ((incoming ^ mine) & top);
  } else {
#if defined(__CUDA_ARCH__)
    if constexpr (device::has_quick_combine<C, T>) {
      const uint32_t lo = device::quick_combine<C, T>(uint32_t(incoming), uint32_t(mine));
      const uint32_t hi =
          device::quick_combine<C, T>(uint32_t(incoming >> 32), uint32_t(mine >> 32));
      return uint64_t(hi) << 32 | lo;
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

// ---- The same, told at run time: kernels are then fewer, and a switch a pack costs little next to
// the pack's journey through memory. Asked for a combine that T lacks, they return `incoming`;
// integers have no scales.

#define RK_CASE(e)                                                          \
  case Combine::e:                                                          \
    if constexpr (combines<Combine::e, T>) return RK_EACH(Combine::e); \
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
