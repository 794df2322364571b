// The one wait of the CPU backend: spin, then yield, then sleep on a futex.
//
// Every rank has a bell in its own segment. A rank that is about to sleep announces it there; a
// neighbour that has published data makes the system call only if it sees that. Spinning alone
// would be fastest with a core for each rank, and thousands of times slower with fewer.
//
// Yielding is quicker than sleeping if the core goes to a rank of this ring. A computing program
// keeps it for milliseconds each time, whereas a woken rank usually has it back in microseconds. So
// a rank whose yield took long, and whose data did not come meanwhile, sleeps instead for a while.
//
// A sleeper takes some 50 us to be woken. Ranks that compute between their calls often come 20 to
// 200 us apart, so a rank whose waits have lately been of this length yields for longer, unless
// another program takes its core.
//
// A woken thread gets a busy core only when the running thread has used up its time slice, some
// milliseconds later, unless its own slice is shorter (Linux 6.12). So a rank sleeps with the
// shortest slice. Its share of the core stays the same.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <utility>

#include "core/status.h"

namespace ringkern::cpu {

struct alignas(kCacheLine) Bell {
  uint32_t rung;     // the futex: changes with each notify()
  uint32_t asleep;   // the owner sleeps, or is about to
  uint32_t aborted;  // the ring is aborted; written by the owner or by a neighbour
};

inline uint64_t load_acquire(uint64_t& word) {
  return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire);
}
inline void store_release(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
}

void notify(Bell& bell);
inline bool asleep(const Bell& bell) {
  return std::atomic_ref(const_cast<uint32_t&>(bell.asleep)).load(std::memory_order_relaxed) != 0;
}
// Ends the waits of the owner, now and from now on.
void abort_waits(Bell& bell);
inline bool aborted(const Bell& bell) {
  return std::atomic_ref(const_cast<uint32_t&>(bell.aborted)).load(std::memory_order_acquire) != 0;
}

// Makes a published store visible before the look at `asleep`; without the barrier the owner may go
// to sleep on the old value while this rank believes it awake.
inline void publish_barrier() { std::atomic_thread_fence(std::memory_order_seq_cst); }
// Wakes the owner if it sleeps. Call after publish_barrier(), which follows the published stores.
inline void notify_if_asleep(Bell& bell) {
  if (asleep(bell)) notify(bell);
}
inline void wake(Bell& bell) {
  publish_barrier();
  notify_if_asleep(bell);
}

// Waits until `word` is no longer `value`. For a process's own threads between their calls: has no
// deadline, and unlike std::atomic's wait never yields.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value);
void wake_all(std::atomic<uint32_t>& word);

// Returns the number of polls before a yield, for this many ranks on this many processors.
int pauses_for(int ranks, int processors);
// Returns the processors that this thread may run on; up to 1024.
using Processors = std::array<uint64_t, 16>;
Processors my_processors();
// Returns the socket of the processors that this thread may run on; -1: unknown, or several.
int my_socket();

// Decides whether a rank polls: not while it shares a core with another rank of its ring, which
// polling keeps from running. The system may leave two ranks on one core although others are free,
// because each rank seems busy. Polling is tried again after some calls.
class Polling {
 public:
  bool on() const { return without_ == 0; }
  // Takes the outcome of a call: whether it waited for long, and Wait::shared_a_core(). A single
  // yield may have taken long for another reason, such as an interrupt.
  void note(bool waited, bool shared_a_core) {
    if (without_ > 0) --without_;
    if (!waited) return;
    shared_ = shared_a_core ? shared_ + 1 : 0;
    if (shared_ < kEnough) return;
    shared_ = kEnough - 1;  // one more is enough when polling is tried again
    without_ = kCallsWithout;
  }

 private:
  static constexpr int kEnough = 4, kCallsWithout = 1000;
  int shared_ = 0;   // calls in a row
  int without_ = 0;  // calls left
};

// The outcome of earlier waits, which decides how the next ones rest.
struct WaitHistory {
  std::chrono::steady_clock::time_point yield_from;  // when the rank may yield again
  std::chrono::nanoseconds lately{0};                // how long it yields then; see Wait::learn()
};

class Wait {
 public:
  using Clock = std::chrono::steady_clock;

  // `pauses`: polls before yielding; 0 if ranks outnumber cores. `history`: kept from wait to wait.
  Wait(Bell& bell, int pauses, std::chrono::nanoseconds timeout, WaitHistory& history)
      : bell_(bell), pauses_(pauses), timeout_(timeout), history_(history) {}

  // Sets a function that is called once, when a wait has taken some microseconds or before the
  // first rest.
  void on_rest(void (*rests)(void*), void* with) {
    rests_ = rests;
    with_ = with;
  }

  // Keeps in the history how long to yield, by the length of the waits. Not for ranks that share
  // cores: there somebody always wants the core.
  void learn() { learns_ = pauses_ > 0; }

  bool rested() const { return rested_; }

  // Returns whether a yield brought the awaited data, and took long enough for another thread to
  // run: a rank of this ring shares the core, and polling keeps it from running.
  bool shared_a_core() const { return shared_a_core_; }

  // Polls `ready()` until it is true, the ring is aborted, or nothing has come for `timeout`.
  template <class Ready>
  Verdict until(Ready&& ready) {
    if (ready()) return Verdict::ok;
    // A pause takes as long as half of a hop, so the first polls go without.
    for (int i = 0; i < pauses_; ++i) {
      if (i >= kPolls) pause();
      if (ready()) return Verdict::ok;
      if (i == kShortWait) begin_rest();
    }
    Ladder ladder(*this);
    Verdict verdict = Verdict::ok;
    while (!ready()) {
      verdict = ladder.rest();
      if (verdict != Verdict::ok) break;
    }
    ladder.leave(verdict);
    return verdict;
  }

 private:
  static constexpr int kPolls = 64, kShortWait = 200;

  void begin_rest() {
    rested_ = true;
    if (const auto rests = std::exchange(rests_, nullptr)) rests(with_);
  }

  // The slow part of a wait, free of the condition so that it is compiled once.
  class Ladder {
   public:
    explicit Ladder(Wait& wait);
    ~Ladder();
    Ladder(const Ladder&) = delete;
    // Yields or sleeps once. Between two calls the caller polls: the order is announce, poll,
    // sleep.
    Verdict rest();
    void leave(Verdict verdict);

   private:
    void yield();
    void sleep_from_now_on();

    Wait& wait_;
    const Clock::time_point start_;
    Clock::time_point now_;
    int yields_;                     // left
    Clock::time_point yield_until_;  // also without yields left
    Clock::duration last_yield_{0};  // 0 once it was in vain
    uint32_t rung_ = 0;
    bool announced_ = false;
    uint64_t slice_ = 0;  // of this thread before its first sleep; ns, 0: unchanged
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
  WaitHistory& history_;
  bool learns_ = false;
  void (*rests_)(void*) = nullptr;
  void* with_ = nullptr;
  bool rested_ = false, shared_a_core_ = false;
};

}  // namespace ringkern::cpu
