// A call, encoded in two words that all ranks must have equal. The encoding is exact: calls with
// equal words are the same call. CallLine is the memory in which a rank shows its call to the
// others.
#pragma once

#include "core/types.h"

namespace ringkern {

struct CallWords {
  uint64_t what = 0;
  int64_t count = 0;  // in elements of the dtype

  constexpr bool operator==(const CallWords&) const = default;
};

// Returns a hash of all calls of a ring up to `last`, in order. Ranks with equal hashes have made
// the same calls, so no data of an earlier call is left between them.
constexpr uint64_t history_of(uint64_t before, const CallWords& last) {
  uint64_t h = (before ^ last.what) * 0x9e3779b97f4a7c15;
  h = (h ^ h >> 32 ^ uint64_t(last.count)) * 0xd6e8feb86659fd93;
  return h ^ h >> 32;
}

// A bit of `what`: the call spans hosts, and the ring runs one step of it.
inline constexpr uint64_t kSpansHosts = uint64_t(1) << 31;

// The fields of `what`, from its lowest bit up.
inline constexpr int kReductionBits = 4 + 3 + 2 + 1 + 1;  // dtype, combine, scale, wide, tree

constexpr uint64_t reduction_bits(const Reduction& r) {
  static_assert(kDTypes <= 16 && kCombines <= 8);
  return uint64_t(r.dtype) | uint64_t(r.combine) << 4 | uint64_t(r.scale) << 7 |
         uint64_t(r.wide) << 9 | uint64_t(r.tree) << 10;
}

// The factor of a scale is not included: it may differ between ranks. `moved` is an index of
// kMoved.
constexpr CallWords words_of(Collective collective, const Reduction& reduction, Algorithm algorithm,
                             Protocol protocol, int root, int64_t count, int moved = 0) {
  static_assert(kCollectives <= 16 && kAlgorithms <= 4 && kProtocols <= 4 && kMovedDTypes <= 64);
  return {reduction_bits(reduction) | uint64_t(collective) << kReductionBits |
              uint64_t(algorithm) << (kReductionBits + 4) |
              uint64_t(protocol) << (kReductionBits + 6) | uint64_t(moved) << (kReductionBits + 8) |
              uint64_t(root) << 32,
          count};
}

// The decoded fields. The words may come from another process, so the reader must check the ranges.
struct CallFields {
  unsigned dtype, combine, scale, wide, tree;
  unsigned collective, algorithm, protocol, moved, spans_hosts, root;
};
constexpr CallFields fields_of(uint64_t what) {
  const auto bits = [&](int at, int n) { return unsigned(what >> at & ((uint64_t(1) << n) - 1)); };
  return {bits(0, 4),
          bits(4, 3),
          bits(7, 2),
          bits(9, 1),
          bits(10, 1),
          bits(kReductionBits, 4),
          bits(kReductionBits + 4, 2),
          bits(kReductionBits + 6, 2),
          bits(kReductionBits + 8, 6),
          bits(31, 1),
          bits(32, 32)};
}

constexpr uint64_t with_root(uint64_t what, int root) {
  return (what & 0xffffffff) | uint64_t(uint32_t(root)) << 32;
}

// A call in the memory of its rank, which is the only writer. Other ranks compare it with theirs,
// and failure reports are made from it.
struct alignas(64) CallLine {
  uint64_t seq;  // number on this ring, from 1; written last, 0 while the other fields change
  uint64_t what;
  int64_t count;
  int64_t started;      // CLOCK_MONOTONIC, in ns; the watch's last reading, up to 0.2 s old
  int64_t ended;        // 0: not yet
  uint64_t history;     // history_of this call
  uint64_t whole_what;  // the call of which this is a step; 0: none
  int64_t whole_count;
};
static_assert(sizeof(CallLine) == 64);

// Number of recent calls that a rank shows. With 32 lines, calls of some KB take a tenth longer:
// each call writes the next line, and 32 lines fill more of the cache.
inline constexpr int kCallLines = 16;

}  // namespace ringkern
