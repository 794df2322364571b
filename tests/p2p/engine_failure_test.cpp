// Messages that cannot arrive, and the ranks' errors.
#include <latch>

#include "p2p/engines.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr Milliseconds kShort{300};

void sizes_must_agree(bool aside) {
  on_engines(2, [&](Rank& r) {
    if (r.rank == 0) {
      const size_t other = r.box.receive(1, 1, 1);
      r.box.send(1, 5, Bytes(4096));
      if (aside) r.box.send(1, 6, Bytes(1));
      check_message(r, other, "AbortedError",
                    {"rank 0 waited for a message from rank 1 (tag 1",
                     "rank 0 sent 4096 bytes to rank 1 (tag 5)"});
    } else {
      if (aside) r.box.wait_for(r.box.receive(0, 6, 1));  // the first message is then set aside
      const size_t m = r.box.receive(0, 5, 8192);
      check_message(r, m, "MismatchError",
                    {"rank 0 sent 4096 bytes to rank 1 (tag 5), which expects 8192"});
      CHECK_CONTAINS(refusal(r),
                     "the messages of group 'group' became unusable just now: rank 0 "
                     "sent 4096 bytes to rank 1 (tag 5), which expects 8192");
    }
  });
}

AROUND_EACH_CASE(run) {
  const int fds = open_files();
  run();
  CHECK_EQ(open_files(), fds);
}

TEST_CASE("a receive times out") {
  on_engines(3, [](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.receive(1, 5, 4096, kShort), other = r.box.receive(2, 1, 1);
      check_message(r, m, "TimeoutError",
                    {"rank 0 waited for a message from rank 1 (tag 5, 4096 bytes) and nothing came "
                     "for 0.3 s (timed out). Did rank 1 send it"});
      check_message(r, other, "AbortedError",
                    {"rank 0 waited for a message from rank 2",
                     "The reason: rank 0 waited for a message from rank "
                     "1 (tag 5, 4096 bytes)"});
      CHECK_CONTAINS(refusal(r), "became unusable just now: rank 0 waited for a message from rank");
    } else {
      // The others have met rank 0, and get its error.
      const size_t m = r.box.receive(0, 7, 1);
      check_message(r, m, "AbortedError", {"rank 0 waited for a message from rank 1 (tag 5"});
      CHECK_CONTAINS(refusal(r), "rank 0 waited for a message from rank 1 (tag 5");
    }
  });
}

TEST_CASE("a receive that times out lists the messages that came instead") {
  on_engines(2, [](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.receive(kAnySource, 5, 1, kShort);
      check_message(r, m, "TimeoutError",
                    {"rank 0 waited for a message from any rank (tag 5, 1 bytes) and nothing came",
                     "Messages that match no receive: from rank 1 (tag 6), from rank 1 (tag 7)."});
    } else {
      r.box.send(0, 6, Bytes(10));
      r.box.send(0, 7, Bytes(10));
      r.box.check();
      check_message(r, r.box.receive(0, 1, 1), "AbortedError", {"any rank (tag 5, 1 bytes)"});
    }
  });
}

TEST_CASE("a send without room times out") {
  on_engines(2, [](Rank& r) {
    if (r.rank == 0) {
      const size_t m = r.box.send(1, 5, Bytes(kTooMuch), Protocol::ll128, kShort);
      check_message(r, m, "TimeoutError",
                    {"rank 0 waited for room to send a message to rank 1 (tag 5, 2097152 bytes) "
                     "and nothing moved for 0.3 s (timed out). Did rank 1 receive it"});
    } else {
      // a receive would set the other message aside
      const size_t m = r.box.send(0, 6, Bytes(kTooMuch));
      check_message(r, m, "AbortedError", {"(tag 5, 2097152 bytes)"});
    }
  });
}

TEST_CASE("a peer that does not come is named") {
  for (const bool sends : {false, true}) {
    Rank r(std::make_shared<MemoryStore>(), 0, 2, kShort);  // the engine's own timeout
    const size_t m = sends ? r.box.send(1, 5, Bytes(1)) : r.box.receive(1, 5, 1);
    check_message(r, m, "TimeoutError",
                  {sends ? "rank 0 waited for room to send a message to rank 1 (tag 5, 1 bytes)"
                         : "rank 0 waited for a message from rank 1 (tag 5, 1 bytes)",
                   "rank 1 did not come within 0.3 s (timed out)"});
  }
}

// In a callback with an error the engine is unusable already.
TEST_CASE("a callback with an error cannot post") {
  const auto store = std::make_shared<MemoryStore>();
  P2pEngine engine(store, "group", 0, 2, kShort);
  std::latch done(1);
  unsigned char byte = 0;
  const auto again = [&](std::exception_ptr error, int source) {
    CHECK(error != nullptr);
    CHECK_EQ(source, 1);
    CHECK_THROWS(AbortedError, "rank 1 did not come within 0.3 s (timed out)", engine.post({}));
    done.count_down();
  };
  engine.post({{false, 1, 1, {}, &byte, 1, Milliseconds(0), again}});
  done.wait();
}

// A message that the engine's thread has not seen yet when another one fails.
TEST_CASE("messages that are posted during a failure fail too") {
  const auto store = std::make_shared<MemoryStore>();
  Rank zero(store, 0, 3), one(store, 1, 3), two(store, 2, 3);
  std::latch called(1), two_has_sent(1);
  std::atomic<size_t> posted{0};
  unsigned char byte = 0;
  const size_t wrong = zero.box.receive(2, 1, 1);
  zero.engine.post({{false, 1, 1, {}, &byte, 1, Milliseconds(0), [&](std::exception_ptr, int) {
                       called.count_down();
                       two_has_sent.wait();
                       posted = zero.box.receive(1, 5, 1);
                     }}});
  one.box.send(0, 1, Bytes(1));
  called.wait();
  two.box.wait_for(two.box.send(0, 1, Bytes(2)));
  two_has_sent.count_down();  // its size is wrong; the same step of rank 0 finds it
  CHECK_EQ(zero.box.outcome(wrong).kind, std::string("MismatchError"));
  zero.box.wait();
  check_message(zero, posted, "AbortedError", {"rank 2 sent 2 bytes to rank 0"});
}

TEST_CASE("a store that fails is given as the reason") {
  std::atomic<bool> broken{false};
  const auto store = std::make_shared<FrailStore>();
  store->use = [&broken] {
    if (broken) throw std::runtime_error("the store is gone");
  };
  Rank r(store, 0, 2);
  broken = true;
  check_message(r, r.box.receive(1, 1, 1), "another", {"the store is gone"});
}

TEST_CASE("the sizes of both sides must agree") {
  for (const bool aside : {false, true}) sizes_must_agree(aside);
}

}  // namespace
