// The memory that CPU ranks share: ShmTransport between processes, LocalTransport between threads
// of one.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "cpu/arena.h"

namespace ringkern::cpu {

// A transport between processes. A segment is a memory file, allocated whole at once.
class ShmTransport final : public Transport {
 public:
  // `arenas`, if any, gets the arena of each rank. Throws SharedMemoryError.
  explicit ShmTransport(int64_t bytes, std::shared_ptr<Arenas> arenas = nullptr);
  // Forgets the others' arenas.
  ~ShmTransport() override;

  void* mine() override { return mine_; }
  Offer offer() override;
  void shut_out(Milliseconds patience) override;
  // Does not keep the descriptor. Throws TransportError unless it is a sealed memory file of the
  // same user and of exactly the size of this rank's own.
  void* map(const Offer& offer, int peer) override;

 private:
  const int64_t bytes_;
  MemoryFile file_;
  Mappings mappings_;
  void* mine_ = nullptr;
  const std::shared_ptr<Arenas> arenas_;
};

// The segments of the ranks of one process. A segment lives as long as a rank has mapped it.
class LocalMemory {
 public:
  LocalMemory();

 private:
  friend class LocalTransport;
  const std::array<uint64_t, 2> nonce_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<void>> segments_;
};

// A transport of plain pointers. An offer names a place in a LocalMemory. An offer of another
// process, or of another LocalMemory, is refused. Ranks share one mapping, so that ThreadSanitizer
// sees their races.
class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalMemory> memory, int64_t bytes);

  void* mine() override { return mine_.get(); }
  Offer offer() override;
  void* map(const Offer& offer, int peer) override;

 private:
  struct Ticket {
    std::array<uint64_t, 2> nonce;
    int64_t pid;  // a forked child has the nonce of its parent, and only a copy of the memory
    int64_t bytes;
    uint64_t index;
  };

  const std::shared_ptr<LocalMemory> memory_;
  const int64_t bytes_;
  const std::shared_ptr<void> mine_;
  uint64_t index_ = 0;
  std::vector<std::shared_ptr<void>> mapped_;
};

}  // namespace ringkern::cpu
