// Finds the fault of a ring on the pages of its ranks, and the rank at fault.
#pragma once

#include <optional>

#include "comm/control.h"
#include "comm/process.h"

namespace ringkern {

// The time within which a rank that has ended the waits of others records why on its page.
inline constexpr Milliseconds kReasonComes{1000};

// Ranks that make different calls of the same number, of this rank's last ones.
std::optional<Fault> find_mismatch(const Control& control);
// A rank that has left though this one has made a call since.
std::optional<Fault> find_departed(const Control& control);
// A rank that has ended and not left.
Fault peer_lost(const Control& control, int peer, const ProcessEnd& end);
// Adds the state of all ranks to a failed wait of this rank, and names the late one.
Fault timed_out(const Control& control, Fault wait);
// A call of this rank that has ended in an exception of its own.
Fault failed_call(const Control& control, uint64_t seq, const std::string& what);

// A call of this rank that has waited for another.
Fault late_in(const Control& control, const CallRecord& call, int late, Milliseconds waited,
              Milliseconds timeout);

// Returns the rank that others wait for in this call, if it is known: the one farthest behind, of
// those that have not made the call or whose process does not run.
std::optional<int> late_rank(const Control& control, uint64_t seq);
// Returns what its page and the system show of a rank.
RankSeen seen(const Control& control, int rank);

}  // namespace ringkern
