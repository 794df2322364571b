// Messages between ranks that are threads arrive. engine_matching_test.cpp tests the matching of
// receives and messages, engine_failure_test.cpp the failures.
#include "p2p/engine.h"

#include <algorithm>
#include <latch>
#include <random>

#include "p2p/engines.h"
#include "p2p/match_queue.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// All ranks send to next and receive from prev at once.
void ring_shift(int ranks, Protocol protocol, const std::vector<size_t>& sizes) {
  on_engines(ranks, [&](Rank& r) {
    const int next = (r.rank + 1) % ranks, prev = (r.rank + ranks - 1) % ranks;
    std::vector<size_t> received;
    for (size_t i = 0; i < sizes.size(); ++i) {
      r.box.send(next, i, contents(r.rank, next, i, sizes[i]), protocol);
      received.push_back(r.box.receive(prev, i, sizes[i]));
    }
    r.box.check();
    for (size_t i = 0; i < sizes.size(); ++i) {
      CHECK(r.box.bytes(received[i]) == contents(prev, r.rank, i, sizes[i]));
      CHECK_EQ(r.box.source(received[i]), prev);
    }
  });
}

std::vector<size_t> edge_sizes(Protocol protocol) {
  const Geometry g = cpu::message_geometry();
  const int64_t slot = g.slot_data_bytes(protocol);
  const Plan plan = Plan::make(Collective::send_recv, protocol, 2, 1 << 30, 1, 1, g, 1);
  std::vector<size_t> sizes;
  for (const int64_t n : {int64_t(4), slot / 2, slot, 2 * slot, plan.chunk, g.slots * slot,
                          3 * g.slots * slot + 1000})
    for (const int64_t off : {-1, 0, 1}) sizes.push_back(size_t(n + off));
  for (const size_t n : {0, 1, 2, 7, 8, 9, 15, 16, 17, 119, 120, 121}) sizes.push_back(n);
  return sizes;
}

void all_to_all(int ranks, Protocol protocol) {
  on_engines(ranks, [&](Rank& r) {
    const auto size = [](int from, int to) { return size_t(from * 7919 + to * 131) * 5 % 60000; };
    std::map<int, size_t> received;
    for (int i = 1; i < ranks; ++i) {
      const int to = (r.rank + i) % ranks, from = (r.rank + ranks - i) % ranks;
      r.box.send(to, 1, contents(r.rank, to, 1, size(r.rank, to)), protocol);
      received[from] = r.box.receive(from, 1, size(from, r.rank));
    }
    r.box.check();
    for (const auto& [from, m] : received)
      CHECK(r.box.bytes(m) == contents(from, r.rank, 1, size(from, r.rank)));
  });
}

AROUND_EACH_CASE(run) {
  const int fds = open_files();
  run();
  CHECK_EQ(open_files(), fds);
}

// Neither an absent peer nor a full link delays the other messages.
TEST_CASE("messages do not wait for each other") {
  const auto store = std::make_shared<MemoryStore>();
  Rank zero(store, 0, 3);
  const size_t absent = zero.box.send(2, 1, contents(0, 2, 1, 100));
  const size_t from_absent = zero.box.receive(2, 1, 100);
  Rank one(store, 1, 3);
  const size_t blocked = zero.box.send(1, 1, contents(0, 1, 1, 1 << 20));
  std::thread other([&] { talk(one, 0, 5); });
  talk(zero, 1, 5);
  other.join();
  CHECK(!zero.box.done(absent) && !zero.box.done(from_absent));
  one.box.receive(0, 1, 1 << 20);
  Rank two(store, 2, 3);
  two.box.send(0, 1, contents(2, 0, 1, 100));
  two.box.receive(0, 1, 100);
  for (Rank* r : {&zero, &one, &two}) r->box.check();
  CHECK(zero.box.done(blocked));
}

// Random messages among all ranks, posted in random order by two threads of each.
void soak(int ranks, uint64_t seed) {
  struct One {
    int from, to;
    uint64_t tag;
    size_t size;
  };
  std::mt19937_64 random(seed);
  std::vector<One> all;
  for (uint64_t tag = 0; tag < uint64_t(60 * ranks); ++tag) {
    const int from = int(random() % uint64_t(ranks));
    const int to = (from + 1 + int(random() % uint64_t(ranks - 1))) % ranks;
    all.push_back({from, to, tag, size_t(random() % (random() % 8 ? 3000 : 400000))});
  }
  on_engines(ranks, [&](Rank& r) {
    std::mutex mutex;
    std::map<size_t, One> received;
    const auto post_half = [&](size_t half) {
      std::mt19937_64 mine(seed * 100 + uint64_t(r.rank) * 2 + half);
      std::vector<One> todo;
      for (size_t i = half; i < all.size(); i += 2)
        if (all[i].from == r.rank || all[i].to == r.rank) todo.push_back(all[i]);
      std::shuffle(todo.begin(), todo.end(), mine);
      for (const One& m : todo) {
        if (m.from == r.rank) {
          r.box.send(m.to, m.tag, contents(m.from, m.to, m.tag, m.size), kAll[mine() % 3]);
          continue;
        }
        const size_t number = r.box.receive(m.from, m.tag, m.size);
        std::lock_guard lock(mutex);
        received[number] = m;
      }
    };
    std::thread other([&] { post_half(1); });
    post_half(0);
    other.join();
    r.box.check();
    for (const auto& [number, m] : received)
      CHECK(r.box.bytes(number) == contents(m.from, m.to, m.tag, m.size));
  });
}

TEST_CASE("a callback may post") {
  on_engines(2, [](Rank& r) {
    const int other = 1 - r.rank;
    std::latch done(1);
    int left = 100;
    unsigned char byte = 0;
    std::function<void(std::exception_ptr, int)> again;
    const auto post = [&](bool sends) {
      cpu::Message m;
      m.sends = sends;
      m.peer = other;
      m.data = &byte;
      m.bytes = 1;
      if (!sends) m.done = again;
      r.engine.post({m});
    };
    CHECK(!r.engine.in_callback());
    again = [&](std::exception_ptr error, int) {
      CHECK(!error && r.engine.in_callback());
      CHECK_THROWS(UsageError, "would wait for itself", r.engine.close());
      if (--left == 0) return done.count_down();
      post(true);
      post(false);
    };
    post(true);
    post(false);
    done.wait();
    r.engine.close();
    again = nullptr;
  });
}

TEST_CASE("a name may be used again") {
  const auto store = std::make_shared<MemoryStore>();
  for (int life = 0; life < 3; ++life) {
    Rank zero(store, 0, 2), one(store, 1, 2);
    zero.box.send(1, 1, contents(0, 1, uint64_t(life), 100));
    const size_t m = one.box.receive(0, 1, 100);
    one.box.check();
    CHECK(one.box.bytes(m) == contents(0, 1, uint64_t(life), 100));
  }
}

// Idle engines sleep; a thread that spins uses a second of every second.
TEST_CASE("idle p2p engines sleep") {
  const auto store = std::make_shared<MemoryStore>();
  Rank zero(store, 0, 3), one(store, 1, 3), two(store, 2, 3);
  zero.box.send(1, 1, Bytes(1));
  one.box.receive(0, 1, 1);
  one.box.check();
  two.box.send(1, 1, Bytes(1));  // without a receive
  two.box.check();
  const auto cpu_seconds = [] {
    timespec t;
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
  };
  const double before = cpu_seconds();
  std::this_thread::sleep_for(Milliseconds(1000));
  CHECK(cpu_seconds() - before < 0.3);
}

TEST_CASE("wrong arguments are refused") {
  const auto store = std::make_shared<MemoryStore>();
  P2pEngine engine(store, "group", 0, 2, kLong);
  unsigned char byte = 0;
  int called = 0;
  const auto post = [&](const std::function<void(cpu::Message&)>& change) {
    cpu::Message good, bad;
    good.peer = 1;
    good.data = &byte;
    good.bytes = 1;
    good.done = [&](std::exception_ptr, int) { ++called; };
    bad = good;
    change(bad);
    engine.post({good, bad});
  };
  CHECK_THROWS(UsageError, "rank 0 cannot send to itself", post([](auto& m) { m.peer = 0; }));
  CHECK_THROWS(UsageError, "cannot send to rank 2: there are 2", post([](auto& m) { m.peer = 2; }));
  CHECK_THROWS(UsageError, "cannot send to rank -1", post([](auto& m) { m.peer = kAnySource; }));
  CHECK_THROWS(UsageError, "cannot receive from rank -2", post([](auto& m) {
                 m.sends = false;
                 m.peer = -2;
               }));
  CHECK_THROWS(UsageError, "-1 bytes", post([](auto& m) { m.bytes = -1; }));
  CHECK_THROWS(UsageError, "needs data", post([](auto& m) { m.data = nullptr; }));
  CHECK_THROWS(UsageError, "unknown protocol", post([](auto& m) { m.protocol = Protocol(9); }));
  CHECK_THROWS(UsageError, "negative", post([](auto& m) { m.timeout = Milliseconds(-1); }));
  engine.post({});
  engine.close();  // returns, because none of the valid ones was posted
  CHECK_EQ(called, 0);
  CHECK_THROWS(UsageError, "1 to 1024 ranks, not 0", P2pEngine(store, "g", 0, 0, kLong));
  CHECK_THROWS(UsageError, "rank 2 is not among", P2pEngine(store, "g", 2, 2, kLong));
  CHECK_THROWS(UsageError, "must be positive", P2pEngine(store, "g", 0, 2, Milliseconds(0)));
}

TEST_CASE("a rank alone has nobody to send to") {
  P2pEngine engine(std::make_shared<MemoryStore>(), "group", 0, 1, kLong);
  for (const int peer : {0, 1, kAnySource}) {
    cpu::Message m;
    m.sends = false;
    m.peer = peer;
    CHECK_THROWS(UsageError, "rank 0 cannot receive from", engine.post({m}));
  }
  engine.abort("for fun");
  engine.close();
}

TEST_CASE("all ranks send to the next one at once") {
  for (const Protocol p : kAll) {
    ring_shift(2, p, edge_sizes(p));
    ring_shift(3, p, {5 << 20, 3, 0, 1 << 20});
  }
  ring_shift(8, Protocol::simple, {1 << 20, 0, 1000});
}

TEST_CASE("all ranks send to all at once") {
  for (const Protocol p : kAll) all_to_all(5, p);
  all_to_all(8, Protocol::ll);
}

TEST_CASE("random messages arrive") {
  for (uint64_t seed = 0; seed < 4; ++seed) soak(2 + int(seed), seed);
}

}  // namespace
