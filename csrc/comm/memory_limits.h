// How much memory this process can still have, and which limit keeps it from more: for errors that
// say so, and to know before the kernel ends processes to find what it does not have.
#pragma once

#include <chrono>
#include <cmath>
#include <string>

namespace ringkern {

struct MemoryLimit {
  double left = INFINITY;    // bytes that can still be taken; none is known where it is infinite
  std::string what;          // a sentence with its figures, without the full stop; empty: no limit
  std::string remedy;        // another
  bool may_be_more = false;  // the system has not counted yet what it could give up
};

// Memory, within the machine and the cgroups of this process: the tightest limit. It is exact only
// where less than `wanted` bytes are left; it costs more then.
MemoryLimit memory_left(double wanted);
// The kernel counts what a cgroup holds of files every 2 s at least; it may say less until then.
inline constexpr std::chrono::milliseconds kCounted{2500};
// Returns the limit that a call ran into which failed with `error`, for `wanted` bytes of the file
// `fd`; `maps`: it wanted addresses.
MemoryLimit limit_behind(int error, double wanted, int fd, bool maps);
// How long a file of this process may be.
double longest_file();

}  // namespace ringkern
