// Facts about another process, from the system.
#pragma once

#include <cstdint>

#include "fault/fault.h"

namespace ringkern {

// A process of this pid namespace. Its pid may be reused once it has ended, with another start.
struct Process {
  int64_t pid = 0;  // 0: none that can be seen from here
  uint64_t started = 0;
};
Process this_process();
// Returns true if it has ended, as far as this process can see.
bool has_ended(const Process& process);

// Returns the pid namespace; 0 if unknown. A pid is valid only within its namespace.
uint64_t pid_namespace();

// 'R', 'S', 'T', ... as in /proc/PID/stat; 0: there is no such process; '?': not known.
char process_state(int64_t pid);
// Returns how it ended, if the system shows it; waits some milliseconds. `pidfd` may be -1.
ProcessEnd how_it_ended(int pidfd, int64_t pid);

}  // namespace ringkern
