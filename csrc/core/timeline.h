// Records when a rank ran each verb of its schedule. Rows are allocated before the call, in memory
// of the device that runs it. Each verb fills in the next row of its channel.
#pragma once

#include "core/schedule.h"

namespace ringkern {

// Times in ns. All processes on CPUs share one clock; each GPU has its own.
struct TimedVerb {
  int64_t number;  // index of the verb on its channel, from 1; 0: not yet run
  int64_t verb;    // a Verb
  int64_t offset;  // of the chunk in the output, in elements
  int64_t count;   // elements of the chunk
  int64_t start, end;
  int64_t wait_prev;  // of this time, waiting for data from prev ...
  int64_t wait_next;  // ... and for a free slot at next
};
static_assert(sizeof(TimedVerb) == 64);

struct Timeline {
  TimedVerb* rows = nullptr;  // the rows of a channel side by side
  int64_t room = 0;           // rows per channel

  // Returns null where there is no room. The call continues, and the reader finds rows missing.
  RK_HD constexpr TimedVerb* row(int channel, int64_t index) const {
    return index < room ? rows + channel * room + index : nullptr;
  }
};

// Returns the number of verbs of a rank on each channel. In a message, only two ranks run verbs.
RK_HD constexpr int64_t verbs_of(const Plan& plan) {
  if (plan.ranks < 2) return 0;
  return plan.loops * (is_chain(plan.collective) ? 1 : steps(plan.collective, plan.ranks));
}

}  // namespace ringkern
