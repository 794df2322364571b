// The memory that this process can still get, and the limit that applies: for error texts, and to
// refuse an allocation before the kernel ends processes.
#pragma once

#include <chrono>
#include <cmath>
#include <string>

namespace ringkern {

struct MemoryLimit {
  double left = INFINITY;    // bytes that are left; infinite: no limit is known
  std::string what;          // a sentence with its figures, without the full stop; empty: no limit
  std::string remedy;        // another sentence
  bool may_be_more = false;  // the system has not yet counted memory that it could reclaim
};

// Returns the tightest limit of the machine and of this process's cgroups. Exact only if less than
// `wanted` bytes are left; it costs more then.
MemoryLimit memory_left(double wanted);
// The kernel counts the file pages of a cgroup at least every 2 s; until then it may show fewer.
inline constexpr std::chrono::milliseconds kCounted{2500};
// Returns the limit behind a call that failed with `error`, for `wanted` bytes of the file `fd`;
// `maps`: it mapped addresses.
MemoryLimit limit_behind(int error, double wanted, int fd, bool maps);
// Returns the limit on the size of a file of this process.
double longest_file();

}  // namespace ringkern
