// The CUDA executor: one rank of this process, its neighbours in others.
#pragma once

#include "cuda/launcher.h"

namespace ringkern::cuda {

constexpr bool fits_in_16_mib() {
  for (int ranks = 1; ranks <= MeshGeometry::kMostRanks + 1; ++ranks)
    if (segment_bytes(default_geometry(), ranks) > 16 << 20) return false;
  return true;
}
static_assert(fits_in_16_mib());

class CudaExecutor final : public Executor {
 public:
  // `segments`, of `segment_bytes(geometry, ranks)` each, and `regions`, if there are any, outlive
  // the executor. A ring of one has no segments.
  CudaExecutor(const Segments& segments, const Geometry& geometry, int rank, int ranks, int device,
               Milliseconds timeout, PeerRegions* regions = nullptr)
      : launcher_(device, {Seat{rank, segments}}, ranks, geometry, timeout, /*one_process=*/false,
                  regions) {}

  RunResult run(const Task& task) override { return {.under_way = launcher_.run({&task, 1})}; }
  bool enqueues() const override { return true; }
  void abort() override { launcher_.abort(); }
  bool drain(Milliseconds patience) override { return launcher_.drain(patience); }
  Progress progress() const override { return launcher_.progress(); }

 private:
  Launcher launcher_;
};

}  // namespace ringkern::cuda
