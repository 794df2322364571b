// Calls that a device completes after they have returned: the ring's knowledge of them without
// asking the device, and its reports. The test sets what each device shows.
#include "comm/enqueued.h"

#include <latch>

#include "comm/diagnosis.h"
#include "comm/waiting_ranks.h"
#include "fault/render.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr Milliseconds kSoon{5000};  // a watch looks every 0.2 s

bool within(Milliseconds time, const std::function<bool()>& come) {
  const auto end = Clock::now() + time;
  while (!come() && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
  return come();
}

Fault fault_in(const std::exception_ptr& error) {
  REQUIRE(error != nullptr);
  return fault_of(error, -1);
}

// Returns true if the record of a rank shows that the device has completed the call.
bool shows(int rank, uint64_t seq) {
  for (const RingRecord& record : recorded_calls())
    for (const CallRecord& call : record.calls)
      if (!record.failure && record.rank == rank && call.seq == seq) return call.ended != 0;
  return false;
}

// Call 1, made by all ranks.
void enqueue_one(Rank& r, std::latch& by_all) {
  r.shown->shows = true;
  r.wait(10);
  by_all.arrive_and_wait();
}

TEST_CASE("the last call of a program fails on the device of one rank, and all are told") {
  (void)queued_events();
  std::latch enqueued(3), over(3);
  std::atomic<int> after{0}, after_here{0};
  const auto texts = on_ranks(
      3,
      [&](Rank& r) {
        r.shown->shows = true;
        r.device.after_fault = [&](const Fault& why, bool here) {
          CHECK(why.cause == Cause::timed_out);
          ++(here ? after_here : after);
        };
        r.wait(10);  // call 1, which ends well
        r.wait(10);  // and the last one
        r.shown->done(1);
        const auto calls = r.comm.enqueued_on(r.device);
        REQUIRE(calls != nullptr);
        CHECK(!calls->error_of(1) && !calls->error_of(2));
        REQUIRE(within(kSoon, [&] { return shows(r.comm.rank(), 1) && !shows(r.comm.rank(), 2); }));
        enqueued.arrive_and_wait();
        if (r.comm.rank() == 0) {
          r.shown->fail(Verdict::timed_out, 2, 1);
          // Reported to a caller by the next tick of the watch.
          const Fault f = fault_in(calls->error_of(2));
          CHECK(f.event == Event::wait_timeout && f.seq == 2 && f.rank == 1);
          CHECK(f.theirs.on_page);  // the watch has read it
          CHECK_THROWS(TimeoutError, "waited for data from rank 1", r.comm.check_enqueued());
        }
        REQUIRE(within(kSoon, [&] { return r.comm.failed(); }));
        REQUIRE(within(kSoon, [&] { return calls->error_of(2) != nullptr; }));
        CHECK(!calls->error_of(1));  // it had ended before
        const Fault f = fault_in(calls->error_of(2));
        CHECK(f.event == Event::wait_timeout && f.seq == 2 && f.reporter == 0);
        CHECK_EQ(f.timeout_ns, 1'500'000'000);
        CHECK(f.mine.call.is_there);  // the device does not know it
        CHECK_EQ(f.ranks, 3);
        CHECK_THROWS(TimeoutError, "seq=2 all_reduce sum float32[10] over simple",
                     r.comm.check_enqueued());
        over.arrive_and_wait();
        r.comm.close();
        CHECK(fault_in(calls->error_of(2)).seq == 2);  // a work may be kept for longer
      },
      /*enqueues=*/true);
  for (const std::string& text : texts) CHECK_EQ(text, std::string());
  CHECK_EQ(after, 3);
  CHECK_EQ(after_here, 0);
  const auto events = queued_events();
  CHECK_EQ(count_of(events, EventKind::report), 1);  // by the rank that found it
  CHECK_EQ(count_of(events, EventKind::failure), 2);
}

// A rank that ends the waits of others also gives the reason; without one, the ended wait is
// reported.
TEST_CASE("a device that was aborted gives the reason of the rank that gave up") {
  for (const bool somebody_says : {true, false}) {
    std::latch enqueued(2), over(2);
    on_ranks(
        2,
        [&](Rank& r) {
          enqueue_one(r, enqueued);
          if (r.comm.rank() == 1) {
            r.shown->fail(Verdict::aborted, 1, 0);
          } else if (somebody_says) {
            std::this_thread::sleep_for(Milliseconds(400));  // the watch of rank 1 has looked
            CHECK(!r.comm.failed());
            r.shown->fail(Verdict::timed_out, 1, 1);
          }
          // A query waits until a reason is known, or could have been.
          const Event event = somebody_says ? Event::wait_timeout : Event::wait_aborted;
          const auto calls = r.comm.enqueued_on(r.device);
          if (r.comm.rank() == 1) CHECK(fault_in(calls->error_of(1)).event == event);
          REQUIRE(within(kSoon, [&] { return r.comm.failed(); }));
          over.arrive_and_wait();
        },
        /*enqueues=*/true);
  }
}

TEST_CASE("the rank that aborts continues, and the others are told") {
  (void)queued_events();
  std::latch enqueued(2), over(2);
  std::atomic<int> after{0}, after_here{0};
  on_ranks(
      2,
      [&](Rank& r) {
        r.device.after_fault = [&](const Fault&, bool here) { ++(here ? after_here : after); };
        enqueue_one(r, enqueued);
        if (r.comm.rank() == 1) {
          r.comm.abort("enough");
          const auto calls = r.comm.enqueued_on(r.device);
          CHECK(fault_in(calls->error_of(1)).event == Event::abort);  // at once
        }
        REQUIRE(within(kSoon, [&] { return after + after_here == 2; }));
        std::this_thread::sleep_for(Milliseconds(500));  // the watch looks again
        over.arrive_and_wait();
      },
      /*enqueues=*/true, RankNames{{10, 11}});
  CHECK_EQ(after, 1);
  CHECK_EQ(after_here, 1);
  const auto events = queued_events();
  CHECK_EQ(count_of(events, EventKind::report), 0);  // the abort was intended
  CHECK_EQ(count_of(events, EventKind::failure), 2);
}

TEST_CASE("the rank that finds a fault reports it, by its number in the group") {
  (void)queued_events();
  const RankNames names{{10, 11}};
  std::latch enqueued(2), over(2);
  on_ranks(
      2,
      [&](Rank& r) {
        enqueue_one(r, enqueued);
        if (r.comm.rank() == 1) r.shown->fail(Verdict::timed_out, 1, 0, 1, names);
        REQUIRE(within(kSoon, [&] { return r.comm.failed(); }));
        const Fault f = *r.comm.trouble();
        CHECK(f.reporter == 11 && f.rank == 10 && f.seq == 1);
        over.arrive_and_wait();
      },
      /*enqueues=*/true, names);
  const auto events = queued_events();
  CHECK_EQ(count_of(events, EventKind::report), 1);
  CHECK_EQ(count_of(events, EventKind::failure), 1);
}

TEST_CASE("the first reason stays, and so does what a device has shown at its end") {
  const auto shown = std::make_shared<Shown>();
  const FakeExecutor device(/*enqueues=*/true, shown);
  EnqueuedCalls calls(device);
  shown->done(3);
  calls.close();
  shown->done(9);  // no longer read
  calls.fail(aborted_by(1, "first"));
  calls.fail(aborted_by(1, "second"));
  CHECK(!calls.error_of(3));
  CHECK_EQ(fault_in(calls.error_of(4)).evidence.text(), std::string("first"));
}

TEST_CASE("a ring is closed while somebody waits for the reason why it was aborted") {
  const auto shown = std::make_shared<Shown>();
  const FakeExecutor device(/*enqueues=*/true, shown);
  EnqueuedCalls calls(device);
  shown->done(1);
  shown->fail(Verdict::aborted, 2, 0);
  CHECK(!calls.error_of(1));  // it had ended before
  std::thread closes([&] {
    std::this_thread::sleep_for(Milliseconds(20));
    calls.close();
  });
  CHECK(fault_in(calls.error_of(2)).event == Event::wait_aborted);
  closes.join();
}

TEST_CASE("an enqueued call has ended when the device shows it") {
  Control zero(0, 2), one(1, 2);
  zero.map(1, one.fd());
  one.map(0, zero.fd());
  const CallWords words = words_of(Task{});
  for (Control* c : {&zero, &one})
    for (int i = 0; i < 3; ++i) c->begin(words);
  CHECK_EQ(zero.open_call(0)->seq, uint64_t(1));
  CHECK(!late_rank(zero, 1));  // both have started it
  zero.end_through(2, 77);
  CHECK_EQ(zero.open_call(0)->seq, uint64_t(3));
  CHECK_EQ(zero.call(0, 2)->ended, 77);
  zero.end_through(2, 88);
  CHECK_EQ(zero.call(0, 2)->ended, 77);
  CHECK_EQ(late_rank(zero, 3).value_or(-1), 1);  // it has made the call and is at the first
  one.end_through(3, 99);
  CHECK(!late_rank(zero, 3));
  CHECK(!one.open_call(1));
}

// Captured, empty, or on a device that shows nothing: the call has ended when it returns.
TEST_CASE("a call that the device will not show is not waited for") {
  on_ranks(
      1,
      [&](Rank& r) {
        r.wait(10);
        r.pass();
        for (const RingRecord& record : recorded_calls())
          for (const CallRecord& call : record.calls) CHECK(record.failure || call.ended != 0);
      },
      /*enqueues=*/true);
}

TEST_CASE("a rank alone on its device is watched, too") {
  (void)queued_events();
  on_ranks(
      1,
      [&](Rank& r) {
        r.shown->shows = true;
        r.wait(10);
        r.shown->fail(Verdict::timed_out, 1, /*peer=*/5, /*rank=*/2);  // ranks of this process
        REQUIRE(within(kSoon, [&] { return r.comm.failed(); }));
        const Fault f = *r.comm.trouble();
        CHECK(f.reporter == 2 && f.rank == 5 && !f.theirs.on_page);
      },
      /*enqueues=*/true);
  CHECK_EQ(count_of(queued_events(), EventKind::report), 1);
  // On a CPU the program can act after a fault.
  std::atomic<int> after{0};
  on_ranks(1, [&](Rank& r) {
    r.device.after_fault = [&](const Fault& why, bool here) { after += why.from_outside && !here; };
    r.pass();
    r.comm.give_up(fault_of(Event::quoted_loss, 0, 1));
    REQUIRE(within(kSoon, [&] { return after == 1; }));
  });
}

}  // namespace
