#include "comm/rendezvous.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <latch>

#include "comm/agreement.h"
#include "comm/event_queue.h"
#include "comm/ring_of_threads.h"
#include "cpu/shm.h"
#include "fault/render.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr int64_t kBytes = 4096;
constexpr Milliseconds kShort{300};

// Each rank writes its number at the start of two segments; all others must find it there, with the
// bytes of its offer.
void ranks_see_each_others_memory(int ranks, bool reversed) {
  MemoryStore store;
  std::vector<std::unique_ptr<cpu::ShmTransport>> transports(static_cast<size_t>(ranks));
  std::vector<std::unique_ptr<cpu::ShmTransport>> seconds(static_cast<size_t>(ranks));
  std::vector<Outcome> outcomes = on_threads(ranks, [&](int rank) {
    auto &transport = transports[size_t(rank)], &second = seconds[size_t(rank)];
    Joiner joiner{store, "ring", place_of(rank, ranks, reversed)};
    joiner.make_offer = [&] {
      transport = std::make_unique<cpu::ShmTransport>(kBytes);
      second = std::make_unique<cpu::ShmTransport>(kBytes);
      *static_cast<int*>(transport->mine()) = rank;
      *static_cast<int*>(second->mine()) = 100 + rank;
      return Offer{"of rank " + std::to_string(rank),
                   {transport->offer().fd(), second->offer().fd()}};
    };
    joiner.map_all = [&](const std::vector<Offer>& offers) {
      REQUIRE(int(offers.size()) == ranks);
      CHECK(offers[size_t(rank)].bytes.empty() && offers[size_t(rank)].fds.empty());
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        const Offer& offer = offers[size_t(peer)];
        CHECK_EQ(offer.bytes, "of rank " + std::to_string(peer));
        CHECK_EQ(*static_cast<int*>(transport->map({"", {offer.fd()}}, peer)), peer);
        CHECK_EQ(*static_cast<int*>(second->map({"", {offer.fd(1)}}, peer)), 100 + peer);
      }
    };
    return joiner.join();
  });
  check_all(outcomes, "", "");
  for (int rank = 0; rank < ranks; ++rank) {
    const Place place = place_of(rank, ranks, reversed);
    const Neighbours& n = outcomes[size_t(rank)].neighbours;
    CHECK_EQ(n.next.rank, place.next);
    CHECK_EQ(n.prev.rank, place.prev);
    CHECK_EQ(n.next.pid, int(::getpid()));
    CHECK_EQ(n.prev.pid, int(::getpid()));
  }
}

// Runs twice, except the first case, which closes the process's event queue.
AROUND_EACH_CASE(run) {
  static int rounds = 1;
  for (int round = 0; round < rounds; ++round) {
    const int fds = open_files();
    run();
    CHECK_EQ(open_files(), fds);
  }
  rounds = 2;
}

TEST_CASE("a rank that is late is told before the ring fails") {
  check_all(join_all(2,
                     [](Joiner& joiner) {
                       if (joiner.place.rank == 1) ::usleep(5'500'000);
                     }),
            "", "");
  EventQueue::all().close();  // `next` does not wait for more events
  const auto event = EventQueue::all().next();
  REQUIRE(event && event->kind == EventKind::warning);
  CHECK_CONTAINS(event->text,
                 "no ring of 2 ranks yet, after 5 s; did not come: rank 1; rank 0 "
                 "waited for the address of rank 1. It fails after 20.0 s");
  CHECK(!EventQueue::all().next());
}

// Offers without a file descriptor arrive without one, and are not mistaken for empty ones.
TEST_CASE("offers without a file go round") {
  std::atomic<int> right{0};
  check_all(join_all(5,
                     [&](Joiner& joiner) {
                       const int rank = joiner.place.rank;
                       joiner.make_offer = [rank] {
                         return rank == 3 ? Offer{std::string(3000, 'x')}
                                          : Offer{std::string(size_t(rank), 'x')};
                       };
                       joiner.map_all = [&right, rank](const std::vector<Offer>& offers) {
                         for (int peer = 0; peer < 5; ++peer)
                           right += offers[size_t(peer)].fds.empty() &&
                                    int(offers[size_t(peer)].bytes.size()) == (peer == rank ? 0
                                                                               : peer == 3  ? 3000
                                                                                            : peer);
                       };
                     }),
            "", "");
  CHECK_EQ(right, 25);
}

TEST_CASE("a ring of one has no neighbours") {
  MemoryStore store;
  Joiner joiner{store, "ring", place_of(0, 1)};
  joiner.make_offer = []() -> Offer { throw std::logic_error("called"); };
  const Neighbours n = joiner.join();
  CHECK_EQ(n.next.rank, -1);
  CHECK(!n.next.socket && !n.prev.socket);
}

TEST_CASE("the end of a neighbour is seen") {
  std::vector<Outcome> outcomes = join_all(3, [](Joiner&) {});
  check_all(outcomes, "", "");
  pollfd watched[] = {{outcomes[0].neighbours.next.socket.get(), POLLIN, 0},
                      {outcomes[0].neighbours.prev.socket.get(), POLLIN, 0}};
  CHECK(!readable(watched, Milliseconds(0)));
  outcomes[1].neighbours = {};  // next neighbour of rank 0
  REQUIRE(readable(watched, Milliseconds(10000)));
  CHECK(watched[0].revents != 0 && watched[1].revents == 0);
  Message message;
  CHECK(receive_message(outcomes[0].neighbours.next.socket, message) == Received::closed);
}

TEST_CASE("a missing rank is named") {
  MemoryStore store;
  std::latch started(3);
  const std::vector<Outcome> outcomes = on_threads(3, [&](int rank) {
    Joiner joiner{store, "ring", place_of(rank, 5)};  // ranks 3 and 4 do not come
    joiner.timeout = kShort;
    started.arrive_and_wait();
    return joiner.join();
  });
  check_all(outcomes, "RendezvousError",
            "no ring of 5 ranks within 0.3 s (timed out); did not come: rank 3 4");
  check_all(outcomes, "RendezvousError", "All ranks must make this call");
}

TEST_CASE("a rank that does not finish is named") {
  MemoryStore store;
  std::atomic<int> failed{0};
  const std::vector<Outcome> outcomes = on_threads(3, [&](int rank) -> Neighbours {
    Joiner joiner{store, "ring", place_of(rank, 3)};
    if (rank != 1) {
      joiner.timeout = kShort;
      store.get("rank 1 came", Milliseconds(20000));
      try {
        return joiner.join();
      } catch (...) {
        ++failed;
        throw;
      }
    }
    joiner.make_offer = [&] {  // makes the others wait until their timeout
      store.set("rank 1 came", "");
      while (failed < 2) std::this_thread::sleep_for(Milliseconds(10));
      return Offer{};
    };
    return joiner.join();
  });
  check_all(outcomes, "RendezvousError", "came but did not finish connecting: rank");
  check_outcome(outcomes[1], "RendezvousError", "could not join the ring: no ring of 3 ranks");
}

TEST_CASE("one rank's error is told to all") {
  for (const bool in_map : {false, true}) {
    const std::vector<Outcome> outcomes = join_all(4, [&](Joiner& joiner) {
      if (joiner.place.rank != 2) return;
      if (in_map)
        joiner.map = [](const Offer&, const Offer&) { throw std::runtime_error("no room\nhere"); };
      else joiner.make_offer = []() -> Offer { throw std::runtime_error("no room\nhere"); };
    });
    for (int rank : {0, 1, 3})
      check_outcome(outcomes[size_t(rank)], "RendezvousError",
                    "rank 2 could not join the ring: no room here");
    check_outcome(outcomes[2], "another", "no room\nhere");
  }
}

TEST_CASE("memory that is no segment fails the ring") {
  const auto check = [](const std::function<int()>& make_fd, const std::string& text) {
    const int fds = open_files();
    const std::vector<Outcome> outcomes = join_all(3, [&](Joiner& joiner) {
      auto transport = std::make_shared<cpu::ShmTransport>(kBytes);
      auto offered = std::make_shared<Fd>(joiner.place.rank == 1 ? make_fd() : -1);
      joiner.make_offer = [=] {
        return *offered ? Offer{"", {offered->get()}} : transport->offer();
      };
      joiner.map = [transport, place = joiner.place](const Offer& next, const Offer& prev) {
        transport->map(next, place.next);
        transport->map(prev, place.prev);
      };
    });
    for (const Outcome& o : outcomes) {
      CHECK(o.kind == "TransportError" || o.kind == "RendezvousError");
      CHECK_CONTAINS(o.text, "the memory offered by rank 1 is refused: " + text);
    }
    CHECK_EQ(open_files(), fds);
  };
  const auto unsealed = [] {
    const int fd = ::memfd_create("test", MFD_CLOEXEC);
    CHECK(::ftruncate(fd, kBytes) == 0);
    return fd;
  };
  check(unsealed, "expected a memory file that nobody can resize");
  const auto longer = [] { return ::dup(cpu::ShmTransport(2 * kBytes).offer().fd()); };
  check(longer, "expected 4096 bytes, found 8192");
  const auto foreign = [] { return ::open("/dev/zero", O_RDWR | O_CLOEXEC); };
  check(foreign, "expected a memory file, found a file of another kind");
}

TEST_CASE("a rank that comes twice fails the ring") {
  MemoryStore store;
  const std::vector<Outcome> outcomes = on_threads(3, [&](int thread) {
    return Joiner{store, "ring", place_of(thread == 2 ? 0 : thread, 3)}.join();
  });
  check_all(outcomes, "RendezvousError", "rank 0 joined the ring twice");
}

TEST_CASE("ranks that disagree on the order do not meet") {
  const std::vector<Outcome> outcomes = join_all(4, [](Joiner& joiner) {
    if (joiner.place.rank == 2) joiner.place = place_of(2, 4, /*reversed=*/true);
  });
  check_all(outcomes, "RendezvousError", "give all ranks the same order of the ranks");
}

TEST_CASE("a store that fails ends the wait") {
  std::atomic<int> left{20};
  FrailStore store;
  store.use = [&left] {
    if (--left < 0) throw std::runtime_error("the store is gone");
  };
  const std::vector<Outcome> outcomes = on_threads(2, [&](int rank) {  // of three
    return Joiner{store, "ring", place_of(rank, 3)}.join();
  });
  for (const Outcome& o : outcomes) CHECK_CONTAINS(o.text, "the store is gone");
}

// Every prefix is used once, however its ring ended.
TEST_CASE("rings follow each other") {
  MemoryStore store;
  const auto ring = [&](int ranks, bool fails) {
    return on_threads(ranks, [&, ranks, fails](int rank) {
      const Place place = place_of(rank, ranks);
      Joiner joiner{store, unique_prefix(store, "group", place), place};
      if (fails && rank == 1) joiner.make_offer = []() -> Offer { throw std::runtime_error("no"); };
      return joiner.join();
    });
  };
  for (int i = 0; i < 3; ++i) {
    check_all(ring(3, false), "", "");
    check_outcome(ring(3, true)[0], "RendezvousError", "rank 1 could not join the ring: no");
    check_all(ring(2, false), "", "");
  }
}

TEST_CASE("a late rank learns of the failure and meets the others again") {
  MemoryStore store;
  const auto call = [&](int rank, Milliseconds timeout) {
    const Place place = place_of(rank, 2);
    Joiner joiner{store, unique_prefix(store, "group", place), place};
    joiner.timeout = timeout;
    return joiner.join();
  };
  check_all(on_threads(1, [&](int) { return call(0, kShort); }), "RendezvousError",
            "did not come: rank 1");
  check_all(on_threads(1, [&](int) { return call(1, Milliseconds(20000)); }), "RendezvousError",
            "rank 0 could not join the ring: no ring of 2 ranks within 0.3 s (timed out); did not "
            "come: rank");
  check_all(on_threads(2, [&](int rank) { return call(rank, Milliseconds(20000)); }), "", "");
}

Fault refusal(int rank, const std::string& why, int lost = -1) {
  Fault f = fault_of(lost < 0 ? Event::cannot_join : Event::lost_joining, rank, lost);
  f.evidence = why;
  return f;
}

// All ranks' errors name the lost rank, whichever rank refuses.
TEST_CASE("a lost rank is part of the verdict") {
  MemoryStore store;
  Agreement a(store, "lost", 0, 3, Milliseconds(20000)),
      b(store, "lost", 2, 3, Milliseconds(20000));
  CHECK_EQ(a.refuse(refusal(0, "rank 1 died", 1)).value().rank, 1);
  const Fault reason = b.refuse(refusal(2, "another rank gave up")).value();
  CHECK_EQ(reason.rank, 1);
  CHECK(reason.cause == Cause::peer_lost);
  CHECK_EQ(text_of(reason), std::string("rank 0 could not join the ring: rank 1 died"));
  for (const std::string& not_whole : {std::string("lost 1"), to_bytes(reason).substr(1)}) {
    store.set("lost/verdict", not_whole);
    CHECK(b.refuse(refusal(2, "another rank gave up")).value().event == Event::unreadable);
  }
}

// A vote for the ring that comes after one against must not complete it.
TEST_CASE("votes have one outcome") {
  MemoryStore store;
  Agreement a(store, "late", 0, 2, Milliseconds(20000)), b(store, "late", 1, 2, Milliseconds(1));
  CHECK_THROWS(Lost, "no ring of 2 ranks", b.agree());
  const std::string reason = "rank 1 could not join the ring: out of time";
  CHECK_EQ(text_of(b.refuse(refusal(1, "out of time")).value()), reason);
  CHECK_THROWS(Lost, reason, a.agree());
  CHECK_EQ(text_of(a.refuse(refusal(0, "lost", 1)).value()), reason);
  CHECK_EQ(a.refuse(refusal(0, "lost", 1)).value().rank, -1);

  // The ring is made once all have voted for it.
  Agreement c(store, "made", 0, 2, Milliseconds(1)), d(store, "made", 1, 2, Milliseconds(20000));
  CHECK_THROWS(Lost, "no ring of 2 ranks", c.agree());
  d.agree();
  CHECK(!c.refuse(refusal(0, "out of time")));
  CHECK(!c.refuse(refusal(0, "and again")));
}

TEST_CASE("ranks see each other's memory") {
  for (int ranks = 2; ranks <= 8; ++ranks)
    for (const bool reversed : {false, true}) ranks_see_each_others_memory(ranks, reversed);
}

}  // namespace
