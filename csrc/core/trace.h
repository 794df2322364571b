// A link that moves no data and records the verbs that it is given. Tests check the schedule with
// it, and the pictures of the documentation are drawn from it.
#pragma once

#include <vector>

#include "core/direct.h"
#include "core/schedule.h"

namespace ringkern {

struct TraceEntry {
  Verb verb;
  Chunk chunk;
  int slices;  // slots that the verb uses at each end that it touches
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

// The same for an all-reduce without the ring.
struct TraceMesh {
  struct Entry {
    const char* verb;
    int64_t round;
    Span chunk;
  };
  std::vector<Entry> entries;

  Verdict stage(const DirectPlan&, const Span& chunk, int64_t i) { return note("stage", chunk, i); }
  Verdict reduce(const DirectPlan&, const Span& chunk, int64_t i) {
    return note("reduce", chunk, i);
  }
  Verdict collect(const DirectPlan&, const Span& chunk, int64_t i) {
    return note("collect", chunk, i);
  }

 private:
  Verdict note(const char* verb, const Span& chunk, int64_t i) {
    entries.push_back({verb, i, chunk});
    return Verdict::ok;
  }
};

inline std::vector<TraceMesh::Entry> trace(const DirectPlan& plan, int channel) {
  TraceMesh mesh;
  if (plan.ranks > 1) run_direct(plan, channel, mesh);
  return mesh.entries;
}

}  // namespace ringkern
