// A ring whose ranks are all in this process, on one device or several: their segments are plain
// pointers, and one launch a device covers all of its ranks, so that they are resident together.
#pragma once

#include <memory>
#include <vector>

#include "cuda/launcher.h"

namespace ringkern::cuda {

// Return true if all devices have access to each other's memory; and if a line of LL128 arrives
// whole from each rank, on its listed device, at the next rank.
bool reach_each_other(const std::vector<int>& devices);
bool carry_lines(const std::vector<int>& devices);

class LocalRing {
 public:
  // `devices`: by rank. Takes as many channels as fit on each device at once, and host memory for
  // ranks whose devices have no access to each other's. Throws UsageError if not even one channel
  // fits or the orders are impossible, and TransportError. `apart`: each rank has its own launch
  // and stream, as if it had its own device.
  LocalRing(const std::vector<int>& devices, Milliseconds timeout, const RingOrders& orders = {},
            bool apart = false);
  ~LocalRing();
  LocalRing(const LocalRing&) = delete;
  LocalRing& operator=(const LocalRing&) = delete;

  // Launches a task for each rank, in order. They differ in `in`, `out` and `stream` only, and
  // those of one launch have one stream. The number of the call is that of the first. Launches on
  // all devices, or throws; then the launched kernels end, and if there are none the error is
  // `refused`. Returns true if the number will be posted.
  bool run(std::span<const Task> tasks);
  void abort();
  bool drain(Milliseconds patience);
  Executor::Progress progress() const;  // common to all ranks
  int ranks() const { return ranks_; }
  const Geometry& geometry() const { return geometry_; }

 private:
  // One launch, and its ranks, in order.
  struct Part {
    int device = 0;
    std::vector<int> ranks;
    void *memory = nullptr, *host = nullptr;  // of all their segments
    std::unique_ptr<Launcher> launcher;
  };

  void choose_memory();
  void claim_memory();
  void probe(Milliseconds timeout);  // the links between the devices
  void make_launchers(Milliseconds timeout);
  void throw_if_failed(const Task& task);
  void release() noexcept;

  const int ranks_;
  const RingOrders orders_;
  Geometry geometry_;
  std::vector<uint32_t> on_host_;  // as in Segments, by rank
  std::vector<Part> parts_;
};

}  // namespace ringkern::cuda
