// The CPU executor: runs the schedule of one rank on the thread that calls.
#pragma once

#include "comm/interfaces.h"
#include "cpu/link.h"
#include "cpu/mesh.h"

namespace ringkern::cpu {

// Returns the slots and their sizes: about 1.2 MiB a rank, so that the FIFOs of a few ranks stay in
// the caches. The mesh takes about 1 MiB more.
Geometry default_geometry();

class CpuExecutor final : public Executor {
 public:
  // `segments` hold `segment_bytes(geometry)` each and outlive the executor. `arenas`: of tensors
  // that need no copy; may be null. `channel`: of this executor, among those of the rank's threads.
  // `socket`: of this rank, as my_socket(). Throws UsageError if the geometry or the ring orders
  // are invalid.
  CpuExecutor(const Segments& segments, const Geometry& geometry, int rank, int ranks,
              std::chrono::nanoseconds timeout, std::shared_ptr<const Arenas> arenas = nullptr,
              int channel = 0, int channels = 1, int socket = -1);

  RunResult run(const Task& task) override;
  void abort() override;

 private:
  Verdict run_ring(const Task& task, const Reducer& reducer, Wait& wait, WaitReport& report);
  [[noreturn]] void fail(const Task& task, std::chrono::nanoseconds timeout,
                         const WaitReport& report);

  const int rank_, ranks_, channel_;
  const int threads_;        // of the rank that wait at the same time
  const Segments segments_;  // next and prev are this rank's on the ring
  const Geometry geometry_;
  const std::chrono::nanoseconds timeout_;
  Mesh mesh_;
  int pauses_ = -1;  // -1: unknown yet
  Polling polling_;
  WaitHistory history_;
};

// Runs a collective of one rank.
void run_alone(const Task& task);

// Rethrows the first error that is no AbortedError: threads are aborted because another one failed.
// Null errors are left out.
void rethrow_cause(const std::vector<std::exception_ptr>& errors);

}  // namespace ringkern::cpu
