// Ranks as threads, with communicators of their own, whose calls wait until they are aborted.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "comm/communicator.h"
#include "comm/event_queue.h"
#include "comm/memory_store.h"

namespace ringkern::test {

inline constexpr Milliseconds kLong{20000};

inline std::atomic<int> in_a_wait{0};

// Returns the events since the last call.
inline std::vector<QueuedEvent> queued_events() {
  std::vector<QueuedEvent> all;
  EventQueue::all().close();
  while (auto one = EventQueue::all().next()) all.push_back(*one);
  EventQueue::all().open();
  return all;
}
inline int count_of(const std::vector<QueuedEvent>& events, EventKind kind) {
  return int(std::count_if(events.begin(), events.end(),
                           [&](const QueuedEvent& n) { return n.kind == kind; }));
}

// The device's display, set by a test; initially empty.
struct Shown {
  std::atomic<bool> shows{false};
  std::mutex mutex;
  Executor::Progress progress;

  void done(uint64_t seq) {
    std::lock_guard lock(mutex);
    progress.done = seq;
  }
  void fail(Verdict verdict, uint64_t seq, int peer, int rank = 0, const RankNames& names = {}) {
    const WaitReport report{verdict, WaitFor::data, Protocol::simple, 2, peer, 7, 6};
    std::lock_guard lock(mutex);
    progress.failed = failed_wait(report, rank, peer, seq, {}, 1'500'000'000, names);
  }
};

// A call lasts until it is aborted; an empty or enqueued one ends at once.
struct FakeExecutor final : Executor {
  FakeExecutor(bool enqueues, std::shared_ptr<Shown> shown)
      : enqueues_(enqueues), shown_(std::move(shown)) {}
  RunResult run(const Task& task) override {
    if (enqueues_ || task.count == 0)
      return {.under_way = enqueues_ && shown_->shows && task.count > 0};
    ++in_a_wait;
    while (!aborted_) std::this_thread::sleep_for(Milliseconds(1));
    throw AbortedError("rank ? waited.", {1, task.seq, "waited"});
  }
  bool enqueues() const override { return enqueues_; }
  void abort() override { aborted_ = true; }
  Progress progress() const override {
    std::lock_guard lock(shown_->mutex);
    return shown_->progress;
  }
  const bool enqueues_;
  const std::shared_ptr<Shown> shown_;
  std::atomic<bool> aborted_{false};
};

struct FakeTransport final : Transport {
  void* mine() override { return &memory_; }
  Offer offer() override { return {"some bytes"}; }
  void* map(const Offer& offer, int) override {
    CHECK_EQ(offer.bytes, std::string("some bytes"));
    CHECK(offer.fds.empty());  // the control page is the communicator's
    return &memory_;
  }
  int memory_ = 0;
};

struct Rank {
  Rank(const std::shared_ptr<Store>& store, int rank, int ranks, bool enqueues = false,
       RankNames names = {})
      : comm(store, "group", rank, ranks, kLong, std::move(names)) {
    device.name = "cpu";
    device.make_transport = [] { return std::make_unique<FakeTransport>(); };
    device.make_executor = [enqueues, shown = shown](const Segments&) {
      return std::make_unique<FakeExecutor>(enqueues, shown);
    };
  }
  // Makes a call that ends at once.
  void pass() { comm.run(device, Task{}); }
  void wait(int64_t count, DType dtype = DType::f32, Op op = Op::sum, bool wide = false) {
    Task task;
    task.count = count;
    task.reduction = Reduction::of(op, dtype, comm.ranks(), /*factor=*/1.0, wide);
    comm.run(device, task);
  }

  const std::shared_ptr<Shown> shown = std::make_shared<Shown>();
  Device device;
  Communicator comm;
};

// Runs one thread for each rank. Returns the error of each.
inline std::vector<std::string> on_ranks(int ranks, const std::function<void(Rank&)>& body,
                                         bool enqueues = false, RankNames names = {}) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Rank>> all;
  for (int r = 0; r < ranks; ++r)
    all.push_back(std::make_unique<Rank>(store, r, ranks, enqueues, names));
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      const auto note = [&](const std::string& kind, const Error& e) {
        texts[size_t(r)] = kind + " " + std::to_string(e.facts.rank) + " " +
                           std::to_string(e.facts.seq) + ": " + e.what();
      };
      try {
        body(*all[size_t(r)]);
      } catch (const PeerLostError& e) {
        note("PeerLostError", e);
      } catch (const MismatchError& e) {
        note("MismatchError", e);
      } catch (const TimeoutError& e) {
        note("TimeoutError", e);
      } catch (const AbortedError& e) {
        note("AbortedError", e);
      }
    });
  for (std::thread& thread : threads) thread.join();
  return texts;
}

}  // namespace ringkern::test
