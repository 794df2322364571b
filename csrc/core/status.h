// What a wait can end in, and what is remembered of the one that failed.
#pragma once

#include "core/types.h"

namespace ringkern {

// Anything but `ok` stops the whole schedule: a rank that went on would publish garbage, and its
// neighbours would take the fault for a finished collective.
enum class Verdict : uint32_t { ok = 0, aborted = 1, timed_out = 2 };

// What a rank waits for: data from `prev`, or a free slot at `next`.
enum class WaitFor : uint32_t { data = 0, credit = 1 };

// Written by the rank whose wait failed, read by its host to say who waited for whom.
struct WaitReport {
  Verdict verdict = Verdict::ok;
  WaitFor what = WaitFor::data;
  Protocol protocol = Protocol::simple;
  int32_t channel = 0;
  int32_t peer = -1;    // whom it waited for, where that is not a neighbour on the ring
  uint64_t wanted = 0;  // the step that had to be reached
  uint64_t seen = 0;    // the step that was last seen
  // On a device, whose host reads this later: the call (Task::seq), and the timeout that applied.
  uint64_t seq = 0;
  uint64_t timeout_ns = 0;
};

}  // namespace ringkern
