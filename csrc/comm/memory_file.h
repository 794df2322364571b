// An anonymous memory file: it has no name in /dev/shm, so that nothing is left behind however a
// rank dies. It is sealed, so that no process that has it can make it shorter under those that use
// it, and what a rank uses of it is allocated first, so that lack of memory is an error and not a
// SIGBUS in a collective.
//
// Where a process may not call memfd_create, as under some seccomp filters, it is a file of
// /dev/shm that never had a name. Such a file cannot be sealed: a process of the same user that has
// it, and only such a one can have it, could make it shorter and end those that use it by SIGBUS.
// And it takes room of /dev/shm, of which containers have 64 MiB unless told otherwise.
#pragma once

#include <string>
#include <vector>

#include "comm/ports.h"

namespace ringkern {

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

// Throws TransportError unless `fd` is a memory file of the same user and of `bytes` bytes, and
// sealed or what stands in for such a one.
void check_memory_of(int peer, int fd, int64_t bytes, const RankNames& names = {});

// The mappings of a rank's own file and of others'; `at` is a multiple of the page.
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

}  // namespace ringkern
