// The one wait of the CPU backend: spin, then yield, then sleep on a futex.
//
// Every rank has a bell in its own segment. A rank that is about to sleep says so; a neighbour that
// has published something looks, and only then pays for the system call. Spinning alone would be
// fastest with a core for each rank, and thousands of times slower with fewer.
//
// Yielding is quicker than sleeping where the core goes to a rank of this ring. A program that
// computes keeps it for milliseconds, each time, whereas a rank that is woken has it back in
// microseconds as a rule. So a rank whose yield took long sleeps instead, for a while.
#pragma once

#include <atomic>
#include <chrono>
#include <string>

#include "core/status.h"

namespace ringkern::cpu {

struct alignas(kCacheLine) Bell {
  uint32_t rung;     // the futex: changes when somebody rings
  uint32_t asleep;   // the owner sleeps, or is about to
  uint32_t aborted;  // the ring is dead; written by the owner or by a neighbour
};

inline uint64_t load_acquire(uint64_t& word) {
  return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire);
}
inline void store_release(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
}

// Wakes the owner if it sleeps. Call `publish_barrier` once between what was published and this.
void ring(Bell& bell);
bool asleep(const Bell& bell);
// Ends the waits of the owner, now and from now on.
void abort_waits(Bell& bell);
bool aborted(const Bell& bell);
// The store that was published must be visible before the look at `asleep`; without it the owner
// may go to sleep on the old value while this rank believes it awake.
inline void publish_barrier() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// The wait of a process's own threads between their calls: without a deadline, and unlike that of
// std::atomic it never yields. Returns when `word` is no longer `value`.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value);
void wake_all(std::atomic<uint32_t>& word);

// How often so many ranks poll before they yield.
int pauses_for(int ranks);

// As "30.0 s".
std::string seconds(std::chrono::nanoseconds t);

class Wait {
 public:
  using Clock = std::chrono::steady_clock;

  // `pauses`: polls before yielding; 0 where ranks outnumber cores. `yield_from`: when this rank
  // may yield again; kept from wait to wait.
  Wait(Bell& bell, int pauses, std::chrono::nanoseconds timeout, Clock::time_point& yield_from)
      : bell_(bell), pauses_(pauses), timeout_(timeout), yield_from_(yield_from) {}

  // Polls `ready()` until it is true, the ring is aborted, or nothing has come for `timeout`.
  template <class Ready>
  Verdict until(Ready&& ready) {
    for (int i = 0; i <= pauses_; ++i) {
      if (ready()) return Verdict::ok;
      pause();
    }
    Ladder ladder(*this);
    Verdict verdict = Verdict::ok;
    while (!ready()) {
      verdict = ladder.rest();
      if (verdict != Verdict::ok) break;
    }
    ladder.leave();
    return verdict;
  }

 private:
  // The slow part of a wait, free of the condition so that it is compiled once.
  class Ladder {
   public:
    explicit Ladder(Wait& wait);
    // Yields or sleeps once. Between two calls the caller polls: the order is announce, poll,
    // sleep.
    Verdict rest();
    void leave();

   private:
    void yield();

    Wait& wait_;
    const Clock::time_point start_;
    Clock::time_point now_;
    int yields_;  // left
    uint32_t rung_ = 0;
    bool announced_ = false;
  };

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  Bell& bell_;
  int pauses_;
  std::chrono::nanoseconds timeout_;
  Clock::time_point& yield_from_;
};

}  // namespace ringkern::cpu
