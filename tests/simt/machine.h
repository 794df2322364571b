// A machine that runs CUDA kernels on one thread of the host: every CUDA thread is a fiber, and a
// seed decides which one continues and which values it sees. The same seed gives the same run.
//
// Threads that poll in vain sleep until the data comes. So a deadlock is detected exactly (no
// thread can continue and no store is left to become visible), and nothing waits for a timeout;
// time advances only when nothing else can, and only for threads that read the clock.
#pragma once

#include <string>

#include "fiber.h"
#include "memory.h"

namespace simt {

inline constexpr int kWarpSize = 32;

struct Settings {
  uint64_t seed = 1;
  MemorySettings memory;
  int switch_every = 8;   // mean number of operations of a thread until another continues
  int drain_every = 8;    // operations, in the mean, until a waiting store becomes visible
  int starved_rank = -1;  // seldom gets its turn
  // The late thread: the last thread of a block, which posts. From this step on, it continues only
  // when nothing else can happen.
  int late_rank = -1, late_channel = 0;
  uint64_t late_from = 0;
  uint64_t most_steps = 50'000'000;
  // The number of vain polls of a wait before it looks at the clock and checks whether to give up.
  uint32_t polls_per_look = 1;
  uint64_t clock_jump = 0;  // nanoseconds that pass when no thread can continue
};

// A grid of blocks: `channels` of each rank, in the order of `ranks`.
struct Launch {
  std::function<void()> kernel;  // called by each thread
  std::vector<int> ranks;
  int channels = 1;
  int threads = kWarpSize;  // of a block; whole warps
  std::function<void()> done;
  int live = 0;  // threads
};

enum class Meeting : uint8_t { none, sync, all, shuffle, line_load, line_store, rest };

struct Warp;
struct Block;

struct Thread : Agent {
  Fiber fiber;
  int channel = 0, index = 0;
  Warp* warp = nullptr;
  Block* block = nullptr;
  Launch* launch = nullptr;
  bool alive = false;
  bool gave_up = false;  // a wait of its own has failed
  // True if the warp is known to be together: this lane has done nothing of its own since then.
  bool together = false;
  // Its input to a meeting or a barrier, and the result.
  bool predicate = false;
  uint32_t value = 0;
  int lane = 0;
  void* at = nullptr;
  uint64_t words[2] = {};
  const void* instruction = nullptr;  // of a line's access, where that is known

  std::string name() const;
};

struct Warp : Watch {
  Thread* lanes[kWarpSize] = {};
  Meeting meeting = Meeting::none;
  int arrived = 0, at_barrier = 0, gone = 0;
  // For a look after many polls: the number of vain wake-ups, and the time in memory.
  uint32_t woken_in_vain = 0;
  uint64_t vain_since = 0;
};

struct Block {
  struct Barrier {
    int expected = 0;
    bool any = false;
    std::vector<Thread*> waiting;
  };
  int index = 0;  // in its grid
  int blocks = 0, threads = 0;
  std::vector<Warp> warps;
  Barrier barriers[16];
  alignas(16) std::byte shared[2048];
  Shadow shadows[sizeof(shared) / 8];
};

class Machine {
 public:
  Machine();
  Machine(const Machine&) = delete;

  // Forgets everything. A rank has up to `channels` blocks of up to `threads`.
  void reset(const Settings& settings, int ranks, int channels, int threads);
  Memory& memory() { return memory_; }
  Random& random() { return random_; }
  uint64_t steps() const { return steps_; }

  // Starts a launch, which the caller owns and keeps until it is done.
  void start(Launch& launch);
  // Runs until all launches have ended. Throws Failure.
  void run();
  // Makes the host wait for all that has ended, so that it happened before the host's next actions.
  void synchronise_host();
  // Returns true if the late thread could continue and belongs to this rank.
  bool holds(int rank) const { return late_ != nullptr && late_->rank == rank; }
  // Stops the rank's threads where they are.
  void kill(int rank);
  // Called when no thread can continue, for the rank of each sleeper; may throw Failure.
  std::function<void(int rank)> when_stuck;
  // Calls `event` at a step, or when no thread can continue; it returns the step of the next call,
  // or 0.
  void at_step(uint64_t step, std::function<uint64_t()> event);

  // ---- Operations of a running thread

  Thread& self() { return *current_; }
  void load(const void* at, void* to, int bytes, Order order);
  void store(void* at, const void* from, int bytes, Order order);
  uint64_t update(void* at, int bytes, bool ordered, const Memory::Change& change);
  // Called by a thread that gives up. Returns true for the first such thread.
  bool claim(uint32_t* at);
  // Counts from 0 to `last` and then from 0 again; returns the count before.
  uint32_t count_round(uint32_t* at, uint32_t last, bool ordered);
  void fence();
  void fence_sc();
  void meet(Meeting kind);
  bool barrier(int id, int threads, bool predicate);
  uint64_t nanoseconds();
  void* shared_memory(size_t bytes);
  void use_shared(const void* at, bool store);
  // Throws Failure if the thread has given up: it must not write a line then.
  void check_goes_on() const;

 private:
  static void enter(void* thread);
  void step(bool alone = true);
  void wake_sleepers();
  void yield();
  void suspend();
  void change_to(Thread* next);
  bool is_late(const Thread& t) const;
  Thread* pick();
  void wait_for_progress();
  bool poll_again(const std::vector<Warp*>& sleepers);
  bool fire_event();
  void leave(Thread& t);
  void finish(Launch& launch);
  void hold_meeting(Warp& warp);
  void rest(Warp& warp);
  void access_lines(Warp& warp, bool store);
  template <class Threads>
  void synchronise(const Threads& threads);
  std::string who_waits() const;

  Settings settings_;
  Random random_;
  Memory memory_;
  std::vector<std::unique_ptr<Thread>> threads_;  // by id; kept from run to run
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Clock> history_;  // of each rank: what happened before its next launch
  int channels_ = 1, most_threads_ = 1;
  Fiber main_;
  Thread* current_ = nullptr;
  std::vector<Thread*> runnable_;
  Thread* late_ = nullptr;  // could run
  std::vector<Launch*> live_, ended_;
  std::unique_ptr<Failure> failure_;
  uint64_t steps_ = 0, clock_ = 0;
  int until_switch_ = 0, until_drain_ = 0;
  uint64_t event_step_ = 0;
  std::function<uint64_t()> event_;
};

// Returns the only machine, which kernels must find because they are plain functions.
inline Machine& machine() {
  static Machine& one = *new Machine;
  return one;
}

// Runs a kernel, given its host stand-in, on the calling thread. `bytes`: the size of its
// arguments. Null if kernels are functions of the host; tests/ptx sets another.
inline void (*run_kernel)(const void* kernel, const void* arguments, size_t bytes) = nullptr;

// Returns the function that each thread of a launch calls. The caller owns the arguments.
template <class Args>
std::function<void()> call_of(const void* kernel, const Args& args) {
  if (run_kernel != nullptr) return [kernel, &args] { run_kernel(kernel, &args, sizeof args); };
  const auto function = reinterpret_cast<void (*)(Args)>(const_cast<void*>(kernel));
  return [function, &args] { function(args); };
}

}  // namespace simt
