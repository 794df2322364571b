// Launches of kernels from their PTX, in the memory of this process, which other processes also
// map.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ptx {

// The room in which the blocks of a launch are resident.
class Room {
 public:
  virtual ~Room() = default;
  virtual bool take() = 0;   // takes room for one more block; false: there is none now
  virtual void leave() = 0;  // gives back the room of a block that has ended
};

struct Launch {
  uint32_t blocks = 0;
  int blocks_each = 0;  // that a multiprocessor holds at once
  // Returns when all blocks have ended. It may be called again, also while it runs.
  std::function<void(Room&)> run;
};

// Returns a launch with a copy of the arguments. `name`: demangled. Raises Error if there is no
// such kernel, or it takes fewer threads.
Launch launch_of(const std::string& name, uint32_t blocks, uint32_t threads, const void* arguments);
// Returns the number of blocks of a kernel that a multiprocessor holds at once, given the registers
// and the shared memory that ptxas reports. If those are unknown, returns the number that the
// kernel's bounds promise.
int blocks_each(const std::string& name, uint32_t threads);

// Pointers to the two functions, for code that is not linked with them.
struct Kernels {
  decltype(&launch_of) launch = nullptr;
  decltype(&blocks_each) occupancy = nullptr;
};

}  // namespace ptx
