// A fake CUDA device that works: a thread does what is launched and copied, in the order in which
// it was asked for, and its memory can be opened by other processes.
//
// A launch moves its data as the kernels of Simple do, whatever its protocol and algorithm: through
// the same FIFOs, counters and words for the host, one channel after the other. Unlike a GPU, the
// device stops with its process.
#pragma once

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/schedule.h"
#include "cpu/link.h"
#include "cuda/launch.h"

namespace ringkern::test {

// A kernel of one rank.
class FakeKernel {
 public:
  FakeKernel(const cuda::LaunchArgs& args, const cuda::RankArgs& rank)
      : args_(args), rank_(rank), reducer_(args.reduction) {}

  void run() {
    for (channel_ = 0; channel_ < args_.plan.channels; ++channel_) {
      const bool dead = std::atomic_ref(*rank_.failed).load() != 0;
      if (dead || run_schedule(args_.plan, rank_.rank, channel_, *this) != Verdict::ok)
        return poison_links();
    }
    if (args_.seq > 0)
      std::atomic_ref(rank_.mailbox->done).store(args_.seq, std::memory_order_release);
  }

  // Called by run_schedule.
  Verdict perform(Verb verb, const Plan& plan, const Chunk& chunk) {
    for (int i = 0; i < plan.slices(chunk.count); ++i) {
      const Verdict verdict = perform(verb, chunk, plan.slice(chunk.count, i));
      if (verdict != Verdict::ok) return verdict;
    }
    return Verdict::ok;
  }

 private:
  Verdict perform(Verb verb, const Chunk& chunk, const Slice& slice) {
    LinkCounters& mine = counters(rank_.mine);
    const uint64_t received = mine.received.value, sent = mine.sent.value;
    Verdict verdict = Verdict::ok;
    if (receives(verb)) verdict = wait(WaitFor::data, mine.tail.value, received + 1, 0);
    if (verdict == Verdict::ok && sends(verb))
      verdict = wait(WaitFor::credit, mine.head.value, sent + 1, uint64_t(args_.geometry.slots));
    if (verdict != Verdict::ok) return verdict;
    const int64_t bytes = reducer_.element_bytes();
    cpu::Block block;
    if (receives(verb)) block.incoming = slot(rank_.mine, received);
    if (reads_input(verb)) block.in = rank_.in + (chunk.in + slice.first) * bytes;
    if (copies(verb)) block.out = rank_.out + (chunk.out + slice.first) * bytes;
    if (sends(verb)) block.to = slot(next(), sent);
    block.count = slice.count;
    cpu::move(reducer_, verb, block);
    if (receives(verb)) cpu::store_release(counters(prev()).head.value, ++mine.received.value);
    if (sends(verb)) cpu::store_release(counters(next()).tail.value, ++mine.sent.value);
    return Verdict::ok;
  }

  Verdict wait(WaitFor what, uint64_t& word, uint64_t step, uint64_t ahead) {
    const auto start = std::chrono::steady_clock::now();
    for (int polls = 0;; ++polls) {
      const uint64_t seen = cpu::load_acquire(word);
      if (seen != cuda::kPoisoned && seen + ahead >= step) return Verdict::ok;
      const Verdict verdict = look(std::chrono::steady_clock::now() - start);
      if (verdict != Verdict::ok) {
        if (std::atomic_ref(*rank_.failed).exchange(1) == 0)
          record(verdict, what, step - ahead, seen);
        return verdict;
      }
      if (polls < 100) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  Verdict look(std::chrono::nanoseconds waited) {
    LinkCounters& mine = counters(rank_.mine);
    if (std::atomic_ref(rank_.mailbox->aborted).load() != 0 ||
        std::atomic_ref(*rank_.failed).load() != 0 ||
        cpu::load_acquire(mine.tail.value) == cuda::kPoisoned ||
        cpu::load_acquire(mine.head.value) == cuda::kPoisoned)
      return Verdict::aborted;
    const bool late = args_.timeout_ns > 0 && uint64_t(waited.count()) >= args_.timeout_ns;
    return late ? Verdict::timed_out : Verdict::ok;
  }

  void record(Verdict verdict, WaitFor what, uint64_t wanted, uint64_t seen) {
    WaitReport& r = rank_.mailbox->report;
    r.what = what, r.protocol = args_.plan.protocol, r.channel = channel_;
    r.wanted = wanted, r.seen = seen == cuda::kPoisoned ? wanted - 1 : seen;
    r.seq = args_.seq, r.timeout_ns = args_.timeout_ns;
    std::atomic_ref(r.verdict).store(verdict, std::memory_order_release);
  }

  void poison_links() {
    for (channel_ = 0; channel_ < args_.geometry.channels; ++channel_)
      for (int p = 0; p < kProtocols; ++p) {
        cpu::store_release(counters(next(), p).tail.value, cuda::kPoisoned);
        cpu::store_release(counters(prev(), p).head.value, cuda::kPoisoned);
      }
  }

  std::byte* neighbour(std::byte* numbered, int rank) const {
    return args_.plan.orders.count == 0 ? numbered : rank_.all[rank];
  }
  std::byte* next() const { return neighbour(rank_.next, args_.plan.next(channel_, rank_.rank)); }
  std::byte* prev() const { return neighbour(rank_.prev, args_.plan.prev(channel_, rank_.rank)); }
  LinkCounters& counters(std::byte* segment) const {
    return counters(segment, int(args_.plan.protocol));
  }
  LinkCounters& counters(std::byte* segment, int protocol) const {
    return *reinterpret_cast<LinkCounters*>(
        segment + args_.geometry.counters_offset(channel_, Protocol(protocol)));
  }
  std::byte* slot(std::byte* segment, uint64_t step) const {
    const Protocol p = args_.plan.protocol;
    const auto index = int64_t(step % uint64_t(args_.geometry.slots));
    return segment + args_.geometry.fifo_offset(channel_, p) +
           index * args_.geometry.slot_bytes[int(p)];
  }

  const cuda::LaunchArgs& args_;
  const cuda::RankArgs& rank_;
  const Reducer reducer_;
  int channel_ = 0;
};

class FakeDevice {
 public:
  FakeDevice() {
    std::thread([this] { work(); }).detach();
  }

  // Returns a ticket.
  uint64_t later(std::function<void()> what) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(what));
    changed_.notify_all();
    return ++asked_;
  }
  uint64_t asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }
  bool ended(uint64_t ticket) {
    std::lock_guard lock(mutex_);
    return done_ >= ticket;
  }
  void wait(uint64_t ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= ticket; });
  }

  // ---- memory that other processes can open

  void* claim(size_t bytes) {
    const int fd = ::memfd_create("fake device", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, off_t(bytes)) != 0) return nullptr;
    void* at = map(fd, bytes);
    mine_.at(at).fd = fd;
    return at;
  }
  void free(void* at) {
    ::close(mine_.at(at).fd);
    ::munmap(at, mine_.extract(at).mapped().bytes);
  }
  cudaIpcMemHandle_t handle_of(void* at) const {
    cudaIpcMemHandle_t handle{};
    const Handle h{::getpid(), mine_.at(at)};
    return std::memcpy(&handle, &h, sizeof h), handle;
  }
  void* open(const cudaIpcMemHandle_t& handle) {
    Handle h{};
    std::memcpy(&h, &handle, sizeof h);
    const std::string path =
        "/proc/" + std::to_string(h.pid) + "/fd/" + std::to_string(h.memory.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void* at = map(fd, h.memory.bytes);
    ::close(fd);
    return at;
  }
  void close(void* at) { ::munmap(at, mine_.extract(at).mapped().bytes); }

 private:
  struct Memory {
    size_t bytes;
    int fd;
  };
  struct Handle {
    pid_t pid;
    Memory memory;
  };

  void* map(int fd, size_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    mine_[at] = {bytes, -1};
    return at;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !queue_.empty(); });
      std::function<void()> what = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      what();
      what = nullptr;  // what it holds may be Python's, whose lock comes before this one
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t asked_ = 0, done_ = 0;
  std::map<void*, Memory> mine_;  // of the thread that makes the ring alone
};

}  // namespace ringkern::test
