// How much memory this process can still have, and which limit keeps it from more: for errors that
// say so, and to know before the kernel ends processes to find what it does not have.
#pragma once

#include <cmath>
#include <string>

namespace ringkern {

struct MemoryLimit {
  double left = INFINITY;  // bytes that can still be taken; none is known where it is infinite
  std::string what;        // a sentence with its figures, without the full stop; empty: no limit
  std::string remedy;      // another
};

// Memory, within the machine and the cgroups of this process: the tightest limit. It is exact only
// where less than `wanted` bytes are left; it costs more then.
MemoryLimit memory_left(double wanted);
// What a call that failed with `error` has run into, of `wanted` bytes for the file `fd`; `maps`:
// what it wanted was addresses.
MemoryLimit limit_behind(int error, double wanted, int fd, bool maps);
// How long a file of this process may be.
double longest_file();

std::string mib(double bytes);

}  // namespace ringkern
