// The end of p2p engines, and its effect on waiting ranks.
#include <optional>

#include "p2p/engines.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

AROUND_EACH_CASE(run) {
  const int fds = open_files();
  run();
  CHECK_EQ(open_files(), fds);
}

TEST_CASE("an abort reaches every rank") {
  on_engines(4, [](Rank& r) {
    // 0 - 1 - 2 - 3: rank 1 and rank 2 are idle when rank 0 gives up.
    for (const int end : {r.rank - 1, r.rank}) {
      if (end < 0 || end > 2) continue;
      const int with = end == r.rank ? r.rank + 1 : r.rank - 1;
      r.box.send(with, 1, Bytes(1));
      r.box.receive(with, 1, 1);
    }
    r.box.check();
    r.barrier("met");
    if (r.rank == 3) {
      const size_t m = r.box.receive(2, 2, 1);
      r.store->set("waits", "");
      check_message(r, m, "AbortedError",
                    {"rank 3 waited for a message from rank 2 (tag 2",
                     "The reason: aborted by rank 0: enough"});
      r.store->set("done", "");
    } else if (r.rank == 0) {
      const size_t m = r.box.receive(1, 2, 1);
      r.store->get("waits", kLong);
      r.engine.abort("enough");
      r.engine.abort("and again");
      check_message(r, m, "AbortedError", {"The reason: aborted by rank 0: enough"});
      CHECK_CONTAINS(refusal(r), "aborted by rank 0: enough");
    }
    r.store->get("done", kLong);
    CHECK_CONTAINS(refusal(r), "aborted by rank 0: enough");
  });
}

// Rank 1 has never sent anything when it gives up, or leaves.
void who_waits_for_a_first_message_learns_of_the_end(bool aborts) {
  on_engines(2, [&](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.receive(1, 1, 1);
      r.store->set("waits", "");
      if (aborts) check_message(r, m, "AbortedError", {"aborted by rank 1: enough"});
      else {
        const auto outcome = r.box.outcome(m);  // depends on their progress
        CHECK(outcome.kind == "PeerLostError" || outcome.kind == "TransportError");
        CHECK_CONTAINS(outcome.text, "rank 1");
      }
      r.store->set("told", "");
    } else {
      r.store->get("waits", kLong);
      if (aborts) r.engine.abort("enough");
      else r.engine.close();
      r.store->get("told", kLong);
    }
  });
}

// Nothing is under way, so that only the connector sees it; then a peer comes.
TEST_CASE("a peer that comes late learns of an abort") {
  const auto store = std::make_shared<MemoryStore>();
  Rank zero(store, 0, 2), one(store, 1, 2);
  zero.engine.abort("enough");
  check_message(one, one.box.receive(0, 1, 1), "AbortedError", {"aborted by rank 0: enough"});
}

void what_was_sent_outlives_the_sender(bool met_before) {
  const auto store = std::make_shared<MemoryStore>();
  Rank zero(store, 0, 3);
  {
    Rank one(store, 1, 3);
    if (met_before) {
      zero.box.send(1, 1, Bytes(1));
      one.box.receive(0, 1, 1);
    }
    one.box.send(0, 7, contents(1, 0, 7, 100000));
    one.box.send(0, 8, contents(1, 0, 8, 1000), Protocol::ll);
    one.box.check();
  }
  const size_t last = zero.box.receive(1, 8, 1000), first = zero.box.receive(kAnySource, 7, 100000);
  zero.box.check();
  CHECK(zero.box.bytes(last) == contents(1, 0, 8, 1000));
  CHECK(zero.box.bytes(first) == contents(1, 0, 7, 100000));
  const size_t any = zero.box.receive(kAnySource, 7, 1);  // rank 2 may still send one
  const size_t more = zero.box.receive(1, 7, 1);
  check_message(zero, more, "PeerLostError",
                {"rank 0 waited for a message from rank 1 (tag 7, 1 bytes), and rank 1 has ended"});
  check_message(zero, any, "PeerLostError",
                {"The reason: rank 0 waited for a message from rank 1"});
}

// A rank that is told by another, before it could notice itself or without having met the lost
// rank, raises the same error.
void what_others_tell_of_a_loss_is_a_loss() {
  const auto store = std::make_shared<MemoryStore>();
  Rank zero(store, 0, 3), one(store, 1, 3);
  zero.box.send(1, 1, Bytes(1));
  one.box.receive(0, 1, 1);
  for (Rank* r : {&zero, &one}) r->box.check();
  const size_t m = zero.box.receive(1, 4, 1);
  size_t waited;
  {
    Rank two(store, 2, 3);
    two.box.send(1, 2, Bytes(1));
    one.box.receive(2, 2, 1);
    for (Rank* r : {&one, &two}) r->box.check();
    waited = one.box.receive(2, 3, 1);
  }
  check_message(one, waited, "PeerLostError", {"and rank 2 has ended or left the group"});
  check_message(zero, m, "PeerLostError",
                {"rank 0 waited for a message from rank 1 (tag 4",
                 "when the messages of its group "
                 "were aborted",
                 "The reason: rank 1 waited for a message from rank 2 (tag 3",
                 "Look for the first error in the logs of the ranks"});
}

TEST_CASE("a receive from any source fails when nobody is left") {
  const auto store = std::make_shared<MemoryStore>();
  Rank zero(store, 0, 3);
  size_t m;
  {
    Rank one(store, 1, 3), two(store, 2, 3);
    for (Rank* r : {&one, &two}) r->box.send(0, 1, Bytes(1));
    m = zero.box.receive(kAnySource, 2, 1);
    for (Rank* r : {&one, &two}) r->box.check();
    zero.box.wait_for(zero.box.receive(kAnySource, 1, 1));
    zero.box.wait_for(zero.box.receive(kAnySource, 1, 1));
    CHECK(!zero.box.done(m));
  }
  check_message(zero, m, "PeerLostError",
                {"waited for a message from any rank (tag 2, 1 bytes), "
                 "and all others have ended or left the group"});
}

TEST_CASE("nothing can be sent to a rank that has left") {
  const auto store = std::make_shared<MemoryStore>();
  for (const bool met : {false, true}) {
    Rank zero(store, 0, 2);
    std::optional<Rank> one(std::in_place, store, 1, 2);
    size_t unread = 0;
    if (met) {
      zero.box.wait_for(zero.box.send(1, 1, Bytes(1)));
      unread = zero.box.send(1, 2, Bytes(kTooMuch));
    }
    one.reset();
    if (met)
      check_message(zero, unread, "PeerLostError",
                    {"rank 0 waited for room to send a message to rank 1 (tag 2", "has ended"});
    else
      check_message(zero, zero.box.send(1, 1, Bytes(1)), "PeerLostError",
                    {"rank 0 cannot connect to rank 1 (pid ", "has ended or left the group"});
  }
}

void close_finishes_what_was_posted() {
  on_engines(2, [](Rank& r) {
    const int other = 1 - r.rank;
    const size_t sent = r.box.send(other, 1, contents(r.rank, other, 1, kTooMuch));
    const size_t received = r.box.receive(other, 1, kTooMuch);
    std::thread as_well([&] { r.engine.close(); });
    r.engine.close();
    CHECK(r.box.done(sent) && r.box.done(received));
    as_well.join();
    CHECK(r.box.bytes(received) == contents(other, r.rank, 1, kTooMuch));
    r.engine.close();
    CHECK_THROWS(UsageError, "the messages of group 'group' are closed",
                 r.box.send(other, 1, Bytes(1)));
    r.engine.abort("too late");
  });
}

TEST_CASE("closing does not wait forever") {
  on_engines(2, [](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.receive(1, 1, 1);
      r.engine.close(Milliseconds(50));
      CHECK(r.box.done(m));
      const std::string text = "rank 0 closed its messages before they had finished";
      check_message(r, m, "AbortedError", {text});
      r.store->set("closed", "");
    } else {
      const size_t m = r.box.receive(0, 1, 1);
      const std::string kind = r.box.outcome(m).kind;
      // Depends on whether they had met.
      CHECK(kind == "AbortedError" || kind == "PeerLostError" || kind == "TransportError");
      r.store->get("closed", kLong);
    }
  });
}

TEST_CASE("abort and close tell the reason") {
  for (int i = 0; i < 20; ++i) {
    const auto store = std::make_shared<MemoryStore>();
    Rank zero(store, 0, 2), one(store, 1, 2);
    zero.box.send(1, 1, Bytes(1));
    one.box.receive(0, 1, 1);
    for (Rank* r : {&zero, &one}) r->box.check();
    const size_t m = one.box.receive(0, 2, 1);
    zero.engine.abort("enough");
    zero.engine.close();
    check_message(one, m, "AbortedError", {"aborted by rank 0: enough"});
  }
}

TEST_CASE("a rank that waits for a first message learns of the end") {
  for (const bool aborts : {false, true}) who_waits_for_a_first_message_learns_of_the_end(aborts);
}

TEST_CASE("a message outlives its sender") {
  for (const bool met_before : {false, true}) what_was_sent_outlives_the_sender(met_before);
}

TEST_CASE("a loss that another rank reports is a loss") {
  for (int i = 0; i < 20; ++i) what_others_tell_of_a_loss_is_a_loss();
}

TEST_CASE("closing finishes the messages that were posted") {
  for (int i = 0; i < 20; ++i) close_finishes_what_was_posted();
}

}  // namespace
