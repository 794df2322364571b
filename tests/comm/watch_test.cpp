// Observations of ranks that no call waits for, and the reports to all ranks. The ranks are
// threads, whose calls run the test's functions.
#include "comm/watch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <latch>

#include "comm/diagnosis.h"
#include "comm/processes.h"
#include "comm/waiting_ranks.h"
#include "fault/render.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// All ranks wait in their first call; one makes it in its own way.
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

// No rank waits for the data: the last rank to join sees the mismatch at once, and so does a query
// of a call.
TEST_CASE("the last rank to come finds a mismatch of enqueued calls") {
  for (int i = 0; i < 20; ++i) {
    const auto texts = on_ranks(
        3,
        [](Rank& r) {
          r.pass();
          try {
            r.wait(r.comm.rank() + 1);
          } catch (const MismatchError&) {
            const auto error = r.comm.enqueued_on(r.device)->error_of(2);
            REQUIRE(error != nullptr);
            CHECK(fault_of(error, -1).event == Event::mismatch);
            throw;
          }
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

// The last to leave gets no report that others left first.
TEST_CASE("a rank that leaves after its last call is let go") {
  for (int i = 0; i < 20; ++i)
    for (const std::string& text : on_ranks(3, [](Rank& r) {
           r.pass();
           r.comm.close();
         }))
      CHECK_EQ(text, std::string());
}

// All ranks raise the first reason, also in later calls; the progress of another rank is not in
// their facts.
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
        CHECK_EQ(e.facts.seq, uint64_t(2));  // this rank's call: an abort has none
        CHECK_EQ(e.facts.phase, "waited");
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

// ---- exceptions of a call -----------------------------------------------------------------------

// Makes a call of a rank that ends with the exception of `error`.
void fail_in(Rank& r, const std::function<void()>& error) {
  Task task;
  task.count = 10;
  r.comm.run(r.device, task, error);
}

const RankNames kNames{{10, 11}};

Fault wait_of(int rank, int peer, uint64_t seq) {
  const WaitReport report{Verdict::timed_out, WaitFor::data, Protocol::ll, 0, peer, 7, 6};
  return failed_wait(report, rank, peer, seq, {}, 1'000'000'000, kNames);
}

// The others wait, and raise the same.
TEST_CASE("what ends a call of a rank is raised by all") {
  const std::tuple<std::function<void()>, Event, std::string> all[] = {
      {[] { throw_wait(wait_of(1, 0, 2)); }, Event::wait_timeout, "TimeoutError 10 2: "},
      {[] { throw_fault(fault_of(Event::message_mismatch, 11, 10)); }, Event::message_mismatch,
       "MismatchError 10 2: "},
      {[] { throw std::runtime_error("no memory"); }, Event::exception, "AbortedError 11 2: "}};
  for (const auto& [error, event, raised] : all) {
    (void)queued_events();
    in_a_wait = 0;
    std::latch over(2);
    const auto texts = on_ranks(
        2,
        [&, &error = error, &event = event](Rank& r) {
          r.pass();
          if (r.comm.rank() == 0) {
            try {
              r.wait(10);
            } catch (...) {
              over.arrive_and_wait();
              throw;
            }
          }
          while (in_a_wait == 0) std::this_thread::sleep_for(Milliseconds(1));
          try {
            fail_in(r, error);
          } catch (const Error& e) {
            // it is the rank's own error
            CHECK(std::string(e.what()).find(" Here: ") == std::string::npos);
          } catch (const std::runtime_error& e) {
            CHECK_EQ(e.what(), std::string("no memory"));
          }
          CHECK(r.comm.failed());
          over.arrive_and_wait();
          const Fault f = *r.comm.trouble();
          CHECK(f.event == event && f.reporter == 11);
          if (f.event == Event::message_mismatch) return;
          CHECK(f.mine.call.is_there && f.group.text() == "group");
        },
        /*enqueues=*/false, kNames);
    CHECK_CONTAINS(texts[0], raised);
    CHECK_CONTAINS(texts[0], " Here: rank ? waited.");
    const auto events = queued_events();
    CHECK_EQ(count_of(events, EventKind::report), 1);
    CHECK_EQ(count_of(events, EventKind::failure), 1);
  }
}

// Another rank may have raised first, or a group may have failed for an outside reason.
TEST_CASE("a rank that finds another reason says it after the first one") {
  for (const bool outside : {false, true}) {
    std::latch inside(1), given(1);
    const auto texts = on_ranks(
        2,
        [&](Rank& r) {
          r.pass();
          if (r.comm.rank() == 0) {
            inside.wait();
            if (!outside) r.comm.abort("enough");
            given.count_down();
            return;
          }
          fail_in(r, [&] {
            inside.count_down();
            given.wait();
            Fault first = fault_of(Event::quoted_loss, 11, 17, 23);
            first.evidence = "rank 17 died";
            if (outside) r.comm.give_up(first);
            throw_wait(wait_of(1, 0, 2));
          });
        },
        /*enqueues=*/false, kNames);
    CHECK_CONTAINS(texts[1], outside
                                 ? "PeerLostError 17 23: rank 17 died. Here: seq=2 all_reduce"
                                 : "AbortedError 10 2: aborted by rank 10: enough. Here: seq=2");
  }
}

// A store that answers late.
struct SlowStore final : Store {
  explicit SlowStore(std::shared_ptr<Store> of) : store(std::move(of)) {}
  void set(const std::string& key, const std::string& value) override {
    store->set(key, value);
    std::this_thread::sleep_for(kDelay);
  }
  std::string get(const std::string& key, Milliseconds timeout) override {
    const std::string value = store->get(key, timeout);
    std::this_thread::sleep_for(kDelay);
    return value;
  }
  int64_t add(const std::string& key, int64_t amount) override {
    const int64_t sum = store->add(key, amount);
    std::this_thread::sleep_for(kDelay);
    return sum;
  }
  static constexpr Milliseconds kDelay{50};
  const std::shared_ptr<Store> store;
};

// The others were quicker, and they failed in this call.
TEST_CASE("a rank that connects last raises what the others have failed for") {
  const auto store = std::make_shared<MemoryStore>();
  Rank zero(std::make_shared<SlowStore>(store), 0, 2, /*enqueues=*/false, kNames);
  Rank one(store, 1, 2, /*enqueues=*/false, kNames);
  std::thread other([&] {
    CHECK_THROWS(MismatchError, "",
                 fail_in(one, [] { throw_fault(fault_of(Event::message_mismatch, 11, 10)); }));
  });
  CHECK_THROWS(MismatchError, "", zero.wait(10));
  CHECK(zero.comm.failed());
  other.join();
}

// An executor that aborts its neighbours does so before its communicator can give the reason.
TEST_CASE("a wait that another rank has ended has the reason that comes later") {
  std::latch ended(1);
  const auto texts = on_ranks(
      2,
      [&](Rank& r) {
        r.pass();
        if (r.comm.rank() == 1)
          fail_in(r, [&] {
            ended.count_down();
            throw AbortedError("rank ? waited.");
          });
        ended.wait();
        std::this_thread::sleep_for(Milliseconds(100));
        r.comm.abort("enough");
      },
      /*enqueues=*/false, kNames);
  CHECK_CONTAINS(texts[1], "AbortedError 10 0: aborted by rank 10: enough. Here: rank ? waited.");
}

TEST_CASE("a wait that was ended without a reason is the reason") {
  for (const bool known : {false, true})
    on_ranks(
        1,
        [&](Rank& r) {
          CHECK_THROWS(AbortedError, "waited", fail_in(r, [&] {
                         if (!known) throw AbortedError("rank ? waited.");
                         Fault f = wait_of(0, 1, 1);
                         f.event = Event::wait_aborted;
                         f.cause = Cause::aborted;
                         throw_wait(f);
                       }));
          const Fault f = *r.comm.trouble();
          CHECK(f.event == (known ? Event::wait_aborted : Event::exception));
          CHECK_EQ(f.reporter, 10);
          CHECK_EQ(f.rank, known ? 11 : 10);
          CHECK_EQ(f.seq, uint64_t(1));
          CHECK(f.waits == known && f.mine.call.is_there);
        },
        /*enqueues=*/false, kNames);
}

// ---- the pages of all ranks ---------------------------------------------------------------------

// Ranks 10, 11, ... of a group, on pages that all have mapped.
struct Pages {
  std::vector<std::unique_ptr<Control>> all;

  explicit Pages(int ranks) {
    RankNames names;
    for (int r = 0; r < ranks; ++r) names.numbers.push_back(10 + r);
    for (int r = 0; r < ranks; ++r)
      all.push_back(std::make_unique<Control>(r, ranks, "group", names));
    for (const auto& a : all)
      for (const auto& b : all)
        if (a != b) a->map(b->rank, b->fd());
  }
  Control& operator[](size_t rank) { return *all[rank]; }
};

CallWords words_of_count(int64_t count) {
  Task task;
  task.count = count;
  return words_of(task);
}

TEST_CASE("a lost rank is told with the call that it was lost in") {
  Pages ring(2);
  ring[1].begin(words_of_count(1));
  ring[1].end(coarse_now() - 7'000'000'000);
  std::this_thread::sleep_for(Milliseconds(20));
  const ProcessEnd end{ProcessEnd::status, 9};
  Fault f = peer_lost(ring[0], 1, end);
  CHECK(f.event == Event::died_between_calls && f.reporter == 10 && f.rank == 11 && f.seq == 0);
  CHECK(f.mine.rank == 10 && f.theirs.rank == 11 && !f.mine.call.is_there);
  CHECK(f.theirs.end.known == ProcessEnd::status && f.theirs.end.wait_status == 9);
  CHECK(f.theirs.pid == ::getpid() && (f.theirs.state == 'R' || f.theirs.state == 'S'));
  CHECK(f.theirs.last[0].age_ns >= 7'000'000'000 && f.theirs.silent_ns > 0);
  CHECK_EQ(f.group.text(), "group");
  ring[0].begin(words_of_count(1));
  f = peer_lost(ring[0], 1, end);
  CHECK(f.event == Event::died_in_call && f.seq == 1 && f.mine.call.seq == 1);
}

TEST_CASE("a rank that has left is told once this one has made another call") {
  Pages ring(2);
  for (Control* c : {&ring[0], &ring[1]}) c->begin(words_of_count(1)), c->end(0);
  ring[1].depart();
  CHECK(!find_departed(ring[0]) && !find_departed(ring[1]));
  ring[0].begin(words_of_count(1));
  const Fault f = find_departed(ring[0]).value();
  CHECK(f.event == Event::left && f.reporter == 10 && f.rank == 11 && f.seq == 2);
  CHECK(f.theirs.calls == 1 && f.mine.call.seq == 2);
}

TEST_CASE("a mismatch is found in an earlier call and blames the only rank that differs") {
  Pages ring(2);
  ring[0].begin(words_of_count(1));
  ring[0].begin(words_of_count(1));
  ring[1].begin(words_of_count(2));
  for (Control* c : {&ring[0], &ring[1]}) {
    const Fault f = find_mismatch(*c).value();
    CHECK(f.event == Event::mismatch && f.seq == 1 && f.rank == 11 && f.theirs.rank == 11);
    CHECK(f.mine.rank == 10 && f.reporter == 10 + c->rank && !f.whole);
    CHECK(f.mine.call.words.count == 1 && f.theirs.call.words.count == 2);
  }
  // Equal steps of calls that differ.
  Pages inside(2);
  CallWords whole = words_of_count(5);
  whole.what |= kSpansHosts;
  inside[0].begin(words_of_count(1), whole);
  ++whole.count;
  inside[1].begin(words_of_count(1), whole);
  const Fault f = find_mismatch(inside[0]).value();
  CHECK(f.whole && f.mine.call.seq == 0);
  CHECK(f.mine.call.words.count == 5 && f.theirs.call.words.count == 6);
}

TEST_CASE("a wait that has failed shows where all ranks stand") {
  Pages ring(3);
  for (const auto& c : ring.all) c->begin(words_of_count(1));
  const WaitReport report{Verdict::timed_out, WaitFor::data, Protocol::ll, 0, 2, 7, 6};
  const auto wait = [&](uint64_t seq) {
    return timed_out(ring[0], failed_wait(report, 0, 2, seq, {}, 1, ring[0].names));
  };
  Fault f = wait(1);  // for a rank that is at work
  CHECK(f.rank == 12 && f.theirs.rank == 12 && f.theirs.on_page && f.mine.call.words.count == 1);
  CHECK_EQ(f.group.text(), "group");
  CHECK_EQ(f.ranks, 3);
  ring[1].end(0);
  ring[1].depart();
  for (const size_t r : {0, 2}) ring[r].end(0), ring[r].begin(words_of_count(1));
  f = wait(0);  // a device may not know the call
  CHECK(f.rank == 11 && f.theirs.rank == 11 && f.mine.rank == 10);
  for (int r = 0; r < 3; ++r) CHECK(f.stands[r].rank == 10 + r && f.stands[r].left == (r == 1));
  CHECK(f.stands[1].last.seq == 1 && f.stands[2].last.seq == 2);
}

TEST_CASE("a call that fails, or waits for long, is in the fault") {
  Pages ring(2);
  ring[0].begin(words_of_count(5));
  Fault f = failed_call(ring[0], 1, "no memory");
  CHECK(f.event == Event::exception && f.reporter == 10 && f.rank == 10 && f.seq == 1);
  CHECK(f.evidence.text() == "no memory" && f.mine.call.words.count == 5);
  f = late_in(ring[0], *ring[0].call(0, 1), 1, Milliseconds(5400), Milliseconds(30000));
  CHECK(f.event == Event::late && f.reporter == 10 && f.rank == 11 && f.seq == 1);
  CHECK(f.mine.call.seq == 1 && f.mine.call.age_ns == 5'000'000'000);
  CHECK_EQ(f.timeout_ns, 30'000'000'000);
}

// Other processes write to the page with the word for the first failure.
TEST_CASE("a rank that does not exist was not the first to fail") {
  Pages ring(2);
  const size_t bytes = size_t(::lseek(ring[0].fd(), 0, SEEK_END));
  void* const page =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring[0].fd(), /*offset=*/0);
  REQUIRE(page != MAP_FAILED);
  auto* const words = static_cast<uint64_t*>(page);
  const std::vector<uint64_t> before(words, words + bytes / sizeof *words);
  CHECK(ring[1].fail(aborted_by(11, "enough")));
  uint64_t* const first = std::mismatch(before.begin(), before.end(), words).second;
  REQUIRE(first != words + before.size());
  CHECK_EQ(*first, uint64_t(2));
  for (const uint64_t odd : {uint64_t(3), UINT64_MAX}) {
    *first = odd;
    CHECK(ring[0].failed() && !ring[0].failure());
  }
  ::munmap(page, bytes);
}

// A process that has made its call may be stopped, or may have ended without being reaped.
TEST_CASE("a rank whose process does not run is late") {
  Control mine(0, 2);
  int page[2];
  REQUIRE(::pipe(page) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(20);
    Control theirs(1, 2);
    theirs.begin(words_of_count(1));
    const int fd = theirs.fd();
    if (::write(page[1], &fd, sizeof fd) == sizeof fd) ::raise(SIGSTOP);
    ::_exit(1);
  }
  int fd = -1, status = 0;
  REQUIRE(::read(page[0], &fd, sizeof fd) == sizeof fd);
  REQUIRE(::waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
  const Fd theirs(
      ::open(("/proc/" + std::to_string(child) + "/fd/" + std::to_string(fd)).c_str(), O_RDWR));
  mine.map(1, theirs.get());
  mine.begin(words_of_count(1));
  CHECK_EQ(late_rank(mine, 1).value_or(-1), 1);
  CHECK_EQ(seen(mine, 1).pid, child);
  ::kill(child, SIGKILL);
  siginfo_t ended;
  CHECK_EQ(::waitid(P_PID, id_t(child), &ended, WEXITED | WNOWAIT), 0);
  CHECK_EQ(late_rank(mine, 1).value_or(-1), 1);
  CHECK_EQ(::waitpid(child, &status, 0), child);
  for (const int end : page) ::close(end);
}

TEST_CASE("the end of a process is told to the ranks that still call") {
  const auto store = std::make_shared<SharedStore>();
  on_processes(
      2,
      [&](int rank) {
        Rank r(store, rank, 2);
        r.pass();
        if (rank == 0) store->set("passed", "");
        if (rank == 1) {
          store->get("passed", kLong);  // or rank 0 may still be in that call
          ::raise(SIGKILL);
        }
        try {
          r.wait(10);
          FAIL("nobody came, and no error");
        } catch (const Error&) {
          const Fault f = r.comm.trouble().value();
          CHECK(f.cause == Cause::peer_lost && f.reporter == 0 && f.rank == 1);
          CHECK(f.theirs.end.known == ProcessEnd::status && f.theirs.end.wait_status == SIGKILL);
        }
      },
      SIGKILL);
}

TEST_CASE("a rank that is watched shows that it is alive") {
  Control mine(0, 1);
  Watched ring;
  ring.control = &mine;
  ring.if_alone = true;
  const int64_t first = mine.last_beat_of(0);
  const Watch watch(std::move(ring));
  const auto end = Clock::now() + kLong;
  while (mine.last_beat_of(0) == first && Clock::now() < end)
    std::this_thread::sleep_for(Milliseconds(10));
  CHECK(mine.last_beat_of(0) > first);
}

TEST_CASE("the last rings that have failed are kept, with the reason") {
  for (int i = 0; i < 20; ++i)
    on_ranks(1, [&](Rank& r) {
      r.pass();
      r.comm.abort(std::to_string(i));
    });
  const std::vector<RingRecord> kept = recorded_calls();
  REQUIRE(kept.size() == 8);
  for (size_t i = 0; i < kept.size(); ++i) {
    REQUIRE(kept[i].failure.has_value());
    CHECK_EQ(kept[i].failure->evidence.text(), std::to_string(12 + i));
    CHECK_EQ(kept[i].calls.size(), size_t(1));
  }
}

// A comparison of the records would miss calls that another rank no longer shows.
TEST_CASE("a record has the calls that all ranks show") {
  std::latch enqueued(2), looked(2);
  on_ranks(
      2,
      [&](Rank& r) {
        for (int i = 0; i < (r.comm.rank() == 0 ? 20 : 18); ++i) r.wait(10);
        enqueued.arrive_and_wait();
        for (const RingRecord& record : recorded_calls())
          if (!record.failure) CHECK_EQ(record.calls.front().seq, uint64_t(5));
        looked.arrive_and_wait();
      },
      /*enqueues=*/true);
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
                 "from rank 2 (wants step 7, has seen 6) and nothing came for 1.0 s (timed "
                 "out). Waiting for rank 1 (pid " +
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

// A rank keeps the last calls; older and half-written ones are not shown.
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
