// An anonymous memory file: it has no name in /dev/shm, so that nothing is left behind when a rank
// dies. It is sealed, so that no process can make it shorter while others use it. A rank allocates
// a part before it uses it, so that lack of memory is an error and not a SIGBUS in a collective.
//
// If a process may not call memfd_create, such as under some seccomp filters, the file is one of
// /dev/shm that never had a name. Such a file cannot be sealed: a process of the same user that has
// opened it could shorten it, and its users would die of SIGBUS. Other users cannot open it. It
// takes space in /dev/shm, which has 64 MiB in containers by default.
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
  // Maps the start of another file of the same size in place of a mapping.
  void replace(void* mapped, int fd);

 private:
  struct Mapping {
    void* at;
    size_t bytes;
  };
  std::vector<Mapping> mappings_;
};

}  // namespace ringkern
