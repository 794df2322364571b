// Ranks that rest in a wait: when, and whether they are woken.
#pragma once

#include <functional>
#include <latch>
#include <utility>

#include "cpu/thread_ring.h"
#include "cpu/without_one.h"

namespace ringkern::test {

inline uint32_t times_rung(ThreadRing& ring, int rank) {
  return std::atomic_ref(const_cast<uint32_t&>(ring.bell(rank).rung)).load();
}

// Reports that the thread is about to rest, and lets it continue on request.
struct Rest {
  int times = 0;
  uint32_t rung = 0;
  std::latch resting{1}, go_on{1};
  std::function<void()> meanwhile = [] {};

  static void begins(void* with) {
    Rest& self = *static_cast<Rest*>(with);
    if (++self.times > 1) return;
    self.resting.count_down();
    self.meanwhile();
    self.go_on.wait();
  }
  Task noted(Task task) {
    task.rests = begins;
    task.with = this;
    return task;
  }

  // The tasks of two ranks. Rank 0 waits for rank 1, which rests in its task until rank 0 sleeps,
  // records in `rung` how often 0 was rung before, and calls `then`.
  Task until_the_other_sleeps(
      ThreadRing& ring, int rank, Task task, std::function<void()> then = [] {}) {
    if (rank == 0) {
      resting.wait();
      go_on.count_down();
      return task;
    }
    meanwhile = [this, &ring, then = std::move(then)] {
      until_asleep(ring, 0);
      rung = times_rung(ring, 0);
      then();
    };
    return noted(task);
  }
};

}  // namespace ringkern::test
