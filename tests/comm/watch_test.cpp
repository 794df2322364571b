// What is noticed of ranks while nobody waits for them, and what all are told of it. The ranks are
// threads, whose calls do what the test says.
#include "comm/watch.h"

#include <unistd.h>

#include <latch>

#include "comm/diagnosis.h"
#include "comm/waiting_ranks.h"
#include "fault/render.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// All wait in their first call, which one makes in its own way.
TEST_CASE("a mismatch names the field and the ranks") {
  const auto texts = on_ranks(3, [](Rank& r) { r.wait(r.comm.rank() == 2 ? 1028 : 1024); });
  for (const std::string& text : texts) {
    CHECK_CONTAINS(text, "MismatchError 2 1: seq=1: ranks disagree on numel: rank ");  // 0 or 1
    CHECK_CONTAINS(text, " has 1024 (seq=1 all_reduce sum float32[1024]), rank 2 has 1028");
    CHECK_CONTAINS(text, "; of rank 2: seq=1 all_reduce sum float32[1028].");
    CHECK_CONTAINS(text, "All ranks must make the same calls in the same order");
    CHECK_CONTAINS(text, "close it and make a new one");
  }
  for (const std::string& text : on_ranks(
           2, [](Rank& r) { r.wait(10, r.comm.rank() == 0 ? DType::f32 : DType::bf16, Op::max); }))
    CHECK_CONTAINS(text,
                   "ranks disagree on dtype: rank 0 has float32 (seq=1 all_reduce max "
                   "float32[10]), rank 1 has bfloat16");
  for (const std::string& text :
       on_ranks(2, [](Rank& r) { r.wait(10, DType::f32, r.comm.rank() == 0 ? Op::avg : Op::sum); }))
    CHECK_CONTAINS(text, "ranks disagree on op: rank 0 has avg");
  for (const std::string& text :
       on_ranks(2, [](Rank& r) { r.wait(10, DType::bf16, Op::sum, /*wide=*/r.comm.rank() == 0); }))
    CHECK_CONTAINS(text,
                   "ranks disagree on accumulate: rank 0 has float32 (seq=1 all_reduce sum "
                   "bfloat16[10] in float32), rank 1 has bfloat16 (seq=1 all_reduce sum "
                   "bfloat16[10]).");
}

// Nobody waits for the data: the last to come sees it at once.
TEST_CASE("the last rank to come finds a mismatch of enqueued calls") {
  for (int i = 0; i < 20; ++i) {
    const auto texts = on_ranks(
        3,
        [](Rank& r) {
          r.pass();
          r.wait(r.comm.rank() + 1);
        },
        true);
    int found = 0;
    for (const std::string& text : texts)
      if (!text.empty()) {
        ++found;
        CHECK_CONTAINS(text, "Error ");
        CHECK_CONTAINS(text, "seq=2: ranks disagree on numel");
      }
    CHECK(found > 0);
  }
}

TEST_CASE("a rank that leaves early is named") {
  const auto texts = on_ranks(2, [](Rank& r) {
    r.pass();
    if (r.comm.rank() == 1) r.comm.close();
    else r.wait(10);
  });
  CHECK_CONTAINS(texts[0], "PeerLostError 1 2: rank 1 (pid " + std::to_string(::getpid()) +
                               ") closed its communicator, or its program ended normally, after "
                               "seq=1, and rank 0 made one more: seq=2 all_reduce sum float32[10]");
  CHECK_EQ(texts[1], std::string());
}

// The last to leave is not told that others were first.
TEST_CASE("a rank that leaves after its last call is let go") {
  for (int i = 0; i < 20; ++i)
    for (const std::string& text : on_ranks(3, [](Rank& r) {
           r.pass();
           r.comm.close();
         }))
      CHECK_EQ(text, std::string());
}

// What was first is what all say, also of calls that come later; and how far another rank had come
// is no fact of theirs.
TEST_CASE("all ranks give the first reason") {
  in_a_wait = 0;
  std::latch passed(3), aborted(3);
  const auto texts = on_ranks(3, [&](Rank& r) {
    r.pass();
    passed.arrive_and_wait();
    if (r.comm.rank() == 1) {
      while (in_a_wait == 0) std::this_thread::sleep_for(Milliseconds(1));
      r.comm.abort("enough");
      r.comm.abort("more than enough");
    }
    if (r.comm.rank() == 0) {
      try {
        r.wait(10);
        FAIL("nobody came, and no error");
      } catch (const AbortedError& e) {
        CHECK_CONTAINS(e.what(), "aborted by rank 1: enough. Here: rank ? waited.");
        CHECK_EQ(e.facts.rank, 1);
      }
    }
    aborted.arrive_and_wait();
    try {
      r.wait(10);
    } catch (const AbortedError& e) {
      CHECK(e.facts.phase.empty());
      throw;
    }
  });
  for (const std::string& text : texts)
    CHECK_CONTAINS(text,
                   "AbortedError 1 0: communicator 'group' became unusable just now: aborted "
                   "by rank 1: enough");
}

TEST_CASE("a late rank is named") {
  Control zero(0, 3), one(1, 3), two(2, 3);
  Control* const all[] = {&zero, &one, &two};
  for (Control* a : all)
    for (Control* b : all)
      if (a != b) a->map(b->rank, b->fd());
  const CallWords words = words_of(Task{});
  for (Control* c : all) {
    c->begin(words);
    c->end(0);
  }
  CHECK(!late_rank(zero, 1));
  zero.begin(words);
  two.begin(words);
  CHECK_EQ(late_rank(zero, 2).value_or(-1), 1);
  const WaitReport report{Verdict::timed_out, WaitFor::data, Protocol::ll, 0, 2, 7, 6};
  const Fault f = timed_out(zero, failed_wait(report, 0, 2, 2, words, 1'000'000'000, {}));
  CHECK_EQ(f.rank, 1);
  CHECK_EQ(f.wait.peer, 2);
  CHECK_CONTAINS(text_of(f),
                 "seq=2 all_reduce sum float32[0] over simple: rank 0 waited for data "
                 "from rank 2 (wants step 7, has seen 6) and nothing came for 1.0 s, "
                 "the timeout. Waiting for rank 1 (pid " +
                     std::to_string(::getpid()) +
                     "), which has not made this call; its last was seq=1 all_reduce "
                     "sum float32[0], which ended ");
  CHECK_CONTAINS(text_of(f), " s ago; its process is ");
  CHECK_CONTAINS(text_of(f), ". Per rank: 0 in seq=2 for ");
  CHECK_CONTAINS(text_of(f), "; 1 done with seq=1 ");
  CHECK_CONTAINS(text_of(f), "; 2 in seq=2 for ");
  CHECK(zero.fail(f));
  CHECK(!two.fail(aborted_by(2, "too late")));
  CHECK(two.failure()->cause == Cause::timed_out);
  CHECK_EQ(text_of(*two.failure()), text_of(f));
}

// A rank keeps the last calls; what is older, and what is half written, is not shown.
TEST_CASE("calls are kept for a while") {
  Control c(0, 1);
  for (int i = 1; i <= 100; ++i) {
    Task task;
    task.count = i;
    CHECK_EQ(c.begin(words_of(task)), uint64_t(i));
    if (i < 100) c.end(0);
  }
  CHECK(!c.call(0, 100 - kCallLines) && c.call(0, 101 - kCallLines));
  CHECK_EQ(c.call(0, 100)->words.count, 100);
  CHECK_EQ(c.call(0, 100)->ended, 0);
  CHECK(c.call(0, 99)->ended != 0);
  CHECK_EQ(c.last_calls(0).size(), size_t(kCallLines));
  CHECK_EQ(c.last_calls(0, 2).front().seq, uint64_t(99));
}

}  // namespace
