// Ranks that rest in a wait: when, and whether they are woken.
#pragma once

#include <latch>

#include "cpu/thread_ring.h"

namespace ringkern::test {

// Tells when the thread is about to rest, and lets it on when it may.
struct Rest {
  int times = 0;
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
};

inline uint32_t times_rung(ThreadRing& ring, int rank) {
  return std::atomic_ref(const_cast<uint32_t&>(ring.bell(rank).rung)).load();
}

}  // namespace ringkern::test
