// A ring inside a larger group is given the reason why the group has failed; its owner can query
// its state without a call.
#include <latch>
#include <optional>

#include "comm/waiting_ranks.h"
#include "fault/render.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// The reason of a rank outside of the ring.
Fault elsewhere(Cause cause) {
  constexpr Event events[] = {Event::none,           Event::quoted_abort,
                              Event::quoted_timeout, Event::quoted_mismatch,
                              Event::quoted_loss,    Event::quoted_failure};
  Fault f = fault_of(events[int(cause)], 19, 17, 23);
  CHECK(f.cause == cause);
  f.evidence = "rank 17 on host b died";
  return f;
}

void until(const std::function<bool()>& come) {
  while (!come()) std::this_thread::sleep_for(Milliseconds(1));
}

// Also runs with more ranks than are in a wait.
TEST_CASE("when a rank gives up, all waits end with its class and text") {
  const std::pair<Cause, std::string> all[] = {{Cause::peer_lost, "PeerLostError"},
                                               {Cause::timed_out, "TimeoutError"},
                                               {Cause::mismatch, "MismatchError"},
                                               {Cause::aborted, "AbortedError"},
                                               {Cause::failed, "AbortedError"}};
  for (const auto& [cause, kind] : all) {
    in_a_wait = 0;
    std::latch passed(3);
    const auto texts = on_ranks(3, [&, cause = cause](Rank& r) {
      r.pass();
      passed.arrive_and_wait();
      if (r.comm.rank() < 2) return r.wait(10);
      until([] { return in_a_wait == 2; });
      r.comm.give_up(elsewhere(cause));
      r.wait(10);
    });
    for (int rank = 0; rank < 2; ++rank)
      CHECK_EQ(texts[size_t(rank)], kind + " 17 23: rank 17 on host b died. Here: rank ? waited.");
    CHECK_EQ(texts[2],
             std::string("AbortedError 17 23: communicator 'group' became unusable just now: rank "
                         "17 on host b died"));
  }
}

TEST_CASE("later calls on all ranks say that one gave up") {
  std::latch passed(3), given(1);
  const auto texts = on_ranks(3, [&](Rank& r) {
    r.pass();
    passed.arrive_and_wait();
    if (r.comm.rank() == 1) r.comm.give_up(elsewhere(Cause::peer_lost)), given.count_down();
    given.wait();
    r.wait(10);
  });
  for (const std::string& text : texts)
    CHECK_EQ(text,
             std::string("AbortedError 17 23: communicator 'group' became unusable just now: rank "
                         "17 on host b died"));
}

TEST_CASE("ranks without a call see that one gave up") {
  std::latch passed(3), looked(3);
  const auto texts = on_ranks(3, [&](Rank& r) {
    r.pass();
    passed.arrive_and_wait();
    CHECK(!r.comm.trouble());
    looked.arrive_and_wait();
    if (r.comm.rank() == 1) r.comm.give_up(elsewhere(Cause::peer_lost));
    until([&] { return r.comm.trouble().has_value(); });
    const Fault found = *r.comm.trouble();
    CHECK(found.cause == Cause::peer_lost);
    CHECK(found.from_outside);
    CHECK_EQ(found.reporter, 19);
    CHECK_EQ(found.rank, 17);
    CHECK_EQ(found.seq, uint64_t(23));
    CHECK_EQ(text_of(found), std::string("rank 17 on host b died"));
  });
  for (const std::string& text : texts) CHECK_EQ(text, std::string());
}

// Another rank has left. Only one rank, whose call needs it, has noticed.
TEST_CASE("ranks without a call see that another was lost, by their numbers in the group") {
  std::latch looked(1), left(1);
  const auto texts = on_ranks(
      3,
      [&](Rank& r) {
        r.pass();
        if (r.comm.rank() == 1) {
          looked.wait();
          r.comm.close();
          left.count_down();
        }
        if (r.comm.rank() == 2) {
          left.wait();
          r.wait(10);
        }
        if (r.comm.rank() == 0) {
          CHECK(!r.comm.trouble());
          looked.count_down();
          until([&] { return r.comm.trouble().has_value(); });
          const Fault found = *r.comm.trouble();
          CHECK(found.cause == Cause::peer_lost);
          CHECK(!found.from_outside);
          CHECK_EQ(found.reporter, 12);
          CHECK_EQ(found.rank, 11);
          CHECK_CONTAINS(text_of(found), "rank 11 (pid ");
          CHECK_CONTAINS(text_of(found), "closed its communicator");
          CHECK_CONTAINS(text_of(found), "and rank 12 made one more");
        }
      },
      /*enqueues=*/false, RankNames{{10, 11, 12}});
  CHECK_CONTAINS(texts[2], "PeerLostError 11 2");
}

TEST_CASE("the first reason stays") {
  std::latch passed(2), aborted(1);
  const auto texts = on_ranks(2, [&](Rank& r) {
    r.pass();
    passed.arrive_and_wait();
    if (r.comm.rank() == 1) r.comm.abort("enough"), aborted.count_down();
    aborted.wait();
    r.comm.give_up(elsewhere(Cause::peer_lost));
    CHECK_EQ(text_of(*r.comm.trouble()), std::string("aborted by rank 1: enough"));
    r.wait(10);
  });
  for (const std::string& text : texts)
    CHECK_EQ(text, std::string("AbortedError 1 0: communicator 'group' became unusable just now: "
                               "aborted by rank 1: enough"));
}

// A rank that waits for others to connect has no page yet.
TEST_CASE("ranks that are connecting end when one gives up") {
  const auto start = Clock::now();
  std::latch rank_0_comes(1);
  const auto texts = on_ranks(2, [&](Rank& r) {
    if (r.comm.rank() == 1) {
      rank_0_comes.wait();
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(Milliseconds(50));  // otherwise it would not be connecting yet
      r.comm.give_up(elsewhere(Cause::timed_out));
      rank_0_comes.count_down();
    });
    try {
      r.pass();
    } catch (...) {
      other.join();
      CHECK(r.comm.trouble()->from_outside);
      throw;
    }
    FAIL("nobody came, and no error");
  });
  CHECK_EQ(texts[0], std::string("TimeoutError 17 23: rank 17 on host b died"));
  CHECK(Clock::now() - start < kLong / 2);  // before its timeout
}

// Another process may have the pid of one that has ended.
TEST_CASE("a rank that has ended before its first call is named") {
  Rank r(std::make_shared<MemoryStore>(), 0, 2, /*enqueues=*/false, RankNames{{10, 11}});
  Process gone = this_process();
  ++gone.started;
  r.comm.set_roster({{this_process(), gone}, {10, 11}});
  CHECK_THROWS(PeerLostError, "rank 11 ", r.pass());
  REQUIRE(r.comm.failed());
  const Fault f = *r.comm.trouble();
  CHECK(f.event == Event::died_early && f.rank == 11 && f.theirs.rank == 11);
}

// A ring of one rank has no page that others see. A number outside of the group belongs to no rank.
TEST_CASE("a rank alone may give up") {
  const auto texts = on_ranks(1, [&](Rank& r) {
    r.pass();
    Fault odd = elsewhere(Cause::peer_lost);
    odd.rank = -5;
    r.comm.give_up(odd);
    CHECK_EQ(r.comm.trouble()->rank, -1);
    CHECK_EQ(text_of(*r.comm.trouble()), text_of(odd));
    r.wait(10);
  });
  CHECK_CONTAINS(texts[0], "AbortedError -1 23: communicator 'group' became unusable");
}

}  // namespace
