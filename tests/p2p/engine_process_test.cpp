// Messages between ranks that are processes; their deaths; and forked children.
#include <signal.h>

#include <optional>

#include "comm/processes.h"
#include "p2p/engines.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

void processes_exchange(int ranks) {
  const auto store = std::make_shared<SharedStore>();
  on_processes(ranks, [&](int rank) {
    Rank r(store, rank, ranks);
    CHECK_EQ(named_shared_memory(), "");
    for (uint64_t round = 0; round < 12; ++round) {
      const auto size = [&](int from, int to) {
        return size_t(from * 4001 + to * 17 + int(round) * 997) * (round % 6 == 0 ? 50 : 1);
      };
      std::map<int, size_t> received;
      for (int other = 0; other < ranks; ++other) {
        if (other == rank) continue;
        r.box.send(other, round, contents(rank, other, round, size(rank, other)),
                   Protocol(round % 3));
        received[other] = r.box.receive(other, round, size(other, rank));
      }
      r.box.check();
      for (const auto& [from, m] : received)
        CHECK(r.box.bytes(m) == contents(from, rank, round, size(from, rank)));
    }
  });
}

// Rank 1 ends abruptly while the others wait for it, or it does not read their messages.
TEST_CASE("the death of a rank is reported") {
  const auto store = std::make_shared<SharedStore>();
  on_processes(
      3,
      [&](int rank) {
        Rank r(store, rank, 3);
        if (rank == 1) {
          for (const int other : {0, 2}) r.box.send(other, 1, Bytes(1));
          r.barrier("met");
          ::raise(SIGKILL);
        }
        r.box.wait_for(r.box.receive(1, 1, 1));
        const size_t m = rank == 0 ? r.box.receive(1, 2, 1) : r.box.send(1, 2, Bytes(2 << 20));
        r.barrier("met");
        check_outcome(r.box.outcome(m), "PeerLostError",
                      rank == 0 ? "rank 0 waited for a message from rank 1 (tag 2, 1 bytes), and "
                                  "rank 1 has ended or left the group"
                                : "rank 2 waited for room to send a message to rank 1 (tag 2");
      },
      SIGKILL);
}

TEST_CASE("a rank that died before it was met is named") {
  const auto store = std::make_shared<SharedStore>();
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    Rank one(store, 1, 2);
    ::raise(SIGKILL);
  }
  int status = 0;
  CHECK_EQ(::waitpid(pid, &status, 0), pid);
  CHECK_EQ(status, SIGKILL);
  Rank zero(store, 0, 2);
  check_outcome(zero.box.outcome(zero.box.send(1, 1, Bytes(1))), "PeerLostError",
                "rank 0 cannot connect to rank 1 (pid " + std::to_string(pid) + ")");
}

TEST_CASE("a forked child must not use the p2p engine") {
  const auto store = std::make_shared<SharedStore>();
  on_processes(2, [&](int rank) {
    Rank r(store, rank, 2);
    const int other = 1 - rank;
    const size_t early = r.box.receive(other, 1, 1);
    // Two threads use it during the fork.
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::alarm(30);
      CHECK_THROWS(UsageError, "was forked from it", r.engine.post({}));
      r.engine.abort("the child's");
      r.engine.close(Milliseconds(1));
      r.engine.close();
      CHECK(!r.engine.in_callback());
      r.engine.~P2pEngine();
      ::_exit(0);
    }
    int status = -1;
    CHECK_EQ(::waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    r.box.send(other, 1, Bytes(1));
    r.box.wait_for(early);
    r.box.check();
  });
}

// A forked worker keeps copies of the sockets; the parent's close must show nevertheless.
TEST_CASE("a child does not hide that its parent has left") {
  const auto store = std::make_shared<SharedStore>();
  on_processes(2, [&](int rank) {
    Rank r(store, rank, 2);
    const int other = 1 - rank;
    r.box.send(other, 1, Bytes(1));
    r.box.receive(other, 1, 1);
    r.box.check();
    if (rank == 0) {
      check_outcome(r.box.outcome(r.box.receive(1, 2, 1)), "PeerLostError", "has ended or left");
      Rank late(store, 0, 2);  // in a second group, whose rank 1 left before they met
      store->get("left", kLong);
      check_outcome(late.box.outcome(late.box.receive(1, 2, 1)), "PeerLostError",
                    "cannot connect to rank 1");
      store->set("told", "");
      return;
    }
    std::optional<Rank> second(std::in_place, store, 1, 2);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::alarm(30);
      store->get("told", kLong);
      ::_exit(0);
    }
    r.engine.close();
    second.reset();
    store->set("left", "");
    int status = -1;
    CHECK_EQ(::waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  });
}

AROUND_EACH_CASE(run) {
  const int fds = open_files();
  run();
  CHECK_EQ(open_files(), fds);
}

TEST_CASE("processes exchange messages") {
  for (const int ranks : {2, 3, 4, 8}) processes_exchange(ranks);
}

}  // namespace
