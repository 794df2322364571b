// A ring whose ranks are all in this process, on its CPU: their segments are plain pointers, and
// each rank but rank 0 has a thread; rank 0 runs on the calling thread.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "cpu/executor.h"
#include "cpu/shm.h"

namespace ringkern::cpu {

class LocalRing {
 public:
  // `timeout` bounds each wait of a rank for its neighbour. Throws UsageError.
  LocalRing(int ranks, Milliseconds timeout, const RingOrders& orders = {});
  ~LocalRing();
  LocalRing(const LocalRing&) = delete;
  LocalRing& operator=(const LocalRing&) = delete;

  // Takes a task for each rank, in order; they differ in `in` and `out` only. Returns when all are
  // done. One call at a time.
  void run(std::span<const Task> tasks);
  // Callable from any thread, also during `run`. The ring is unusable afterwards.
  void abort();
  bool drain(Milliseconds) { return true; }
  int ranks() const { return int(executors_.size()); }

 private:
  void work(size_t rank);
  void run_rank(size_t rank);
  void stop();

  std::vector<std::unique_ptr<LocalTransport>> transports_;
  std::vector<std::unique_ptr<CpuExecutor>> executors_;
  std::vector<std::exception_ptr> errors_;  // of this round, one a rank
  std::span<const Task> tasks_;
  // A round is a call of `run`: it begins when the number changes, and ends when no thread works.
  std::atomic<uint32_t> round_{0}, working_{0};
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ringkern::cpu
