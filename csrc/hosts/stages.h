// How an all-reduce over several hosts is cut: in pieces that follow each other, so that one is
// between the hosts while another is inside; and each piece in shards, one for each rail.
//
// A rail joins the ranks of one number, one of each host. Pure, as core/plan.h.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace ringkern {

// Elements from `offset` on: `rails` shards of `shard` elements behind each other.
struct Stage {
  int64_t offset = 0;
  int64_t shard = 0;
  int rails = 1;

  constexpr int64_t count() const { return shard * rails; }
};

// What crosses between hosts costs, as far as the cut goes by it; all ranks have it alike.
struct InterHostCost {
  // An engine takes its time for each step of a message, however short, and more for each further
  // rail where its threads have no core of their own. So all rails are worth it from so many bytes
  // on, for each rail and host ...
  int64_t rail_bytes = 3 << 19;
  // ... and one more piece from so many on, for each step, with the square: each costs its steps
  // again, and all together save no more than what one host's ring takes.
  int64_t piece_bytes = 1 << 20;
  bool tree = false;  // an engine that takes few steps where there are many hosts
};

struct Stages {
  // Beyond, what is left to hide is less than 1/16 of what the ring takes.
  static constexpr int64_t kMost = 16;
  // Shards begin at whole lines of a cache where a tensor does.
  static constexpr int64_t kGrainBytes = 64;
  // The ring waits for a piece when it has handed on this many after it.
  static constexpr int kUnderWay = 2;
  // Up to this many bytes every rank has the sum as soon as one.
  static constexpr int64_t kLittleBytes = 64 << 10;

  int rails = 1;
  int64_t count = 0;  // elements
  int64_t shard = 0;  // of every piece with all rails, but for the last one
  int64_t whole = 0;  // elements that are cut in as many shards as there are rails
  int64_t long_stages = 0;

  // `most_rails`: ranks of the smallest host; `inside`: some host has several.
  static constexpr Stages make(int64_t count, int element_bytes, int most_rails, int hosts,
                               bool inside, const InterHostCost& crossing) {
    Stages p;
    const int64_t bytes = count * element_bytes;
    p.count = count;
    p.rails = bytes < most_rails * hosts * crossing.rail_bytes ? 1 : most_rails;
    p.whole = count / p.rails * p.rails;
    if (p.whole == 0) return p;
    const int64_t each = p.whole / p.rails;  // elements that go over one rail
    const int64_t pieces = inside ? number_for(bytes, hosts, crossing) : 1;
    const int64_t grain = kGrainBytes / element_bytes;
    p.shard = (each + pieces - 1) / pieces;
    p.shard = (p.shard + grain - 1) / grain * grain;
    p.long_stages = (each + p.shard - 1) / p.shard;
    return p;
  }

  // What is left over when the rest is cut in equal shards is a piece for one rail, and the first,
  // so that nobody waits for it at the end.
  constexpr bool has_rest() const { return whole < count; }
  constexpr int64_t number() const { return long_stages + (has_rest() ? 1 : 0); }

  constexpr Stage piece(int64_t i) const {
    if (has_rest() && i-- == 0) return {whole, count - whole, 1};
    const int64_t offset = i * shard * rails, left = whole - offset;
    return {offset, left < shard * rails ? left / rails : shard, rails};
  }

 private:
  static constexpr int64_t number_for(int64_t bytes, int hosts, const InterHostCost& crossing) {
    // Of a call; its start counts as one.
    int64_t steps = hosts;
    if (crossing.tree)
      for (steps = 0; hosts >> steps > 0;) ++steps;
    int64_t n = 1;
    while (n < kMost && (n + 1) * (n + 1) * steps * crossing.piece_bytes <= bytes) ++n;
    return n;
  }
};

}  // namespace ringkern
