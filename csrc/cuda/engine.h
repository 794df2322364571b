// The CUDA executor: one rank of this process, its neighbours in others.
#pragma once

#include "cuda/launcher.h"

namespace ringkern::cuda {

// 32 channels of 8 slots. The slots suit a block of 11 working warps: in Simple each moves two
// tiles of 2 KiB, in LL each thread a line, in LL128 ten warps a unit. 14.9 MiB a rank, and 1.1 MiB
// for the mesh. The same on every GPU, because the ranks of a ring must agree; not tuned by
// measurement.
constexpr Geometry default_geometry() {
  Geometry g;
  g.channels = 32;
  g.slot_bytes[int(Protocol::simple)] = 44 << 10;
  g.slot_bytes[int(Protocol::ll)] = kPlanWorkers * int64_t(sizeof(LLLine));
  g.slot_bytes[int(Protocol::ll128)] = 10 << 10;
  return g;
}
constexpr bool fits_in_16_mib() {
  for (int ranks = 1; ranks <= MeshGeometry::kMostRanks + 1; ++ranks)
    if (segment_bytes(default_geometry(), ranks) > 16 << 20) return false;
  return true;
}
static_assert(fits_in_16_mib());

class Engine final : public Executor {
 public:
  // `segments` hold `segment_bytes(geometry, ranks)` each and outlive the engine; a ring of one has
  // none.
  Engine(const Segments& segments, const Geometry& geometry, int rank, int ranks, int device,
         Milliseconds timeout)
      : launcher_(device, {Seat{rank, segments}}, ranks, geometry, timeout) {}

  void run(const Task& task) override { launcher_.run({&task, 1}); }
  bool enqueues() const override { return true; }
  void abort() override { launcher_.abort(); }
  bool drain(Milliseconds patience) override { return launcher_.drain(patience); }
  Progress progress() const override { return launcher_.progress(); }

 private:
  Launcher launcher_;
};

}  // namespace ringkern::cuda
