// A ring whose ranks are all in this process and on one device: their segments are plain pointers,
// and one launch covers them all, so that they are resident together.
#pragma once

#include <memory>

#include "cuda/launcher.h"

namespace ringkern::cuda {

class LocalRing {
 public:
  // Takes as many channels as fit on the device at once. Throws UsageError where not even one does.
  LocalRing(int device, int ranks, Milliseconds timeout);
  ~LocalRing();
  LocalRing(const LocalRing&) = delete;
  LocalRing& operator=(const LocalRing&) = delete;

  // A task for each rank, in order; they differ in `in` and `out` only.
  void run(std::span<const Task> tasks);
  void abort() { launcher_->abort(); }
  int ranks() const { return ranks_; }
  const Geometry& geometry() const { return geometry_; }

 private:
  const int device_, ranks_;
  Geometry geometry_;
  void* memory_ = nullptr;  // of all segments
  std::unique_ptr<Launcher> launcher_;
};

}  // namespace ringkern::cuda
