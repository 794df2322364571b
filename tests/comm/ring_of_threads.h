// Ranks as threads that connect over a store in memory.
#pragma once

#include <dirent.h>
#include <sys/socket.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "check.h"
#include "comm/memory_store.h"
#include "comm/rendezvous.h"

namespace ringkern::test {

inline int open_files() {
  int n = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  REQUIRE(dir != nullptr);
  while (::readdir(dir) != nullptr) ++n;
  ::closedir(dir);
  return n;
}

// Returns this process's mappings of named files in /dev/shm; another run of the tests may have
// files there, too. The library's files have no name, so that a kill leaves nothing behind.
inline std::string named_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  std::string found;
  for (std::string line; std::getline(maps, line);)
    if (line.find(" /dev/shm/") != std::string::npos && !line.ends_with("(deleted)"))
      found += line + "\n";
  return found;
}

// A message that no rank sends.
inline void send_with_too_many_fds(const Fd& socket, const std::string& bytes) {
  send_message(socket, bytes, std::vector<int>(kMaxFds + 1, socket.get()));
}

// A store in memory that may fail: `use` is called before each use, and may throw.
struct FrailStore final : Store {
  std::function<void()> use;
  MemoryStore store;

  void set(const std::string& key, const std::string& value) override {
    use();
    store.set(key, value);
  }
  std::string get(const std::string& key, Milliseconds timeout) override {
    use();
    return store.get(key, timeout);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    use();
    return store.add(key, amount);
  }
};

// The outcome of a call on one rank. `kind` is empty when nothing was thrown; `lost`: the ranks
// named by a PeerLostError.
struct Outcome {
  std::string kind, text;
  int lost = -1;
  Neighbours neighbours;
};

// Runs one thread for each rank; all have ended on return.
inline std::vector<Outcome> on_threads(int ranks, const std::function<Neighbours(int)>& call) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Outcome& o = outcomes[size_t(rank)];
      const auto note = [&](const char* kind, const std::exception& e) {
        o.kind = kind;
        o.text = e.what();
      };
      try {
        o.neighbours = call(rank);
      } catch (const RendezvousError& e) {
        note("RendezvousError", e);
      } catch (const PeerLostError& e) {
        note("PeerLostError", e);
        o.lost = e.facts.rank;
      } catch (const TransportError& e) {
        note("TransportError", e);
      } catch (const std::exception& e) {
        note("another", e);
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline Place place_of(int rank, int size, bool reversed = false) {
  const int next = (rank + 1) % size, prev = (rank + size - 1) % size;
  return {rank, size, reversed ? prev : next, reversed ? next : prev};
}

inline Terms some_terms() {
  Terms terms;
  for (int p = 0; p < kProtocols; ++p) terms.geometry.slot_bytes[p] = 1024;
  terms.segment_bytes = 4096;
  return terms;
}

// The arguments of one rank's join; a test changes the one it tests.
struct Joiner {
  Store& store;
  std::string prefix;
  Place place;
  Terms terms = some_terms();
  Milliseconds timeout{20000};  // reached only in tests of the timeout
  std::function<Offer()> make_offer = [] { return Offer{"some bytes"}; };
  std::function<void(const Offer& next, const Offer& prev)> map = [](const Offer&, const Offer&) {};
  std::function<void(const std::vector<Offer>&)> map_all = [](const std::vector<Offer>&) {};
  MakeWord make_word = [](const std::vector<std::string>&) { return std::string(); };
  std::function<void(const std::string&)> hear = [](const std::string&) {};

  Neighbours join() const {
    return join_ring(store, prefix, place, terms, timeout, make_word, make_offer,
                     [this](const std::vector<Offer>& offers, const std::string& heard) {
                       map(offers[size_t(place.next)], offers[size_t(place.prev)]);
                       map_all(offers);
                       hear(heard);
                     });
  }
};

// Runs all ranks of a ring over a store of its own; `change` makes one different.
inline std::vector<Outcome> join_all(int ranks, const std::function<void(Joiner&)>& change) {
  MemoryStore store;
  return on_threads(ranks, [&](int rank) {
    Joiner joiner{store, "ring", place_of(rank, ranks)};
    change(joiner);
    return joiner.join();
  });
}

inline void check_outcome(const Outcome& o, const std::string& kind, const std::string& text) {
  if (o.kind != kind) std::fprintf(stderr, "%s\n", o.text.c_str());
  CHECK_EQ(o.kind, kind);
  CHECK_CONTAINS(o.text, text);
}

inline void check_all(const std::vector<Outcome>& outcomes, const std::string& kind,
                      const std::string& text) {
  for (const Outcome& o : outcomes) check_outcome(o, kind, text);
}

}  // namespace ringkern::test
