#include "cuda/local.h"

#include <algorithm>

#include "cuda/device.h"
#include "cuda/engine.h"

namespace ringkern::cuda {
namespace {

Geometry geometry_for(int device, int ranks) {
  int processors = 0;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  Geometry g = default_geometry();
  g.channels = std::clamp(processors * kBlocksPerSM / ranks, 1, g.channels);
  return g;
}

}  // namespace

LocalRing::LocalRing(int device, int ranks, Milliseconds timeout)
    : device_(device), ranks_(ranks) {
  if (ranks < 1 || ranks > kMaxLocalRanks)
    throw UsageError("a local ring has 1 to " + std::to_string(kMaxLocalRanks) + " ranks, not " +
                     std::to_string(ranks));
  check_device(device);
  const OnDevice guard(device);
  geometry_ = geometry_for(device, ranks);
  const int64_t each = align_up(segment_bytes(geometry_), 256);
  const size_t bytes = size_t(each) * size_t(ranks);
  check(cudaMalloc(&memory_, bytes), "cudaMalloc", "Free some device memory, or use fewer ranks");
  try {
    check(cudaMemset(memory_, 0, bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const auto segment = [&](int rank) {
      return static_cast<std::byte*>(memory_) + (rank + ranks) % ranks * each;
    };
    std::vector<Seat> seats;
    for (int r = 0; r < ranks; ++r)
      seats.push_back({r, {segment(r), segment(r + 1), segment(r - 1)}});
    launcher_ = std::make_unique<Launcher>(device, std::move(seats), ranks, geometry_, timeout);
  } catch (...) {
    (void)cudaFree(memory_);
    throw;
  }
}

LocalRing::~LocalRing() {
  launcher_.reset();
  try {
    const OnDevice guard(device_);
    (void)cudaFree(memory_);
  } catch (const Error&) {
    // The driver has shut down before us, at exit.
  }
}

void LocalRing::run(std::span<const Task> tasks) {
  if (int(tasks.size()) != ranks_)
    throw UsageError("a ring of " + std::to_string(ranks_) + " ranks takes as many tasks, not " +
                     std::to_string(tasks.size()));
  launcher_->run(tasks);
}

}  // namespace ringkern::cuda
