// A link that moves nothing and writes down what it was asked to do. It proves the schedule without
// memory, and the pictures of the documentation are drawn from it.
#pragma once

#include <vector>

#include "core/schedule.h"

namespace ringkern {

struct TraceEntry {
  Verb verb;
  Chunk chunk;
  int slices;  // slots the verb takes, at each end that it touches
};

struct TraceLink {
  std::vector<TraceEntry> entries;

  Verdict perform(Verb verb, const Plan& plan, const Chunk& chunk) {
    entries.push_back({verb, chunk, plan.slices(chunk.count)});
    return Verdict::ok;
  }
};

inline std::vector<TraceEntry> trace(const Plan& plan, int rank, int channel) {
  TraceLink link;
  if (plan.ranks > 1) run_schedule(plan, rank, channel, link);
  return link.entries;
}

}  // namespace ringkern
