// Instructions on the host's own memory. A block is resident from when it has found room until its
// threads have ended: each CUDA thread is a fiber, and the thread of the host that launches runs
// them all.
//
// ORDERING   an access is an atomic one of the host, by its order; one of 16 bytes is two words.
//            A barrier and a warp order nothing more: one thread of the host runs them all.
// LINES      a line is stored word by word, upwards, each word by a release, and loaded by
//            acquires. Another process may see half of it, but never its last word, the flag,
//            before the rest. So a line that a warp loads after it has seen the flag is whole.
// POLLING    a warp polls in vain when it votes so. When all runnable warps have polled in vain,
//            the thread yields the processor to other processes, and then they poll again.
#include "host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "machine.h"
#include "simt/fiber.h"
#include "simt/memory.h"

namespace ptx {
namespace {

using machine::Access;
using machine::Order;
using simt::Failure;

constexpr int kWarp = 32;
constexpr int kYields = 4;           // in a row, before the thread sleeps
constexpr useconds_t kPauseUs = 50;  // for which it sleeps

enum class Meeting : uint8_t { none, sync, all, shuffle, line_load, line_store };

struct Warp;
struct Block;

struct Thread {
  simt::Fiber fiber;
  std::vector<uint64_t> registers;
  uint32_t index = 0;
  Warp* warp = nullptr;
  Block* block = nullptr;
  // Brought to a meeting or a barrier, and taken away.
  bool predicate = false;
  uint32_t value = 0, lane = 0;
  uint64_t at = 0, words[2] = {};
  const void* instruction = nullptr;
};

struct Warp {
  Thread* lanes[kWarp] = {};
  Meeting meeting = Meeting::none;
  int arrived = 0;
};

struct Block {
  struct Barrier {
    uint32_t expected = 0;
    bool any = false;
    std::vector<Thread*> waiting;
  };
  uint32_t index = 0, threads = 0, blocks = 0;
  uint32_t live = 0;  // threads
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::vector<std::byte> shared;
};

// ---- Memory

template <class T>
T* place_of(uint64_t at) {
  if (at % sizeof(T) != 0) throw Failure("misaligned", "an access of " + std::to_string(sizeof(T)));
  return reinterpret_cast<T*>(at);
}
template <class T>
void load_word(uint64_t at, void* to, bool acquire) {
  const T* from = place_of<const T>(at);
  const T word =
      acquire ? __atomic_load_n(from, __ATOMIC_ACQUIRE) : __atomic_load_n(from, __ATOMIC_RELAXED);
  std::memcpy(to, &word, sizeof word);
}
template <class T>
void store_word(uint64_t at, const void* from, bool release) {
  T word;
  std::memcpy(&word, from, sizeof word);
  T* to = place_of<T>(at);
  if (release) __atomic_store_n(to, word, __ATOMIC_RELEASE);
  else __atomic_store_n(to, word, __ATOMIC_RELAXED);
}
void check_whole(uint64_t at, int bytes) {
  if (at % uint64_t(bytes) != 0) throw Failure("misaligned", "an access of 16 bytes");
}
void load_words(uint64_t at, uint64_t* to, bool acquire) {
  check_whole(at, 16);
  load_word<uint64_t>(at, to, acquire);
  load_word<uint64_t>(at + 8, to + 1, acquire);
}
void store_words(uint64_t at, const uint64_t* from, bool release) {
  check_whole(at, 16);
  store_word<uint64_t>(at, from, release);
  store_word<uint64_t>(at + 8, from + 1, release);
}

template <class T>
T update_word(uint64_t at, const machine::Change& change) {
  T* word = place_of<T>(at);
  T before = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  for (;;) {
    const auto after = change(before);
    if (!after || __atomic_compare_exchange_n(word, &before, T(*after), /*weak=*/false,
                                              __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
      return before;
  }
}

// ---- The threads of a launch and their turns

class Grid {
 public:
  void run(const Kernel& kernel, uint32_t blocks, uint32_t threads,
           const std::vector<std::byte>& arguments, Room& room);
  Thread& self() { return *self_; }

  void meet(Meeting kind) {
    Warp& w = *self_->warp;
    if (w.arrived != 0 && w.meeting != kind)
      throw Failure("divergent", "other lanes of its warp do something else together");
    w.meeting = kind;
    if (++w.arrived < kWarp) return suspend();
    w.arrived = 0;
    if (hold(w)) {
      progress_ = progress_ || kind == Meeting::all;  // others also come before a vote in vain
      return wake(w.lanes, w.lanes + kWarp);
    }
    polling_.push_back(&w);
    suspend();
  }

  bool barrier(uint32_t id, uint32_t threads, bool predicate) {
    if (id >= std::size(self_->block->barriers)) throw Failure("divergent", "no such barrier");
    Block::Barrier& b = self_->block->barriers[id];
    if (!b.waiting.empty() && b.expected != threads)
      throw Failure("divergent", "a barrier for other numbers of threads");
    b.expected = threads;
    b.any = b.any || predicate;
    b.waiting.push_back(self_);
    if (b.waiting.size() < threads) {
      suspend();
      return self_->predicate;
    }
    for (Thread* t : b.waiting) t->predicate = b.any;
    progress_ = true;
    wake(b.waiting.data(), b.waiting.data() + b.waiting.size());
    b.waiting.clear();
    b.any = false;
    return self_->predicate;
  }

 private:
  static void enter(void* thread);

  // All but the one that runs.
  template <class It>
  void wake(It begin, It end) {
    for (It t = begin; t != end; ++t)
      if (*t != self_) ready_.push_back(*t);
  }
  // Until another thread wakes this one.
  void suspend() {
    Thread* before = self_;
    self_ = next();
    if (self_ != before) simt::Fiber::change(before->fiber, self_ ? self_->fiber : main_);
  }
  Thread* next() {
    if (ready_.empty() || !error_.empty()) return nullptr;
    Thread* t = ready_.back();
    ready_.pop_back();
    return t;
  }

  // False: they have polled in vain.
  static bool hold(Warp& w) {
    bool all = true;
    uint32_t values[kWarp];
    for (int i = 0; i < kWarp; ++i) {
      all = all && w.lanes[i]->predicate;
      values[i] = w.lanes[w.lanes[i]->lane % kWarp]->value;
    }
    switch (w.meeting) {
      case Meeting::none:
      case Meeting::sync: break;
      case Meeting::all:
        for (Thread* t : w.lanes) t->predicate = all;
        return all;
      case Meeting::shuffle:
        for (int i = 0; i < kWarp; ++i) w.lanes[i]->value = values[i];
        break;
      case Meeting::line_load:
      case Meeting::line_store:
        for (Thread* t : w.lanes) {
          if (t->instruction != w.lanes[0]->instruction)
            throw Failure("divergent", "lines are accessed by other instructions of its warp");
          if (w.meeting == Meeting::line_load) load_words(t->at, t->words, /*acquire=*/true);
          else store_words(t->at, t->words, /*release=*/true);
        }
    }
    return true;
  }

  // While there is room for one of them.
  void let_blocks_in(uint32_t threads) {
    while (resident_ < blocks_.size() && room_->take()) {
      let_in(blocks_[resident_++], threads);
      progress_ = true;
    }
  }
  void let_in(Block& block, uint32_t threads);

  void poll_again() {
    if (polling_.empty() && resident_ == blocks_.size())
      throw Failure("deadlock", "nobody can go on");
    in_vain_ = progress_ ? 0 : in_vain_ + 1;
    progress_ = false;
    if (in_vain_ > kYields) ::usleep(kPauseUs);
    else if (in_vain_ > 0) ::sched_yield();
    for (Warp* w : polling_) ready_.insert(ready_.end(), w->lanes, w->lanes + kWarp);
    polling_.clear();
  }

  std::deque<Thread> threads_;  // kept from launch to launch
  std::vector<Block> blocks_;
  std::vector<Thread*> ready_;
  std::vector<Warp*> polling_;
  bool progress_ = false;
  int in_vain_ = 0;  // rounds in which all runnable warps have polled
  const Program* program_ = nullptr;
  const std::vector<std::byte>* arguments_ = nullptr;
  Room* room_ = nullptr;
  size_t resident_ = 0;  // blocks that are, or were
  size_t live_ = 0;      // threads that have not ended
  std::string error_;
  simt::Fiber main_;
  Thread* self_ = nullptr;
};

// The grid of the launch that this thread of the host runs.
thread_local Grid* running = nullptr;
Grid& grid() { return *running; }

// Grids whose launches have ended: never destroyed, for their fibers are worth keeping.
struct Idle {
  std::mutex mutex;
  std::vector<Grid*> grids;
};
Idle& idle() {
  static Idle& all = *new Idle;
  return all;
}
void run_on_idle_grid(const Kernel& kernel, uint32_t blocks, uint32_t threads,
                      const std::vector<std::byte>& arguments, Room& room) {
  std::unique_lock lock(idle().mutex);
  if (idle().grids.empty()) idle().grids.push_back(new Grid);
  running = idle().grids.back();
  idle().grids.pop_back();
  lock.unlock();
  running->run(kernel, blocks, threads, arguments, room);
  lock.lock();
  idle().grids.push_back(running);
}

void Grid::enter(void*) {
  Grid& g = grid();
  try {
    g.program_->run(g.arguments_->data(), g.arguments_->size());
    if (g.self_->warp->arrived != 0)
      throw Failure("divergent", "ends while other lanes of its warp wait for it");
  } catch (const std::exception& error) {
    g.error_ = "block " + std::to_string(g.self_->block->index) + " thread " +
               std::to_string(g.self_->index) + ": " + error.what();
  }
  --g.live_;
  if (--g.self_->block->live == 0) g.room_->leave();
  g.progress_ = true;
  Thread* ended = g.self_;
  g.self_ = g.next();
  simt::Fiber::change(ended->fiber, g.self_ ? g.self_->fiber : g.main_);
}

void Grid::let_in(Block& block, uint32_t threads) {
  block.threads = block.live = threads;
  block.blocks = uint32_t(blocks_.size());
  block.warps.resize(threads / kWarp);
  block.shared.assign(size_t(program_->entry().shared_bytes), std::byte(0xA5));
  for (uint32_t i = 0; i < threads; ++i) {
    Thread& t = threads_[size_t(block.index) * threads + i];
    t.index = i;
    t.block = &block;
    t.warp = &block.warps[i / kWarp];
    t.warp->lanes[i % kWarp] = &t;
    t.fiber.prepare(&Grid::enter, nullptr);
    ready_.push_back(&t);
  }
}

void Grid::run(const Kernel& kernel, uint32_t blocks, uint32_t threads,
               const std::vector<std::byte>& arguments, Room& room) {
  program_ = kernel.program.get();
  arguments_ = &arguments;
  room_ = &room;
  resident_ = 0;
  live_ = size_t(blocks) * threads;
  while (threads_.size() < live_) threads_.emplace_back();
  blocks_ = std::vector<Block>(blocks);
  for (uint32_t b = 0; b < blocks; ++b) blocks_[b].index = b;
  try {
    while (live_ > 0 && error_.empty()) {
      let_blocks_in(threads);
      if (ready_.empty()) poll_again();
      if (ready_.empty()) continue;  // no block has room
      self_ = next();
      simt::Fiber::change(main_, self_->fiber);
    }
  } catch (const Failure& failure) {
    error_ = failure.what();
  }
  if (error_.empty()) return;
  // A driver would end the context: nothing that the device has left can be relied upon.
  std::fprintf(stderr, "%s: %s\n", kernel.name.c_str(), error_.c_str());
  std::abort();
}

}  // namespace

namespace machine {

Place place() {
  const Thread& t = grid().self();
  return {t.index, t.block->threads, t.block->index, t.block->blocks};
}
uint64_t* registers(size_t count) {
  std::vector<uint64_t>& mine = grid().self().registers;
  if (mine.size() < count) mine.resize(count);
  return mine.data();
}
std::byte* shared_memory(size_t) { return grid().self().block->shared.data(); }
void use_shared(const std::byte*, bool) {}

void load(uint64_t at, void* to, int bytes, Access access, const void* instruction) {
  const bool acquire = access.order == Order::acquire;
  if (access.order == Order::line) {
    Thread& t = grid().self();
    t.at = at;
    t.instruction = instruction;
    grid().meet(Meeting::line_load);
    std::memcpy(to, t.words, 16);
  } else if (bytes == 16) load_words(at, static_cast<uint64_t*>(to), acquire);
  else if (bytes == 8) load_word<uint64_t>(at, to, acquire);
  else if (bytes == 4) load_word<uint32_t>(at, to, acquire);
  else if (bytes == 2) load_word<uint16_t>(at, to, acquire);
  else load_word<uint8_t>(at, to, acquire);
}
void store(uint64_t at, const void* from, int bytes, Access access, const void* instruction) {
  const bool release = access.order == Order::release;
  if (access.order == Order::line) {
    Thread& t = grid().self();
    t.at = at;
    std::memcpy(t.words, from, 16);
    t.instruction = instruction;
    grid().meet(Meeting::line_store);
  } else if (bytes == 16) store_words(at, static_cast<const uint64_t*>(from), release);
  else if (bytes == 8) store_word<uint64_t>(at, from, release);
  else if (bytes == 4) store_word<uint32_t>(at, from, release);
  else if (bytes == 2) store_word<uint16_t>(at, from, release);
  else store_word<uint8_t>(at, from, release);
}

uint64_t update(uint64_t at, int bytes, Access, const Change& change) {
  return bytes == 8 ? update_word<uint64_t>(at, change) : update_word<uint32_t>(at, change);
}
void give_up() {}
void fence(Access) { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

void sync_warp() { grid().meet(Meeting::sync); }
bool all_lanes(bool p) {
  Thread& t = grid().self();
  t.predicate = p;
  grid().meet(Meeting::all);
  return t.predicate;
}
uint32_t from_lane(uint32_t value, uint32_t lane) {
  Thread& t = grid().self();
  t.value = value;
  t.lane = lane;
  grid().meet(Meeting::shuffle);
  return t.value;
}
void rest() {}  // the vote before it was in vain
bool barrier(uint32_t id, uint32_t threads, bool p) { return grid().barrier(id, threads, p); }

uint64_t nanoseconds() {
  return uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()) /
                  std::chrono::nanoseconds(1));
}

}  // namespace machine

namespace {

// A multiprocessor of compute capability 8.0, 9.0 or 10.0, by the CUDA C++ Programming Guide. The
// registers of a warp are all in one of its four parts.
struct Multiprocessor {
  static constexpr int kThreads = 2048, kBlocks = 32, kParts = 4;
  static constexpr int kRegisters = 65536, kRegistersAtOnce = 256, kSharedAtOnce = 1024;
  static constexpr int kShared = 164 << 10;  // of the smallest, 8.0; a block costs 1 KiB more

  static int blocks(int threads, int registers, int64_t shared_bytes) {
    const int warps = threads / kWarp;
    const int of_warp =
        (registers * kWarp + kRegistersAtOnce - 1) / kRegistersAtOnce * kRegistersAtOnce;
    const int by_registers = kRegisters / kParts / std::max(of_warp, 1) * kParts / warps;
    const int by_shared = kShared / int(shared_bytes + kSharedAtOnce);
    return std::min({kThreads / threads, kBlocks, by_registers, by_shared});
  }
};

const Kernel& kernel_for(const std::string& name, uint32_t threads) {
  static std::mutex mutex;  // of the kernels, which are read when they are asked for
  const std::lock_guard lock(mutex);
  const Kernel& kernel = kernel_called(name);
  const Entry& entry = kernel.program->entry();
  if (threads % kWarp != 0 || threads > uint32_t(entry.most_threads))
    throw Error(name + " takes whole warps of up to " + std::to_string(entry.most_threads) +
                " threads, not " + std::to_string(threads));
  return kernel;
}

int blocks_each(const Kernel& kernel, uint32_t threads) {
  const Entry& entry = kernel.program->entry();
  if (kernel.registers == 0) return std::max(entry.blocks_per_sm, 1);
  return Multiprocessor::blocks(int(threads), kernel.registers, entry.shared_bytes);
}

}  // namespace

Launch launch_of(const std::string& name, uint32_t blocks, uint32_t threads,
                 const void* arguments) {
  const Kernel& kernel = kernel_for(name, threads);
  const auto* bytes = static_cast<const std::byte*>(arguments);
  const std::vector given(bytes, bytes + kernel.program->entry().param_bytes);
  return {blocks, blocks_each(kernel, threads), [&kernel, blocks, threads, given](Room& room) {
            run_on_idle_grid(kernel, blocks, threads, given, room);
          }};
}

int blocks_each(const std::string& name, uint32_t threads) {
  return blocks_each(kernel_for(name, threads), threads);
}

}  // namespace ptx
