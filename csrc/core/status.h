// The possible outcomes of a wait, and the record of a failed one.
#pragma once

#include "core/types.h"

namespace ringkern {

// Every verdict but `ok` ends the whole schedule. A rank that continued would publish wrong data,
// which its neighbours would take for the result.
enum class Verdict : uint32_t { ok = 0, aborted = 1, timed_out = 2 };

// The condition that a rank waits for: data from `prev`, or a free slot at `next`.
enum class WaitFor : uint32_t { data = 0, credit = 1 };

// A report of the rank whose wait failed. Its host reads it to name the ranks concerned.
struct WaitReport {
  Verdict verdict = Verdict::ok;
  WaitFor what = WaitFor::data;
  Protocol protocol = Protocol::simple;
  int32_t channel = 0;
  int32_t peer = -1;    // the awaited rank, if it is not a neighbour on the ring
  uint64_t wanted = 0;  // the step to be reached
  uint64_t seen = 0;    // the step last seen
  // Set on a device, whose host reads this later: the call (Task::seq), and its timeout.
  uint64_t seq = 0;
  uint64_t timeout_ns = 0;
};

}  // namespace ringkern
