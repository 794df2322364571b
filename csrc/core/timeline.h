// When a rank ran each verb of its schedule. Rows are made before the call, in memory of the device
// that runs it; whoever runs a verb fills in the next row of its channel.
#pragma once

#include "core/schedule.h"

namespace ringkern {

// Times in ns. On CPUs all processes have one clock; each GPU has one of its own.
struct TimedVerb {
  int64_t number;  // of the verb on its channel, from 1; 0: it has not been run
  int64_t verb;    // a Verb
  int64_t offset;  // of the chunk in the output; elements
  int64_t count;   // of the chunk
  int64_t start, end;
  int64_t wait_prev;  // of that time, waited for data from prev ...
  int64_t wait_next;  // ... and for a free slot at next
};
static_assert(sizeof(TimedVerb) == 64);

struct Timeline {
  TimedVerb* rows = nullptr;  // those of a channel side by side
  int64_t room = 0;           // of a channel

  // Null where there is no room: the call goes on, and whoever asked sees rows that are missing.
  RK_HD constexpr TimedVerb* row(int channel, int64_t index) const {
    return index < room ? rows + channel * room + index : nullptr;
  }
};

// Verbs of each rank on each channel. A message has two ranks; the others run none.
RK_HD constexpr int64_t verbs_of(const Plan& plan) {
  if (plan.ranks < 2) return 0;
  return plan.loops * (is_chain(plan.collective) ? 1 : steps(plan.collective, plan.ranks));
}

}  // namespace ringkern
