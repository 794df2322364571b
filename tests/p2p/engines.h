// Ranks that send each other messages, as threads or as processes, and the outcome of each message.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "comm/ring_of_threads.h"
#include "p2p/engine.h"

namespace ringkern::test {

using cpu::kAnySource;
using cpu::P2pEngine;
using Bytes = std::vector<unsigned char>;

inline constexpr Milliseconds kLong{60000};  // reached only in tests of the timeout

inline constexpr size_t kTooMuch = 2 << 20;  // for a link that no rank reads
inline constexpr Protocol kAll[] = {Protocol::simple, Protocol::ll, Protocol::ll128};

// Every byte of a message is a function of these, so that no byte can belong to another message.
inline Bytes contents(int from, int to, uint64_t tag, size_t n) {
  Bytes bytes(n);
  uint64_t x = uint64_t(from) * 1000003 + uint64_t(to) * 10007 + tag * 101 + n;
  for (unsigned char& b : bytes) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<unsigned char>(x >> 56);
  }
  return bytes;
}

// The messages that one rank has posted, and their outcomes.
class Box {
 public:
  explicit Box(P2pEngine& engine) : engine_(engine) {}
  ~Box() { wait(); }

  // The box owns their data. Return the number of the message.
  size_t send(int to, uint64_t tag, Bytes bytes, Protocol protocol = Protocol::simple,
              Milliseconds timeout = Milliseconds(0)) {
    return post({true, to, tag, protocol, nullptr, 0, timeout, {}}, std::move(bytes));
  }
  size_t receive(int from, uint64_t tag, size_t n, Milliseconds timeout = Milliseconds(0)) {
    return post({false, from, tag, {}, nullptr, 0, timeout, {}}, Bytes(n, 0xee));
  }

  // Waits until all have ended.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pending_ == 0; });
  }
  void wait_for(size_t message) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entries_[message].done; });
  }
  bool done(size_t message) {
    std::lock_guard lock(mutex_);
    return entries_[message].done;
  }
  const Bytes& bytes(size_t message) { return entry(message).bytes; }
  int source(size_t message) { return entry(message).source; }

  // Rethrows the error of any of them.
  void check() {
    wait();
    for (auto& [number, e] : entries_)
      if (e.error) std::rethrow_exception(e.error);
  }
  // Returns class and text of the error; the class is empty without one.
  Outcome outcome(size_t message) {
    wait_for(message);
    Outcome o;
    const auto note = [&](const char* kind, const std::exception& e) {
      o.kind = kind;
      o.text = e.what();
    };
    try {
      if (entry(message).error) std::rethrow_exception(entry(message).error);
    } catch (const TimeoutError& e) {
      note("TimeoutError", e);
    } catch (const AbortedError& e) {
      note("AbortedError", e);
    } catch (const UsageError& e) {
      note("UsageError", e);
    } catch (const MismatchError& e) {
      note("MismatchError", e);
    } catch (const SharedMemoryError& e) {
      note("SharedMemoryError", e);
    } catch (const PeerLostError& e) {
      note("PeerLostError", e);
    } catch (const TransportError& e) {
      note("TransportError", e);
    } catch (const std::exception& e) {
      note("another", e);
    }
    return o;
  }

 private:
  struct Entry {
    Bytes bytes;
    bool done = false;
    int source = -2;
    std::exception_ptr error;
  };
  Entry& entry(size_t message) {
    std::lock_guard lock(mutex_);
    return entries_[message];
  }
  size_t post(cpu::Message message, Bytes bytes) {
    size_t number;
    {
      std::lock_guard lock(mutex_);
      number = entries_.size();
      Entry& e = entries_[number];
      e.bytes = std::move(bytes);
      message.data = e.bytes.data();
      message.bytes = int64_t(e.bytes.size());
      message.done = [this, &e](std::exception_ptr error, int source) {
        std::lock_guard lock(mutex_);
        CHECK(!e.done);
        e.done = true;
        e.source = source;
        e.error = error;
        --pending_;
        changed_.notify_all();
      };
      ++pending_;
    }
    try {
      engine_.post({std::move(message)});
    } catch (...) {
      std::lock_guard lock(mutex_);
      entries_.erase(number);
      --pending_;
      throw;
    }
    return number;
  }

  P2pEngine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, Entry> entries_;
  size_t pending_ = 0;
};

struct Rank {
  int rank, ranks;
  std::shared_ptr<Store> store;
  P2pEngine engine;
  Box box;

  Rank(std::shared_ptr<Store> s, int r, int k, Milliseconds timeout = kLong)
      : rank(r), ranks(k), store(s), engine(s, "group", r, k, timeout), box(engine) {}

  // Waits until all ranks, or this many, have reached it; sends no message.
  void barrier(const std::string& name, int of = 0) {
    if (store->add(name, 1) == (of > 0 ? of : ranks)) store->set(name + " all", "");
    store->get(name + " all", kLong);
  }
};

// Returns the error of an unusable engine.
inline std::string refusal(Rank& r) {
  try {
    r.engine.post({{true, (r.rank + 1) % r.ranks, 0, {}, nullptr, 0, {}, nullptr}});
  } catch (const AbortedError& e) {
    return e.what();
  }
  return "none";
}

inline void check_message(Rank& r, size_t message, const std::string& kind,
                          const std::vector<std::string>& texts) {
  for (const std::string& text : texts) check_outcome(r.box.outcome(message), kind, text);
}

// Sends back and forth; on return, the engines have had time for all other work.
inline void talk(Rank& r, int with, uint64_t tag) {
  for (int i = 0; i < 50; ++i) {
    if (r.rank < with) r.box.send(with, tag, Bytes(1));
    r.box.wait_for(r.box.receive(with, tag, 1));
    if (r.rank > with) r.box.send(with, tag, Bytes(1));
  }
}

// Runs one thread for each rank, each with an engine of its own.
inline void on_engines(int ranks, const std::function<void(Rank&)>& body,
                       Milliseconds timeout = kLong) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        Rank rank(store, r, ranks, timeout);
        body(rank);
      } catch (const std::exception& e) {
        FAIL("rank " + std::to_string(r) + ": " + e.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ringkern::test
