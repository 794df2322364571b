// Moves the bytes of a chunk: from one source, or from two that are combined, to one or two
// destinations.
//
// FIFOs are always aligned, and are read and written 16 bytes at a time. The user's tensors may
// begin and end anywhere: where they do not allow 16-byte accesses, the elements are moved one by
// one, into and out of the same 16-byte packs. Nothing outside the tensors is touched. The thread
// that writes a byte of the output is the one that reads that byte of the input, so the two may be
// the same.
#pragma once

#include "cuda/link.cuh"
#include "reduce/pack.h"

namespace ringkern::cuda {

// The arithmetic of one collective on elements of type T: the sum, or the combine of `reduction`.
template <class T_, bool sum>
class Arithmetic {
 public:
  using T = T_;
  static constexpr int kBytes = int(sizeof(T));
  // Scales belong to sums of floats.
  static constexpr bool kScales = sum && !std::is_integral_v<T>;
  static constexpr bool kWidens = is_small_float<T>;

  RK_DEVICE explicit Arithmetic(const Reduction& reduction)
      : combine_(reduction.combine), scale_(reduction.scale), wide_(reduction.wide),
        factor_(wide_t<T>(reduction.factor)) {}

  template <class Word>
  RK_DEVICE Word combine(Word incoming, Word mine) const {
    if constexpr (std::is_same_v<Word, uint64_t>) {
      if constexpr (sum) return combine_word<Combine::sum, T>(incoming, mine);
      return combine_word<T>(combine_, incoming, mine);
    } else {
      return {combine(incoming.lo, mine.lo), combine(incoming.hi, mine.hi)};
    }
  }

  // Return true if `verb` multiplies its input, or divides its result.
  RK_DEVICE bool multiplies(Verb verb) const {
    return kScales && scale_ == Reduction::Scale::multiply_input && reads_input(verb);
  }
  RK_DEVICE bool divides(Verb verb) const {
    return kScales && scale_ == Reduction::Scale::divide_result && finishes(verb);
  }
  // The same, called only where a verb reads its input, or where its result is complete.
  RK_DEVICE bool multiplies() const {
    return kScales && scale_ == Reduction::Scale::multiply_input;
  }
  RK_DEVICE bool divides() const { return kScales && scale_ == Reduction::Scale::divide_result; }
  template <class Word>
  RK_DEVICE Word multiply(Word w) const {
    return scale<Reduction::Scale::multiply_input>(w);
  }
  template <class Word>
  RK_DEVICE Word divide(Word w) const {
    return scale<Reduction::Scale::divide_result>(w);
  }

  // True if the elements of a word are combined in floats, which are rounded once.
  RK_DEVICE bool widens() const { return kWidens && wide_; }
  struct Partial {
    float at[kWidens ? 8 / kBytes : 1];
  };
  // Returns the neutral element of the sum or the product. In a sum, -0 also keeps the sign of a
  // zero.
  RK_DEVICE static Partial nothing() {
    Partial partial{};
    for (float& x : partial.at) x = sum ? -0.0f : 1.0f;
    return partial;
  }
  RK_DEVICE static void add(Partial& partial, uint64_t word) {
    if constexpr (kWidens) {
      const auto lanes = bits_as<Lanes<T>>(word);
      for (int i = 0; i < lanes.kCount; ++i) {
        const float x = to_float(lanes.at[i]);
        partial.at[i] = sum ? partial.at[i] + x : partial.at[i] * x;
      }
    }
  }
  // The sum of some ranks' words, which is added to another one (core/tree.h).
  using Node = std::conditional_t<kWidens, Partial, uint64_t>;
  RK_DEVICE static Node node_of(uint64_t word) {
    if constexpr (kWidens) {
      Partial partial = nothing();
      add(partial, word);
      return partial;
    } else {
      return word;
    }
  }
  RK_DEVICE Node sum_of(const Node& left, const Node& right) const {
    if constexpr (kWidens) {
      Partial partial = left;
      for (int i = 0; i < 8 / kBytes; ++i) partial.at[i] += right.at[i];
      return partial;
    } else {
      return combine(left, right);
    }
  }
  // Divides if `verb` does, and rounds. One division in the code, as in `scale`.
  RK_DEVICE uint64_t narrow(Partial partial, Verb verb) const {
    uint64_t word = 0;
    if constexpr (kWidens) {
      constexpr int bits = 8 * kBytes, count = 64 / bits;
      RK_NO_UNROLL for (int i = 0; i < count; ++i) {
        const float x = divides(verb) ? partial.at[0] / factor_ : partial.at[0];
        word = word >> bits | bits_of(from_float<T>(x)) << (64 - bits);
        for (int j = 1; j < count; ++j) partial.at[j - 1] = partial.at[j];
      }
    }
    return word;
  }

 private:
  // Keeps one division in the code, not one for each element: the loop rotates the word.
  template <Reduction::Scale S>
  RK_DEVICE uint64_t scale(uint64_t word) const {
    if constexpr (kScales) {
      constexpr int bits = 8 * kBytes;
      RK_NO_UNROLL for (int i = 0; i < 64 / bits; ++i) {
        const uint64_t scaled = bits_of(ringkern::scale<S>(element_of(word), factor_));
        word = (word >> (bits - 1) >> 1) | scaled << (64 - bits);
      }
    }
    return word;
  }
  template <Reduction::Scale S>
  RK_DEVICE Words scale(Words w) const {
    return {scale<S>(w.lo), scale<S>(w.hi)};
  }

  template <int bytes, class Narrow, class Wide>
  using If = std::conditional_t<kBytes == bytes, Narrow, Wide>;
  using Bits = If<1, uint8_t, If<2, uint16_t, If<4, uint32_t, uint64_t>>>;
  RK_DEVICE static T element_of(uint64_t word) { return bits_as<T>(Bits(word)); }
  RK_DEVICE static uint64_t bits_of(T element) { return bits_as<Bits>(element); }

  const Combine combine_;
  const Reduction::Scale scale_;
  const bool wide_;
  const wide_t<T> factor_;
};

// ---- The user's memory, up to 16 or 8 bytes at a time

RK_DEVICE bool aligned(const void* a, const void* b, int bytes) {
  return ((uint64_t(a) | uint64_t(b)) & uint64_t(bytes - 1)) == 0;
}

// Loads the first `left` bytes at p, at most a word, element by element; the rest of the word is
// zero.
template <int element, int at = 0>
RK_DEVICE uint64_t load_elements(const std::byte* p, int left) {
  if constexpr (at < 8) {
    const uint64_t e = at < left ? ld_weak<element, at>(p) << (8 * at) : 0;
    return e | load_elements<element, at + element>(p, left);
  }
  return 0;
}
template <int element, int at = 0>
RK_DEVICE void store_elements(std::byte* p, uint64_t word, int left) {
  if constexpr (at < 8) {
    if (at < left) st_weak<element, at>(p, word >> (8 * at));
    store_elements<element, at + element>(p, word, left);
  }
}

// Loads word `i` of a span of `bytes` bytes. `whole`: p allows accesses of a word.
template <int element>
RK_DEVICE uint64_t load_word(const std::byte* p, int i, bool whole, int bytes) {
  const int left = bytes - 8 * i;
  const std::byte* at = p + 8 * i;
  return whole && left >= 8 ? ld_weak<8>(at) : load_elements<element>(at, left);
}
template <int element>
RK_DEVICE void store_word(std::byte* p, int i, bool whole, int bytes, uint64_t word) {
  const int left = bytes - 8 * i;
  std::byte* at = p + 8 * i;
  if (whole && left >= 8) return st_weak<8>(at, word);
  store_elements<element>(at, word, left);
}

// Loads a pack at p, of which `left` bytes belong to the tensor. `whole`: p allows an access of 16
// bytes.
template <int element>
RK_DEVICE Words load_pack(const std::byte* p, bool whole, int left) {
  if (whole && left >= 16) return ld_weak16(p);
  return {load_elements<element>(p, left), load_elements<element>(p + 8, left - 8)};
}
template <int element>
RK_DEVICE void store_pack(std::byte* p, Words v, bool whole, int left) {
  if (whole && left >= 16) return st_weak16(p, v);
  store_elements<element>(p, v.lo, left);
  store_elements<element>(p + 8, v.hi, left - 8);
}

// ---- A slice (Simple)

// Sources and destinations of a slice. Unused pointers are null.
struct Block {
  const std::byte* incoming = nullptr;  // from prev
  const std::byte* in = nullptr;        // the rank's own input
  std::byte* out = nullptr;             // the rank's output
  std::byte* to = nullptr;              // for next
  int bytes = 0;
};

// The unit that a warp moves at once: several packs per lane, whose loads are issued before the
// first is used. A pack of 8-bit floats needs more registers, so that there is room for fewer
// packs.
inline constexpr int kRow = 16 * kWarp;  // bytes
template <class A>
inline constexpr int rows_of = is_small_float<typename A::T> && A::kBytes == 1 ? 2 : 4;

template <int rows>
struct Tile {
  static constexpr int kBytes = rows * kRow;
  Words row[rows];

  RK_DEVICE void load(const std::byte* p) {
    for_each([&](auto i) { row[i] = ld_weak16<i * kRow>(p); });
  }
  RK_DEVICE void store(std::byte* p) const {
    for_each([&](auto i) { st_weak16<i * kRow>(p, row[i]); });
  }
  // The same for the user's memory, so that the L2 keeps the FIFOs.
  RK_DEVICE void load_user(const std::byte* p) {
    for_each([&](auto i) { row[i] = ld_stream16<i * kRow>(p); });
  }
  RK_DEVICE void store_user(std::byte* p) const {
    for_each([&](auto i) { st_stream16<i * kRow>(p, row[i]); });
  }

  // Calls f(0), f(1), ... with constants, so that a tile stays in registers, and the offsets of its
  // rows are part of the instructions.
  template <class F>
  RK_DEVICE static void for_each(F f) {
    static_assert(rows == 2 || rows == 4);
    f(Constant<0>{}), f(Constant<1>{});
    if constexpr (rows == 4) f(Constant<2>{}), f(Constant<3>{});
  }
  template <int i>
  using Constant = std::integral_constant<int, i>;
};

// Moves all whole tiles; returns the number of bytes. Called by every worker.
template <class A>
RK_DEVICE int move_tiles(const A& arithmetic, const Block& b) {
  using Tile = Tile<rows_of<A>>;
  const int end = b.bytes / Tile::kBytes * Tile::kBytes;
  const int step = worker_count() / kWarp * Tile::kBytes;
  RK_NO_UNROLL for (int first = warp_index() * Tile::kBytes; first < end; first += step) {
    const int at = first + 16 * lane_index();
    Tile value;
    if (b.in != nullptr) value.load_user(b.in + at);
    else value.load(b.incoming + at);
    if (b.in != nullptr && b.incoming != nullptr) {
      Tile incoming;
      incoming.load(b.incoming + at);
      Tile::for_each(
          [&](auto i) { value.row[i] = arithmetic.combine(incoming.row[i], value.row[i]); });
    }
    if (b.out != nullptr) value.store_user(b.out + at);
    if (b.to != nullptr) value.store(b.to + at);
  }
  return end;
}

// Moves a slice. Called by every worker. Data that the fast path cannot take is moved pack by pack:
// the rest behind the last whole tile, and all data that is scaled or in tensors that are not
// aligned.
template <class A>
RK_DEVICE void move(const A& arithmetic, Verb verb, const Block& b) {
  const bool whole = aligned(b.in, b.out, 16);
  const bool multiplies = arithmetic.multiplies(verb), divides = arithmetic.divides(verb);
  const int done = whole && !multiplies && !divides ? move_tiles(arithmetic, b) : 0;
  RK_NO_UNROLL for (int at = done + 16 * thread_index(); at < b.bytes; at += 16 * worker_count()) {
    const int left = b.bytes - at;
    Words value{};
    if (b.in != nullptr) {
      value = load_pack<A::kBytes>(b.in + at, whole, left);
      if (multiplies) value = arithmetic.multiply(value);
    }
    if (b.incoming != nullptr) {
      const Words incoming = ld_weak16(b.incoming + at);
      value = b.in != nullptr ? arithmetic.combine(incoming, value) : incoming;
      if (divides) value = arithmetic.divide(value);
    }
    if (b.out != nullptr) store_pack<A::kBytes>(b.out + at, value, whole, left);
    if (b.to != nullptr) st_weak16(b.to + at, value);
  }
}

}  // namespace ringkern::cuda
