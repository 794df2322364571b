// Device memory that ranks see of each other: IpcTransport between processes. Ranks of one process
// need none: their segments are plain pointers (cuda/local.h), and CUDA refuses to open a handle in
// the process that made it.
#pragma once

#include <vector>

#include "comm/ports.h"

namespace ringkern::cuda {

// A segment is an allocation of its own, never part of a caching allocator's: those may be
// expandable, which cannot be exported.
class IpcTransport final : public Transport {
 public:
  // Allocates and clears `bytes` on `device`. Throws TransportError.
  IpcTransport(int device, int64_t bytes);
  ~IpcTransport() override;
  IpcTransport(const IpcTransport&) = delete;
  IpcTransport& operator=(const IpcTransport&) = delete;

  void* mine() override { return mine_; }
  Offer offer() override;
  // With two ranks, next and prev are the same and are opened once. Throws TransportError.
  void* map(const Offer& offer, int peer) override;
  bool unmap() override;
  void abandon() override { mine_ = nullptr; }

 private:
  struct Ticket;
  struct Mapping {
    int peer;
    void* at;
  };

  const int device_;
  const int64_t bytes_;
  void* mine_ = nullptr;
  std::vector<Mapping> mappings_;
};

}  // namespace ringkern::cuda
