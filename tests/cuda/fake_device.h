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
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "comm/worker.h"
#include "core/schedule.h"
#include "cpu/simple.h"
#include "cuda/launch.h"

namespace ringkern::test {

// The link of a rank on one channel, which waits as a kernel does.
struct FakeContext : cpu::LinkContext {
  template <class Ready>
  Verdict until(WaitFor, Ready&& ready) {
    const auto start = std::chrono::steady_clock::now();
    for (int polls = 0;; ++polls) {
      const bool come = ready();  // also where a counter is poisoned
      if (come && !poisoned()) return Verdict::ok;
      const Verdict verdict = look(std::chrono::steady_clock::now() - start);
      if (verdict != Verdict::ok) return verdict;
      if (polls < 100) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  Verdict wait_credit(Protocol p) {
    return checked(until(WaitFor::credit, [&] { return ends.has_credit(); }), p, WaitFor::credit);
  }

  Verdict look(std::chrono::nanoseconds waited) {
    if (std::atomic_ref(rank->mailbox->aborted).load() != 0 ||
        std::atomic_ref(*rank->failed).load() != 0 || poisoned())
      return Verdict::aborted;
    const bool late = timeout_ns > 0 && uint64_t(waited.count()) >= timeout_ns;
    return late ? Verdict::timed_out : Verdict::ok;
  }
  bool poisoned() {
    return cpu::load_acquire(ends.mine.tail.value) == cuda::kPoisoned ||
           cpu::load_acquire(ends.mine.head.value) == cuda::kPoisoned;
  }

  const cuda::RankArgs* rank;
  uint64_t timeout_ns;
};

// A kernel of one rank.
class FakeKernel {
 public:
  FakeKernel(const cuda::LaunchArgs& args, const cuda::RankArgs& rank)
      : args_(args), rank_(rank), reducer_(args.reduction) {}

  void run() {
    for (channel_ = 0; channel_ < args_.plan.channels; ++channel_)
      if (std::atomic_ref(*rank_.failed).load() != 0 || run_channel() != Verdict::ok)
        return poison_links();
    if (args_.seq > 0)
      std::atomic_ref(rank_.mailbox->done).store(args_.seq, std::memory_order_release);
  }

 private:
  Verdict run_channel() {
    cpu::Wait::Clock::time_point unused;
    cpu::Wait wait(nobody_, /*pauses=*/0, std::chrono::nanoseconds(0), unused);
    WaitReport report;
    const cpu::Ends ends(memory(rank_.mine), memory(next()), memory(prev()), args_.geometry,
                         args_.plan.protocol);
    cpu::SimpleLinkOver<FakeContext> link(
        {{ends, wait, reducer_, rank_.in, rank_.out, report}, &rank_, args_.timeout_ns});
    const Verdict verdict = run_schedule(args_.plan, rank_.rank, channel_, link);
    if (verdict != Verdict::ok && std::atomic_ref(*rank_.failed).exchange(1) == 0) record(report);
    return verdict;
  }

  void record(const WaitReport& found) {
    WaitReport& r = rank_.mailbox->report;
    r.what = found.what, r.protocol = args_.plan.protocol, r.channel = channel_;
    r.wanted = found.wanted, r.seen = found.seen == cuda::kPoisoned ? r.wanted - 1 : found.seen;
    r.seq = args_.seq, r.timeout_ns = args_.timeout_ns;
    std::atomic_ref(r.verdict).store(found.verdict, std::memory_order_release);
  }

  void poison_links() {
    for (channel_ = 0; channel_ < args_.geometry.channels; ++channel_)
      for (int p = 0; p < kProtocols; ++p) {
        cpu::store_release(memory(next()).counters[p].tail.value, cuda::kPoisoned);
        cpu::store_release(memory(prev()).counters[p].head.value, cuda::kPoisoned);
      }
  }

  std::byte* neighbour(std::byte* numbered, int rank) const {
    return args_.plan.orders.count == 0 ? numbered : rank_.all[rank];
  }
  std::byte* next() const { return neighbour(rank_.next, args_.plan.next(channel_, rank_.rank)); }
  std::byte* prev() const { return neighbour(rank_.prev, args_.plan.prev(channel_, rank_.rank)); }
  // Of the channel; nobody sleeps there.
  cpu::LinkMemory memory(std::byte* segment) {
    std::byte* const at = segment + channel_ * args_.geometry.channel_bytes();
    return {&nobody_, reinterpret_cast<LinkCounters*>(at), at + args_.geometry.counters_bytes()};
  }

  const cuda::LaunchArgs& args_;
  const cuda::RankArgs& rank_;
  const Reducer reducer_;
  cpu::Bell nobody_{};
  int channel_ = 0;
};

// Never destroyed: its thread may outlive statics.
class FakeDevice {
 public:
  void later(std::function<void()> what) {
    ++asked_;  // before it can be done
    worker_.post(
        [this, what = std::move(what)] {
          what();
          ++done_;
          done_.notify_all();
        },
        [] {});
  }
  // Returns a ticket: what has been asked for so far.
  uint64_t asked() const { return asked_; }
  bool ended(uint64_t ticket) const { return done_ >= ticket; }
  void wait(uint64_t ticket) const {
    for (uint64_t done = done_; done < ticket; done = done_) done_.wait(done);
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

  Worker worker_;
  std::atomic<uint64_t> asked_{0}, done_{0};
  std::map<void*, Memory> mine_;  // of the thread that makes the ring alone
};

}  // namespace ringkern::test
