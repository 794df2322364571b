// An anonymous memory file: it has no name in /dev/shm, so that nothing is left behind when a rank
// dies. It is sealed, so that no process can make it shorter while others use it. A rank allocates
// the part that it uses first, so that lack of memory is an error and not a SIGBUS in a collective.
//
// If a process may not call memfd_create, as under some seccomp filters, it is a file of /dev/shm
// that never had a name. Such a file cannot be sealed: a process of the same user that has it could
// make it shorter and end its users by SIGBUS. No other user's process can have it. It takes room
// of /dev/shm, which in containers is 64 MiB by default.
#pragma once

#include <string>
#include <vector>

#include "comm/interfaces.h"

namespace ringkern {

class MemoryFile {
 public:
  // Allocates nothing yet. Throws SharedMemoryError, as do all functions below.
  explicit MemoryFile(int64_t bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }
  void allocate(int64_t at, int64_t bytes);

 private:
  int fd_ = -1;
};

// Throws TransportError unless `fd` is a memory file of the same user and of `bytes` bytes, sealed
// or the substitute for a sealed one.
void check_memory_of(int peer, int fd, int64_t bytes, const RankNames& names = {});

// The mappings of a rank's own file and of other ranks' files; `at` is a multiple of the page.
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
