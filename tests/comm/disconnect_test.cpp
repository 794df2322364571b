// Disconnects of ranks: together, one after the other, or not at all.
#include "comm/disconnect.h"

#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"

using namespace ringkern;

namespace {

constexpr Milliseconds kLong{20000};

// The ranks of a ring, each with a socket to the next one.
std::vector<Neighbours> ring_of(int ranks) {
  std::vector<Neighbours> all(static_cast<size_t>(ranks));
  for (size_t r = 0; r < all.size(); ++r) {
    int fds[2];
    CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    all[r].next.socket = Fd(fds[0]);
    all[(r + 1) % all.size()].prev.socket = Fd(fds[1]);
  }
  return all;
}

TEST_CASE("all ranks disconnect") {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    auto ring = ring_of(ranks);
    std::atomic<int> parted = 0;
    std::vector<std::thread> threads;
    for (Neighbours& mine : ring)
      threads.emplace_back([&] {
        if (disconnect(mine, ranks, kLong)) ++parted;
        mine = Neighbours();  // no rank waits for its messages any more
      });
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(int(parted), ranks);
  }
}

// No rank unmaps its memory while any rank, however distant, may still write to it.
TEST_CASE("no rank disconnects before the last") {
  for (int ranks = 2; ranks <= 9; ++ranks) {
    auto ring = ring_of(ranks);
    std::atomic<int> parted = 0;
    std::atomic<bool> last_has_begun = false, early = false;
    std::vector<std::thread> threads;
    for (size_t r = 1; r < ring.size(); ++r)
      threads.emplace_back([&, r] {
        if (!disconnect(ring[r], ranks, kLong)) return;
        if (!last_has_begun) early = true;
        ++parted;
      });
    std::this_thread::sleep_for(Milliseconds(20));  // time for a rank that would not wait
    last_has_begun = true;
    CHECK(disconnect(ring[0], ranks, kLong));
    for (std::thread& thread : threads) thread.join();
    CHECK(!early);
    CHECK_EQ(int(parted), ranks - 1);
  }
}

TEST_CASE("a rank that ended has disconnected") {
  auto ring = ring_of(2);
  ring[1] = Neighbours();
  CHECK(disconnect(ring[0], 2, kLong));
}

// With three, the remaining ranks hear of each other directly.
TEST_CASE("one of three that ended has disconnected") {
  auto ring = ring_of(3);
  ring[1] = Neighbours();
  bool other = false;
  std::thread thread([&] { other = disconnect(ring[2], 3, kLong); });
  CHECK(disconnect(ring[0], 3, kLong));
  thread.join();
  CHECK(other);
}

// With more ranks, those behind it are unknown; no rank waits for long.
TEST_CASE("one of four that ended leaves the others unsure") {
  auto ring = ring_of(4);
  ring[1] = Neighbours();
  std::atomic<int> parted = 0;
  std::vector<std::thread> threads;
  for (const size_t r : {0, 2, 3})
    threads.emplace_back([&, r] {
      if (disconnect(ring[r], 4, kLong)) ++parted;
      ring[r] = Neighbours();
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(int(parted), 0);
}

TEST_CASE("a goodbye then the end") {
  auto ring = ring_of(2);
  CHECK(!disconnect(ring[1], 2, Milliseconds(0)));  // sends its own at least
  ring[1] = Neighbours();
  CHECK(disconnect(ring[0], 2, Milliseconds(0)));
}

TEST_CASE("a rank that goes on is not waited for long") {
  auto ring = ring_of(2);
  CHECK(!disconnect(ring[0], 2, Milliseconds(50)));
  CHECK(disconnect(ring[1], 2, kLong));  // finds the goodbye when the peer ends
}

}  // namespace
