// Device memory of this process that the other ranks map, for tensors that an all-reduce reads and
// writes in place (cuda/across.cuh).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/memory_file.h"
#include "cuda/device_memory.h"
#include "cuda/launch.h"

namespace ringkern::cuda {

// All regions of this process, each its own allocation, numbered in the order of their creation.
// None is returned to CUDA, because other processes may have it mapped. A free one is reused for a
// request of the same size.
class Regions {
 public:
  struct Region {
    std::byte* base = nullptr;
    int64_t bytes = 0;
    int device = 0;
    cudaIpcMemHandle_t handle{};
  };

  static Regions& mine();

  // Throws TransportError. At the limit of regions, or without CUDA IPC, the memory is in no
  // region, and tensors in it are staged.
  void* allocate(int device, int64_t bytes);
  void free(void* at);

  int count() const { return count_.load(std::memory_order_acquire); }
  const Region& at(int index) const { return regions_[size_t(index)]; }
  RegionPlace place_of(const void* at, int64_t bytes) const;

 private:
  std::array<Region, RegionPlace::kMostRegions> regions_;
  std::atomic<int> count_{0};
  std::mutex mutex_;
  std::vector<int> free_;
};

// The regions of the other ranks of a group, as this rank has mapped them. Each rank has a board: a
// memory file that all ranks map. It shows the rank's regions, and how many regions of each other
// rank it has mapped. A rank publishes a place only if all have mapped its region.
class PeerRegions {
 public:
  PeerRegions(int device, int rank, int ranks);
  ~PeerRegions();
  PeerRegions(const PeerRegions&) = delete;
  PeerRegions& operator=(const PeerRegions&) = delete;

  int fd() const { return file_.fd(); }
  // A peer's board. Does not keep the descriptor. Throws TransportError unless it is one.
  void meet(int peer, int fd, const RankNames& names);
  // Publishes the regions that this process has registered since the last call, and maps those of
  // others. Not while the thread captures a graph. A region that cannot be mapped is left out, with
  // all later ones.
  void exchange();
  // Returns the place of a tensor; 0 unless all others have mapped its memory.
  uint64_t place_of(const void* at, int64_t bytes) const;
  // The same for a launch; also 0 if its output is not its input, or if the input has a factor,
  // which the others do not know.
  uint64_t place_in(const AcrossArgs& args) const;
  const PeerRegion* table() const { return table_; }
  void unmap() { opened_.close(); }

 private:
  struct Board;

  bool map_next(int peer, int index);
  void write_table(int peer, int index, const PeerRegion& region);

  const int device_, rank_, ranks_;
  MemoryFile file_;
  Mappings mappings_;
  std::vector<Board*> boards_;  // by rank
  std::vector<int> mapped_;     // by rank: regions that have been looked at
  OpenedMemory opened_;
  int shown_ = 0;
  PeerRegion* table_ = nullptr;  // in device memory
  cudaStream_t stream_ = nullptr;
};

}  // namespace ringkern::cuda
