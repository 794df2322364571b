// Objects that ranks make, use and end while one of them has a fault.
#pragma once

#include <future>
#include <optional>

#include "faults/calls.h"
#include "faults/shared.h"
#include "p2p/engine.h"

namespace ringkern::faults {

inline constexpr int kRanks = 3;
inline constexpr Milliseconds kTimeout{5000};
inline constexpr int kPatience = 30'000;  // ms, for a wait for ranks

// Objects that ranks make and end.
enum class Made { communicator, p2p_engine };
inline constexpr const char* kMade[] = {"communicator", "p2p engine"};

// Waits until all ranks have reached it.
inline void meet(Store& store, const std::string& name) {
  store.add(name, 1);
  CHECK(wait_for([&] { return store.add(name, 0) == kRanks; }, kPatience));
}

// Makes a communicator, uses it, calls `made()` and ends it.
inline void use_communicator(std::shared_ptr<Store> store, const std::string& name, int rank,
                             const std::function<void()>& made) {
  const Device device = cpu_device(rank, kRanks, kTimeout);
  Communicator comm(store, name, rank, kRanks, kTimeout);
  std::vector<int32_t> data(1000, rank + 1);
  Task task;
  task.reduction = Reduction::of(Op::sum, DType::i32, kRanks);
  task.in = task.out = data.data();
  task.count = int64_t(data.size());
  comm.run(device, task);
  for (const int32_t x : data) CHECK_EQ(x, kRanks * (kRanks + 1) / 2);
  made();
  comm.close();
}

// Every rank sends to every other.
inline void use_p2p_engine(std::shared_ptr<Store> store, const std::string& name, int rank,
                           const std::function<void()>& made) {
  // Every rank comes once, however it fails.
  struct Meeting {
    Store& store;
    const std::string name;
    bool over = false;
    void now() {
      over = true;
      meet(store, name);
    }
    ~Meeting() {
      if (!over) now();
    }
  };
  std::optional<cpu::P2pEngine> engine;
  // A rank that gives up shows this only while it exists, so none leaves before all know the
  // outcome.
  const Meeting leaving{*store, name + " has ended"};
  // Two ranks may have two connections, of which the messages need one. A rank that has its
  // messages may still fail over the other, and its peers fail with it unless they have theirs.
  Meeting served{*store, name + " has its messages"};
  engine.emplace(store, name, rank, kRanks, kTimeout);
  struct Note {
    int64_t out, in = -1;
    std::promise<void> sent, received;
  };
  std::vector<Note> notes(kRanks);
  const auto told = [](std::promise<void>& to) {
    return [&to](std::exception_ptr error, int) {
      if (error) to.set_exception(error);
      else to.set_value();
    };
  };
  std::exception_ptr first;
  const auto attempt = [&](const std::function<void()>& step) {
    try {
      step();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  std::vector<std::future<void>> ends;
  for (int peer = 0; peer < kRanks; ++peer) {
    if (peer == rank) continue;
    Note& note = notes[size_t(peer)];
    note.out = 10 * rank + peer;
    attempt([&] {
      engine->post({{true, peer, 0, Protocol::simple, &note.out, 8, {}, told(note.sent)},
                    {false, peer, 0, Protocol::simple, &note.in, 8, {}, told(note.received)}});
      ends.push_back(note.sent.get_future());
      ends.push_back(note.received.get_future());
    });
  }
  // all of them, because they write to the notes
  for (std::future<void>& end : ends) attempt([&] { end.get(); });
  served.now();
  if (first) std::rethrow_exception(first);
  for (int peer = 0; peer < kRanks; ++peer)
    if (peer != rank) CHECK_EQ(notes[size_t(peer)].in, int64_t(10 * peer + rank));
  made();
  engine->close();
}

inline void use(Made what, std::shared_ptr<Store> store, const std::string& name, int rank,
                const std::function<void()>& made) {
  (what == Made::communicator ? use_communicator : use_p2p_engine)(store, name, rank, made);
}

}  // namespace ringkern::faults
