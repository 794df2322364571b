// The wait's bell, csrc/cpu/wait.*: announce, poll, sleep against publish, barrier, look, ring. No
// thread sleeps through a publication, or through abort().
#pragma once

#include "faults/model/relacy.h"

#include "cpu/wait.h"

namespace model {

using namespace ringkern;

inline void know_bell(cpu::Bell& bell) {
  words.begin("asleep");
  (void)std::atomic_ref(bell.asleep).load(std::memory_order_relaxed);
  words.begin("rung");
  (void)std::atomic_ref(bell.rung).load(std::memory_order_relaxed);
  words.begin("aborted");
  (void)cpu::aborted(bell);
}

// A rank that sleeps as soon as possible.
template <class Ready>
Verdict sleepy_wait(cpu::Bell& bell, Ready&& ready) {
  cpu::WaitHistory no_yields{cpu::Wait::Clock::time_point::max()};
  return cpu::Wait(bell, /*pauses=*/0, std::chrono::hours(1000), no_yields).until(ready);
}

// Thread 0 waits for two neighbours, one after the other, and then for the first one again.
struct BellRings : rl::test_suite<BellRings, 3> {
  cpu::Bell bell{};
  uint64_t word[2] = {};
  int64_t shown[2] = {};  // the published values

  void before() {
    begin();
    know_bell(bell);
    words.begin("word");
    for (uint64_t& w : word) (void)cpu::load_acquire(w);
    words.end();
    for (const int64_t& s : shown) data.add(&s);
  }
  void after() { end(); }

  void thread(unsigned index) {
    if (index > 0) {
      const unsigned me = index - 1;
      for (uint64_t step = 1; step <= (me == 0 ? 2u : 1u); ++step) {
        if (step == 1) copy(&shown[me], &step, 8);
        cpu::store_release(word[me], step);
        cpu::wake(bell);
      }
      return;
    }
    const auto wait_for = [&](int from, uint64_t step) {
      check(sleepy_wait(bell, [&] { return cpu::load_acquire(word[from]) >= step; }) == Verdict::ok,
            "a wait ends in ok");
      int64_t seen;
      copy(&seen, &shown[from], 8);
      check(seen == 1, "what was published is seen");
    };
    wait_for(0, 1);
    wait_for(1, 1);
    wait_for(0, 2);
  }
};

// abort() ends the wait of a rank whose neighbour never comes.
struct AbortEndsWaits : rl::test_suite<AbortEndsWaits, 2> {
  cpu::Bell bell{};
  uint64_t word = 0;

  void before() {
    begin();
    know_bell(bell);
    words.begin("word");
    (void)cpu::load_acquire(word);
    words.end();
  }
  void after() { end(); }

  void thread(unsigned index) {
    if (index == 1) return cpu::abort_waits(bell);
    check(sleepy_wait(bell, [&] { return cpu::load_acquire(word) != 0; }) == Verdict::aborted,
          "a wait ends in aborted");
  }
};

}  // namespace model
