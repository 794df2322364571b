// Messages that cannot arrive: who is told what, and when.
#include "cpu/couriers.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr Milliseconds kShort{300};
constexpr size_t kTooMuch = 2 << 20;  // for a link that nobody reads

// What a courier says once it is unusable.
std::string refusal(Rank& r) {
  try {
    r.courier.post({{true, (r.rank + 1) % r.ranks, 0, {}, nullptr, 0, {}, nullptr}});
  } catch (const AbortedError& e) {
    return e.what();
  }
  return "none";
}

void check_message(Rank& r, size_t message, const std::string& kind,
                   const std::vector<std::string>& texts) {
  for (const std::string& text : texts) check_outcome(r.box.outcome(message), kind, text);
}

void sizes_must_agree(bool aside) {
  on_couriers(2, [&](Rank& r) {
    if (r.rank == 0) {
      const size_t other = r.box.receive(1, 1, 1);
      r.box.send(1, 5, Bytes(4096));
      if (aside) r.box.send(1, 6, Bytes(1));
      check_message(r, other, "AbortedError", {"rank 0 waited for a message from rank 1 (tag 1",
                                               "rank 0 sent 4096 bytes to rank 1 (tag 5)"});
    } else {
      if (aside) r.box.wait_for(r.box.receive(0, 6, 1));  // the one in front lies aside then
      const size_t m = r.box.receive(0, 5, 8192);
      check_message(r, m, "UsageError",
                    {"rank 0 sent 4096 bytes to rank 1 (tag 5), which expects 8192"});
      CHECK_CONTAINS(refusal(r), "the messages of group 'group' became unusable just now: rank 0 "
                                 "sent 4096 bytes to rank 1 (tag 5), which expects 8192");
    }
  });
}

void a_receive_times_out() {
  on_couriers(3, [](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.receive(1, 5, 4096, kShort), other = r.box.receive(2, 1, 1);
      check_message(r, m, "TimeoutError",
                    {"rank 0 waited for a message from rank 1 (tag 5, 4096 bytes) and nothing came "
                     "for 0.3 s", "timeout of 0.3 s", "Did rank 1 send it"});
      check_message(r, other, "AbortedError", {"rank 0 waited for a message from rank 2",
                                               "The reason: rank 0 waited for a message from rank "
                                               "1 (tag 5, 4096 bytes)"});
      CHECK_CONTAINS(refusal(r), "became unusable just now: rank 0 waited for a message from rank");
    } else {
      // The others have met rank 0, and learn of it.
      const size_t m = r.box.receive(0, 7, 1);
      check_message(r, m, "AbortedError", {"rank 0 waited for a message from rank 1 (tag 5"});
      CHECK_CONTAINS(refusal(r), "rank 0 waited for a message from rank 1 (tag 5");
    }
  });
}

void what_came_instead_is_told() {
  on_couriers(2, [](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.receive(kAnySource, 5, 1, kShort);
      check_message(r, m, "TimeoutError",
                    {"rank 0 waited for a message from any rank (tag 5, 1 bytes) and nothing came",
                     "What has come from rank 1 has tag 6, from rank 1 has tag 7."});
    } else {
      r.box.send(0, 6, Bytes(10));
      r.box.send(0, 7, Bytes(10));
      r.box.check();
      check_message(r, r.box.receive(0, 1, 1), "AbortedError", {"any rank (tag 5, 1 bytes)"});
    }
  });
}

void a_send_without_room_times_out() {
  on_couriers(2, [](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.send(1, 5, Bytes(kTooMuch), Protocol::ll128, kShort);
      check_message(r, m, "TimeoutError",
                    {"rank 0 waited for room to send a message to rank 1 (tag 5, 2097152 bytes) "
                     "and nothing moved for 0.3 s", "timeout of 0.3 s", "Did rank 1 receive it"});
    } else {
      const size_t m = r.box.send(0, 6, Bytes(kTooMuch));  // a receive would take the other aside
      check_message(r, m, "AbortedError", {"(tag 5, 2097152 bytes)"});
    }
  });
}

void a_peer_that_does_not_come_is_named() {
  for (const bool sends : {false, true}) {
    Rank r(std::make_shared<MemoryStore>(), 0, 2, kShort);  // the courier's own timeout
    const size_t m = sends ? r.box.send(1, 5, Bytes(1)) : r.box.receive(1, 5, 1);
    check_message(r, m, "TimeoutError",
                  {sends ? "rank 0 waited for room to send a message to rank 1 (tag 5, 1 bytes)"
                         : "rank 0 waited for a message from rank 1 (tag 5, 1 bytes)",
                   "rank 1 did not come within the timeout of 0.3 s"});
  }
}

// Messages behind one that moves have not waited in vain.
void what_moves_does_not_time_out() {
  on_couriers(2, [](Rank& r) {
    const Milliseconds timeout(3000), pause(1000);
    if (r.rank == 0) {
      std::vector<size_t> m;
      for (uint64_t tag = 0; tag < 5; ++tag) m.push_back(r.box.receive(1, tag, 1, timeout));
      m.push_back(r.box.receive(kAnySource, 5, 1, timeout));
      r.box.check();
    } else {
      for (uint64_t tag = 0; tag < 6; ++tag) {
        r.box.send(0, tag, Bytes(1));
        std::this_thread::sleep_for(pause);
      }
    }
  });
}

void abort_reaches_everybody() {
  on_couriers(4, [](Rank& r) {
    // 0 - 1 - 2 - 3: rank 1 and rank 2 have nothing under way when rank 0 gives up.
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
      check_message(r, m, "AbortedError", {"rank 3 waited for a message from rank 2 (tag 2",
                                           "The reason: rank 0 was aborted: enough"});
      r.store->set("done", "");
    } else if (r.rank == 0) {
      const size_t m = r.box.receive(1, 2, 1);
      r.store->get("waits", kLong);
      r.courier.abort("enough");
      r.courier.abort("and again");
      check_message(r, m, "AbortedError", {"The reason: rank 0 was aborted: enough"});
      CHECK_CONTAINS(refusal(r), "rank 0 was aborted: enough");
    }
    r.store->get("done", kLong);
    CHECK_CONTAINS(refusal(r), "rank 0 was aborted: enough");
  });
}

// Rank 1 has never sent anything when it gives up, or leaves.
void who_waits_for_a_first_message_learns_of_the_end(bool aborts) {
  on_couriers(2, [&](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.receive(1, 1, 1);
      r.store->set("waits", "");
      if (aborts) check_message(r, m, "AbortedError", {"rank 1 was aborted: enough"});
      else check_message(r, m, "TransportError", {"rank 1"});  // how far they were is told, too
      r.store->set("told", "");
    } else {
      r.store->get("waits", kLong);
      if (aborts) r.courier.abort("enough");
      else r.courier.close();
      r.store->get("told", kLong);
    }
  });
}

// Nothing is under way, so that nobody but the doorman learns of it; then a peer comes.
void who_comes_late_learns_of_an_abort() {
  const auto store = std::make_shared<MemoryStore>();
  Rank zero(store, 0, 2), one(store, 1, 2);
  zero.courier.abort("enough");
  check_message(one, one.box.receive(0, 1, 1), "AbortedError", {"rank 0 was aborted: enough"});
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
  check_message(zero, more, "TransportError",
                {"rank 0 waited for a message from rank 1 (tag 7, 1 bytes), and rank 1 has ended"});
  CHECK_EQ(zero.box.outcome(any).kind, std::string("AbortedError"));
}

void nobody_is_left_for_any_source() {
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
  check_message(zero, m, "TransportError", {"waited for a message from any rank (tag 2, 1 bytes), "
                                            "and all others have ended or left the group"});
}

void nothing_can_be_sent_to_who_has_left() {
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
      check_message(zero, unread, "TransportError",
                    {"rank 0 waited for room to send a message to rank 1 (tag 2", "has ended"});
    else
      check_message(zero, zero.box.send(1, 1, Bytes(1)), "TransportError",
                    {"rank 0 cannot connect to rank 1 (pid ", "has ended or left the group"});
  }
}

void close_finishes_what_was_posted() {
  on_couriers(2, [](Rank& r) {
    const int other = 1 - r.rank;
    const size_t sent = r.box.send(other, 1, contents(r.rank, other, 1, kTooMuch));
    const size_t received = r.box.receive(other, 1, kTooMuch);
    r.courier.close();
    CHECK(r.box.done(sent) && r.box.done(received));
    CHECK(r.box.bytes(received) == contents(other, r.rank, 1, kTooMuch));
    r.courier.close();
    CHECK_THROWS(UsageError, "the messages of group 'group' are closed",
                 r.box.send(other, 1, Bytes(1)));
    r.courier.abort("too late");
  });
}

void close_loses_patience() {
  on_couriers(2, [](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.receive(1, 1, 1);
      r.courier.close(Milliseconds(50));
      CHECK(r.box.done(m));
      const std::string text = "rank 0 closed its messages before they had finished";
      check_message(r, m, "AbortedError", {text});
      r.store->set("closed", "");
    } else {
      const size_t m = r.box.receive(0, 1, 1);
      const std::string kind = r.box.outcome(m).kind;
      // By whether they had met.
      CHECK(kind == "AbortedError" || kind == "TransportError");
      r.store->get("closed", kLong);
    }
  });
}

void a_store_that_fails_is_the_reason() {
  struct Broken final : Store {
    MemoryStore store;
    std::atomic<bool> broken{false};
    void use() {
      if (broken) throw std::runtime_error("the store is gone");
    }
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
  const auto store = std::make_shared<Broken>();
  Rank r(store, 0, 2);
  store->broken = true;
  check_message(r, r.box.receive(1, 1, 1), "another", {"the store is gone"});
}

}  // namespace

int main() {
  const int fds = open_files();
  for (const bool aside : {false, true}) sizes_must_agree(aside);
  a_receive_times_out();
  what_came_instead_is_told();
  a_send_without_room_times_out();
  a_peer_that_does_not_come_is_named();
  what_moves_does_not_time_out();
  abort_reaches_everybody();
  for (const bool aborts : {false, true}) who_waits_for_a_first_message_learns_of_the_end(aborts);
  who_comes_late_learns_of_an_abort();
  for (const bool met_before : {false, true}) what_was_sent_outlives_the_sender(met_before);
  nobody_is_left_for_any_source();
  nothing_can_be_sent_to_who_has_left();
  close_finishes_what_was_posted();
  close_loses_patience();
  a_store_that_fails_is_the_reason();
  CHECK_EQ(open_files(), fds);
}
