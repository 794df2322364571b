// An anonymous memory file: nothing appears in /dev/shm and nothing is left behind however a rank
// dies. It is sealed, so that no process that has it can make it shorter under those that use it,
// and what a rank uses of it is allocated first, so that lack of memory is an error and not a
// SIGBUS in a collective.
#pragma once

#include <string>
#include <vector>

#include "comm/ports.h"

namespace ringkern::cpu {

class MemoryFile {
 public:
  // Nothing of it is allocated yet. Throws SharedMemoryError, as all that follows.
  explicit MemoryFile(int64_t bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }
  void allocate(int64_t at, int64_t bytes);

 private:
  int fd_ = -1;
};

// Throws TransportError unless `fd` is a sealed memory file of the same user and of `bytes` bytes.
void check_memory_of(int peer, int fd, int64_t bytes);

// What a rank has mapped of its own file and of others'; `at` is a multiple of the page.
class Mappings {
 public:
  Mappings() = default;
  ~Mappings();
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  void* map(int fd, int64_t at, int64_t bytes, const std::string& what = "mmap");

 private:
  struct Mapping {
    void* at;
    size_t bytes;
  };
  std::vector<Mapping> mappings_;
};

std::string mib(double bytes);

}  // namespace ringkern::cpu
