// Facts about another process, from the system.
#pragma once

#include <cstdint>

#include "fault/fault.h"

namespace ringkern {

// A process of this pid namespace. Its number may be another's once it has ended, its start not.
struct Process {
  int64_t pid = 0;  // 0: none that can be seen from here
  uint64_t started = 0;
};
Process this_process();
// Returns true if it has ended, as far as this process can see.
bool has_ended(const Process& process);

// Processes of one namespace mean the same by a number; 0 where it cannot be told.
uint64_t pid_namespace();

// 'R', 'S', 'T', ... as in /proc/PID/stat; 0: there is no such process; '?': not known.
char process_state(int64_t pid);
// How it ended, as far as the system tells; waits for that some milliseconds. `pidfd` may be -1.
ProcessEnd how_it_ended(int pidfd, int64_t pid);

}  // namespace ringkern
