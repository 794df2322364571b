// The executor of a rank with several threads. It cuts a large call over Simple into channels, each
// on a thread and over its own part of the segments: an all-reduce into parts of the tensor, which
// the ranks reduce independently, and every other collective into the chunks of the ring. Small
// calls, other protocols and an all-reduce round the ring run on the calling thread, over the first
// channel.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cpu/executor.h"

namespace ringkern::cpu {

// Calls `body` on ranges that together are 0, 1, ..., n - 1, on as many threads as there are, and
// returns when all calls have returned. The calling thread has the range that begins with 0.
//
// A range is run in rising order, so that ranks with different numbers of threads cannot wait for
// each other in a cycle: all of them reach the first unfinished channel.
using ParallelFor =
    std::function<void(int n, const std::function<void(int first, int last)>& body)>;

// Returns the bytes of a segment with this many channels. The first one alone has FIFOs of LL and
// LL128.
int64_t segment_bytes(const Geometry& geometry, int channels);

class ThreadedExecutor final : public Executor {
 public:
  // `segments` hold `segment_bytes(geometry, channels)` each. `channels`: at least 1, the same on
  // all ranks; the number of threads that `parallel_for` uses may differ. Otherwise as CpuExecutor.
  ThreadedExecutor(const Segments& segments, const Geometry& geometry, int rank, int ranks,
                   std::chrono::nanoseconds timeout, std::shared_ptr<const Arenas> arenas,
                   int channels, ParallelFor parallel_for, int socket = -1);

  RunResult run(const Task& task) override;
  void abort() override;

 private:
  RunResult run_parts(const Task& task, int parts);

  const int ranks_;
  std::vector<std::unique_ptr<CpuExecutor>> channels_;
  const ParallelFor parallel_for_;
  WaitHistory history_;
};

}  // namespace ringkern::cpu
