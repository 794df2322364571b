// Finds what is wrong with a ring on the pages of its ranks, and who is to blame.
#pragma once

#include <optional>

#include "comm/control.h"
#include "comm/process.h"

namespace ringkern {

// The time within which a rank that has ended the waits of others has said why, on its page.
inline constexpr Milliseconds kReasonComes{1000};

// Ranks that make different calls of the same number, of this rank's last ones.
std::optional<Fault> find_mismatch(const Control& control);
// A rank that has left though this one has made a call since.
std::optional<Fault> find_departed(const Control& control);
// A rank that has ended and not left.
Fault peer_lost(const Control& control, int peer, const ProcessEnd& end);
// Adds to a wait of this rank that has failed what all ranks do, and blames the one that is late.
Fault timed_out(const Control& control, Fault wait);
// A call of this rank that has ended in an exception of its own.
Fault failed_call(const Control& control, uint64_t seq, const std::string& what);

// A call of this rank that has waited for another.
Fault late_in(const Control& control, const Call& call, int late, Milliseconds waited,
              Milliseconds timeout);

// The rank that others wait for in this call, if it can be told: one that has not made it, or whose
// process does not run. The one that is farthest behind.
std::optional<int> late_rank(const Control& control, uint64_t seq);
// Returns what its page and the system show of a rank.
RankSeen seen(const Control& control, int rank);

}  // namespace ringkern
