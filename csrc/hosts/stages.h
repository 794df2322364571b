// Cuts an all-reduce over several hosts into pipeline stages (Stage), so that one stage is between
// hosts while another is inside. Each stage is cut into shards, one per rail.
//
// A rail joins the ranks with the same local number, one of each host. Pure functions, like
// core/plan.h.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace ringkern {

// A pipeline stage: `rails` consecutive shards of `shard` elements each, from `offset` on.
struct Stage {
  int64_t offset = 0;
  int64_t shard = 0;
  int rails = 1;

  constexpr int64_t count() const { return shard * rails; }
};

// The inter-host costs that determine the cut; equal on all ranks.
struct InterHostCost {
  // An engine needs time for each step of a message, even a short one, and more for each further
  // rail if its threads have no core of their own. From this many bytes per rail and host, all
  // rails are used.
  int64_t rail_bytes = 3 << 19;
  // Every stage repeats the steps, and all stages together save at most the time of the ring inside
  // one host. So the bytes that justify n stages grow with n squared: n * n times this, per step.
  int64_t stage_bytes = 1 << 20;
  bool tree = false;  // the engine takes about log2(hosts) steps instead of one per host
};

struct Stages {
  // With more stages, the time left to hide is less than 1/16 of the time of the ring.
  static constexpr int64_t kMost = 16;
  // If a tensor starts at a cache line, so do its shards.
  static constexpr int64_t kGrainBytes = 64;
  // The ring waits for a stage after it has handed on this many later ones.
  static constexpr int kUnderWay = 2;
  // Up to this many bytes, the step inside the host gives every rank the whole sum.
  static constexpr int64_t kLittleBytes = 64 << 10;

  int rails = 1;
  int64_t count = 0;  // elements
  int64_t shard = 0;  // elements per shard of every stage with all rails, except the last
  int64_t whole = 0;  // elements that divide evenly among the rails
  int64_t long_stages = 0;

  // `most_rails`: ranks of the smallest host. `inside`: some host has several ranks.
  static constexpr Stages make(int64_t count, int element_bytes, int most_rails, int hosts,
                               bool inside, const InterHostCost& cost) {
    Stages p;
    const int64_t bytes = count * element_bytes;
    p.count = count;
    p.rails = bytes < most_rails * hosts * cost.rail_bytes ? 1 : most_rails;
    p.whole = count / p.rails * p.rails;
    if (p.whole == 0) return p;
    const int64_t each = p.whole / p.rails;  // elements per rail
    const int64_t stages = inside ? number_for(bytes, hosts, cost) : 1;
    const int64_t grain = kGrainBytes / element_bytes;
    p.shard = (each + stages - 1) / stages;
    p.shard = (p.shard + grain - 1) / grain * grain;
    p.long_stages = (each + p.shard - 1) / p.shard;
    return p;
  }

  // Elements that do not divide evenly form a stage for one rail. It goes first, so that no rank
  // waits for it at the end.
  constexpr bool has_rest() const { return whole < count; }
  constexpr int64_t number() const { return long_stages + (has_rest() ? 1 : 0); }

  constexpr Stage at(int64_t i) const {
    if (has_rest() && i-- == 0) return {whole, count - whole, 1};
    const int64_t offset = i * shard * rails, left = whole - offset;
    return {offset, left < shard * rails ? left / rails : shard, rails};
  }

 private:
  static constexpr int64_t number_for(int64_t bytes, int hosts, const InterHostCost& cost) {
    // Steps of one call between hosts.
    int64_t steps = hosts;
    if (cost.tree)
      for (steps = 0; hosts >> steps > 0;) ++steps;
    int64_t n = 1;
    while (n < kMost && (n + 1) * (n + 1) * steps * cost.stage_bytes <= bytes) ++n;
    return n;
  }
};

}  // namespace ringkern
