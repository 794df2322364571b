// Launches of kernels from their PTX, in the memory of this process, which other processes map,
// too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ptx {

// Where the blocks of a launch are resident.
class Room {
 public:
  virtual ~Room() = default;
  virtual bool take() = 0;   // for one more block; false: there is none now
  virtual void leave() = 0;  // by one that has ended
};

struct Launch {
  uint32_t blocks = 0;
  int blocks_each = 0;  // that a multiprocessor holds at once
  // Returns when all blocks have ended. It can be called again, also meanwhile.
  std::function<void(Room&)> run;
};

// Returns a launch with a copy of the arguments. `name`: demangled. Raises Error if there is no
// such kernel, or it takes fewer threads.
Launch launch_of(const std::string& name, uint32_t blocks, uint32_t threads, const void* arguments);
// Returns how many blocks of it a multiprocessor holds at once, by the registers and the shared
// memory that ptxas gave it; if those are unknown, as many as its bounds promise.
int blocks_each(const std::string& name, uint32_t threads);

// The two of them, for whoever is not linked with them.
struct Kernels {
  decltype(&launch_of) launch = nullptr;
  decltype(&blocks_each) occupancy = nullptr;
};

}  // namespace ptx
