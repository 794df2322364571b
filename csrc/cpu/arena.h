// Memory for tensors that the other ranks access in place, so that an all-reduce of them copies
// nothing. A process has one such memory file for all its groups. Peers map it when they first meet
// a tensor in it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "comm/memory_file.h"

namespace ringkern::cpu {

class Arena {
 public:
  // Returns the arena of this process, which is never freed; a forked child has its own. Throws
  // SharedMemoryError.
  static Arena& mine();
  explicit Arena(int64_t bytes);

  // Returns memory aligned to a cache line, or, if large, to a huge page. Throws SharedMemoryError.
  void* allocate(int64_t bytes);
  // Does nothing in a forked child: the memory is the parent's.
  void free(void* at);
  // Returns the offset of a tensor in the file; -1 if it is not wholly in the arena.
  int64_t place_of(const void* at, int64_t bytes) const {
    const int64_t place = static_cast<const std::byte*>(at) - base_;
    return place >= 0 && place <= bytes_ - bytes ? place : -1;
  }

  // The memory file. A ring whose ranks were given an earlier one must not access tensors in place.
  std::shared_ptr<MemoryFile> file() const;
  bool is_in(const std::shared_ptr<MemoryFile>& file) const { return file_ == file; }
  // Held by a call while it accesses tensors in place.
  std::shared_lock<std::shared_timed_mutex> hold() { return std::shared_lock(calls_); }
  // Moves all tensors to a new file, at their addresses: ranks that have mapped the old one can
  // then no longer write to them. Meanwhile no thread of this process may. Throws TimeoutError if
  // calls of other groups that access tensors in place last longer than `patience`, and
  // SharedMemoryError; the tensors are then as before.
  void renew(Milliseconds patience);
  int64_t bytes() const { return bytes_; }
  int64_t bytes_in_use() const;
  int64_t bytes_committed() const;

 private:
  using Blocks = std::map<int64_t, int64_t>;  // place, bytes

  void commit(int64_t at, int64_t bytes);
  void release_granules(int64_t at, int64_t bytes);

  const int64_t bytes_;
  const int born_in_;                 // pid
  std::shared_ptr<MemoryFile> file_;  // changes only while no call holds it
  Mappings mappings_;
  std::byte* base_ = nullptr;
  std::shared_timed_mutex calls_;
  mutable std::mutex mutex_;
  Blocks free_, used_;
  std::vector<bool> committed_;  // granules that have memory
};

// Another process's arena, as mapped here. Shared by all groups that the two have in common.
class PeerArena {
 public:
  // Does not keep `fd`. Throws TransportError unless it is a sealed memory file of the same
  // user and as large as this process's.
  static std::shared_ptr<PeerArena> of(int peer, int fd, int64_t bytes,
                                       const RankNames& names = {});
  PeerArena(int fd, int64_t bytes);
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;
  PeerArena& operator=(const PeerArena&) = delete;

  // Returns the start of the mapped file, and its mapped bytes: at least `at_least`. It stays
  // mapped there for the lifetime of this object.
  struct View {
    std::byte* base = nullptr;
    int64_t bytes = 0;
  };
  View view(int64_t at_least);

 private:
  const int fd_;
  const int64_t bytes_;
  std::mutex mutex_;
  Mappings mappings_;
  View widest_;
};

// The arenas of a group's ranks, as one rank knows them; null if a rank has none.
struct Arenas {
  Arena* mine = nullptr;
  std::shared_ptr<MemoryFile> file{};  // that of `mine` which the others have mapped
  std::vector<std::shared_ptr<PeerArena>> of;
};

}  // namespace ringkern::cpu
