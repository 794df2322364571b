// Facts about another process, from the system.
#pragma once

#include <cstdint>

#include "fault/fault.h"

namespace ringkern {

// A process of this pid namespace. After its end its pid may be reused, with another start time.
struct Process {
  int64_t pid = 0;  // 0: not visible from here
  uint64_t started = 0;
};
Process this_process();
// Returns true if the process has ended, as far as this one can see.
bool has_ended(const Process& process);

// Returns the pid namespace; 0 if unknown. A pid is valid only within its namespace.
uint64_t pid_namespace();

// Returns the state as in /proc/PID/stat ('R', 'S', 'T', ...); 0: no such process; '?': unknown.
char process_state(int64_t pid);
// Returns how the process ended, if the system shows it; waits some milliseconds. `pidfd` may be
// -1.
ProcessEnd how_it_ended(int pidfd, int64_t pid);

}  // namespace ringkern
