// Finds the fault of a ring on the pages of its ranks, and the rank at fault.
#pragma once

#include <optional>

#include "comm/control.h"
#include "comm/process.h"

namespace ringkern {

// A rank that ends the waits of others records the reason on its page within this time.
inline constexpr Milliseconds kReasonComes{1000};

// Finds ranks that made different calls with the same number, among this rank's last calls.
std::optional<Fault> find_mismatch(const Control& control);
// Finds a rank that left before a call that this rank has made.
std::optional<Fault> find_departed(const Control& control);
// Returns the fault of a peer that has ended without leaving.
Fault peer_lost(const Control& control, int peer, const ProcessEnd& end);
// Adds the state of all ranks to a failed wait of this rank, and names the late rank.
Fault timed_out(const Control& control, Fault wait);
// Returns the fault of a call of this rank that an exception has ended.
Fault failed_call(const Control& control, uint64_t seq, const std::string& what);

// Describes a call of this rank that waits for the rank `late`.
Fault late_in(const Control& control, const CallRecord& call, int late, Milliseconds waited,
              Milliseconds timeout);

// Returns the rank that the others wait for in this call, if it is known: the rank farthest behind,
// or else one whose process does not run.
std::optional<int> late_rank(const Control& control, uint64_t seq);
// Returns the state of a rank, from its page and from the system.
RankSeen seen(const Control& control, int rank);

}  // namespace ringkern
