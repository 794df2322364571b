// What is told of a ring that is in trouble: who, in which call, what was seen, and what to do.
#pragma once

#include <optional>
#include <string>

#include "comm/control.h"

namespace ringkern {

// As "rank 2 (pid 4711)".
std::string person(const Control& control, int rank);

// Ranks that make different calls of the same number, of this rank's last ones.
std::optional<Failure> find_mismatch(const Control& control);
// A rank that has left though this one has made a call since.
std::optional<Failure> find_departed(const Control& control);
// A rank that has ended and not left, in the way that `how` says.
Failure peer_lost(const Control& control, int peer, const std::string& how);
// This rank's wait in the call: what the executor says of it is made the whole story.
Failure timed_out(const Control& control, const TimeoutError& error);

// The rank that others wait for in this call, if it can be told: one that has not made it, or whose
// process does not run. The one that is farthest behind.
std::optional<int> late_rank(const Control& control, uint64_t seq);
// As "its process is stopped by a signal (state T)".
std::string condition(const Control& control, int rank);
// Where it is, as "has not made this call; its last was seq=16 ..., which ended 5.1 s ago".
std::string whereabouts(const Control& control, int rank, uint64_t seq);

}  // namespace ringkern
