// Turns: the calls that may run at once on the calling thread, and the handling of the others.
#include "comm/communicator.h"

#include <sys/wait.h>
#include <unistd.h>

#include <latch>

#include "comm/waiting_ranks.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// A device whose calls run the test's function and are counted.
struct FakeDevice {
  std::function<void(const Task&)> call = [](const Task&) {};
  std::atomic<int> calls{0}, aborts{0};
  Device device;

  explicit FakeDevice(const std::string& name = "cpu") {
    device.name = name;
    device.make_executor = [this](const Segments&) {
      return std::make_unique<FakeExecutor>(*this);
    };
  }

 private:
  struct FakeExecutor final : Executor {
    explicit FakeExecutor(FakeDevice& of) : of_(of) {}
    RunResult run(const Task& task) override {
      ++of_.calls;
      of_.call(task);
      return {};
    }
    void abort() override { ++of_.aborts; }
    FakeDevice& of_;
  };
};

struct Alone : Communicator {
  explicit Alone(RankNames names = {})
      : Communicator(std::make_shared<MemoryStore>(), "alone", 0, 1, kLong, std::move(names)) {}

  std::optional<uint64_t> run_now(const Device& on, Task task) {
    return Communicator::run_now(on, task);
  }
};

// Returns true if this was the only event since the last call.
bool posted_only(EventKind kind) {
  const auto events = queued_events();
  return events.size() == 1 && events[0].kind == kind;
}

Task numbered(int64_t number) {
  Task task;
  task.count = number;
  return task;
}

// Runs first, while the process has no other thread.
TEST_CASE("a forked child can make no call") {
  FakeDevice cpu;
  Alone c;
  c.run(cpu.device, {});
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(20);
    const bool refused = !c.run_now(cpu.device, {});
    bool thrown = false;
    try {
      c.run(cpu.device, {});
    } catch (const UsageError&) {
      thrown = true;
    }
    ::_exit(refused && thrown && cpu.calls == 1 ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK(c.run_now(cpu.device, {}));
}

TEST_CASE("a call runs at once where the last one ran") {
  FakeDevice cpu, other("cuda:0");
  Alone c;
  std::vector<int64_t> order;
  cpu.call = other.call = [&](const Task& task) { order.push_back(task.count); };
  CHECK(!c.run_now(cpu.device, numbered(1)));  // nothing is connected
  c.run(cpu.device, numbered(2));
  CHECK(c.run_now(cpu.device, numbered(3)));
  CHECK(c.run_now(cpu.device, numbered(4)));
  CHECK(!c.run_now(other.device, numbered(5)));
  c.run(other.device, numbered(6));
  CHECK(!c.run_now(cpu.device, numbered(7)));
  CHECK(c.run_now(other.device, numbered(8)));
  c.run(cpu.device, numbered(9));
  CHECK(c.run_now(cpu.device, numbered(10)));
  CHECK(order == (std::vector<int64_t>{2, 3, 4, 6, 8, 9, 10}));
  CHECK_EQ(cpu.calls, 5);
}

TEST_CASE("a call does not run at once while another thread is in one") {
  for (const bool quick : {false, true}) {
    FakeDevice cpu;
    Alone c;
    c.run(cpu.device, {});
    std::latch inside(1), go_on(1);
    cpu.call = [&](const Task& task) {
      if (task.count != 1) return;
      inside.count_down();
      go_on.wait();
    };
    std::thread another([&] {
      if (quick) REQUIRE(c.run_now(cpu.device, numbered(1)));
      else c.run(cpu.device, numbered(1));
    });
    inside.wait();
    CHECK(!c.run_now(cpu.device, numbered(2)));  // does not wait
    go_on.count_down();
    another.join();
    CHECK(c.run_now(cpu.device, numbered(3)));
    CHECK_EQ(cpu.calls, 3);
  }
}

// Two at a time would overwrite each other's slots.
TEST_CASE("threads take turns") {
  FakeDevice cpu;
  Alone c;
  c.run(cpu.device, {});
  int inside = 0, most = 0;  // no atomics: ThreadSanitizer sees whether the turns order them
  cpu.call = [&](const Task&) {
    most = std::max(most, ++inside);
    --inside;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i)
        if (!c.run_now(cpu.device, {})) c.run(cpu.device, {});
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(most, 1);
  CHECK_EQ(cpu.calls, 2001);
}

// An earlier call must run first. A callback is a part of its call; a call in it would wait for
// itself.
TEST_CASE("a call does not run at once while asynchronous ones are under way") {
  FakeDevice cpu;
  Alone c;
  c.run(cpu.device, {});
  std::latch inside(1), go_on(1), told(1), done(1);
  std::vector<int64_t> order;
  cpu.call = [&](const Task& task) {
    order.push_back(task.count);
    if (task.count != 1) return;
    inside.count_down();
    go_on.wait();
  };
  bool in_callback = true;
  c.run_async(cpu.device, numbered(1), [](std::exception_ptr) {});
  c.run_async(cpu.device, numbered(2), [&](std::exception_ptr error) {
    CHECK(!error);
    in_callback = c.run_now(cpu.device, numbered(3)).has_value();
    told.count_down();
    done.wait();
  });
  inside.wait();
  CHECK(!c.run_now(cpu.device, numbered(4)));  // while one runs and one waits
  go_on.count_down();
  told.wait();
  CHECK(!in_callback);
  CHECK(!c.run_now(cpu.device, numbered(5)));  // while a callback runs
  done.count_down();
  c.run(cpu.device, numbered(6));  // waits for all of them
  CHECK(c.run_now(cpu.device, numbered(7)));
  CHECK(order == (std::vector<int64_t>{1, 2, 6, 7}));
}

// The next call sees what a call on the worker's thread has left, without a lock between them.
TEST_CASE("a call runs at once after an asynchronous one on its device") {
  FakeDevice cpu, other("cuda:0");
  Alone c;
  std::vector<int64_t> order;
  other.call = cpu.call = [&](const Task& task) { order.push_back(task.count); };
  for (int i = 0; i < 200; ++i) {
    c.run(cpu.device, numbered(0));
    c.run_async(other.device, numbered(1), [](std::exception_ptr) {});
    while (!c.run_now(other.device, numbered(2))) std::this_thread::yield();
    CHECK(!c.run_now(cpu.device, numbered(3)));
    CHECK(order == (std::vector<int64_t>{0, 1, 2}));
    order.clear();
  }
}

TEST_CASE("a closed communicator runs no call") {
  FakeDevice cpu;
  Alone c;
  c.run(cpu.device, {});
  c.close();
  CHECK(!c.run_now(cpu.device, {}));
  CHECK_THROWS(UsageError, "is closed", c.run(cpu.device, {}));
  CHECK_EQ(cpu.calls, 1);
}

// Closing waits for the running call, and no other call begins.
TEST_CASE("closing waits for a call that runs at once") {
  FakeDevice cpu;
  Alone c;
  c.run(cpu.device, {});
  std::latch inside(1), go_on(1);
  bool ended = false;
  cpu.call = [&](const Task&) {
    inside.count_down();
    go_on.wait();
    ended = true;
  };
  std::thread caller([&] { REQUIRE(c.run_now(cpu.device, {})); });
  inside.wait();
  std::thread closer([&] {
    c.close();
    CHECK(ended);
  });
  std::this_thread::sleep_for(Milliseconds(20));  // otherwise close would not have to wait
  go_on.count_down();
  caller.join();
  closer.join();
  CHECK(!c.run_now(cpu.device, {}));
}

TEST_CASE("an aborted communicator runs no call") {
  FakeDevice cpu;
  Alone c;
  c.run(cpu.device, {});
  c.abort("enough");
  CHECK(!c.run_now(cpu.device, {}));
  CHECK_THROWS(AbortedError, "aborted by rank 0: enough", c.run(cpu.device, {}));
  CHECK_EQ(cpu.calls, 1);
  CHECK_EQ(cpu.aborts, 1);
}

// A failed wait has left counters between two steps. A call that CUDA refuses to launch was not
// made, so the next one has its number.
TEST_CASE("a communicator continues after a call that its device refuses") {
  FakeDevice cuda("cuda:0");
  Alone c;
  std::vector<uint64_t> numbers, histories;
  bool refuses = false;
  cuda.call = [&](const Task& task) {
    if (refuses) throw TransportError("refused", {.refused = true});
    numbers.push_back(task.seq);
    histories.push_back(task.history);
  };
  c.run(cuda.device, numbered(1));
  refuses = true;
  CHECK_THROWS(TransportError, "refused", c.run(cuda.device, numbered(2)));
  CHECK_THROWS(TransportError, "refused", c.run_now(cuda.device, numbered(2)));
  CHECK_EQ(c.last_seq_on(cuda.device), uint64_t(1));
  CHECK(!c.failed() && cuda.aborts == 0);
  refuses = false;
  c.run(cuda.device, numbered(3));
  CHECK(numbers == (std::vector<uint64_t>{1, 2}));
  Alone other;
  other.run(cuda.device, numbered(1));
  other.run(cuda.device, numbered(3));
  CHECK_EQ(histories[3], histories[1]);
  for (const RingRecord& ring : recorded_calls())
    CHECK(ring.failure || ring.calls.size() == 2);  // the refused call is shown to no rank
  refuses = true;  // other ranks may not be told before the next call
  CHECK_THROWS(TransportError, "refused", c.run(cuda.device, numbered(4), [] {}));
  CHECK(c.failed());
  CHECK_EQ(cuda.aborts, 1);
}

TEST_CASE("a communicator is unusable after a failed call") {
  FakeDevice cpu;
  Alone c;
  c.run(cpu.device, {});
  cpu.call = [](const Task&) { throw TimeoutError("nobody came"); };
  CHECK_THROWS(TimeoutError, "nobody came", c.run_now(cpu.device, {}));
  CHECK(c.failed());
  CHECK(!c.run_now(cpu.device, {}));
  CHECK_THROWS(AbortedError, "became unusable just now: nobody came", c.run(cpu.device, {}));
  CHECK_EQ(cpu.calls, 2);
  c.close();  // the turn is not taken
}

// The error is raised here, so no report is needed.
TEST_CASE("an exception that is quoted is no report") {
  for (const bool waits : {false, true}) {
    FakeDevice cpu;
    cpu.call = [](const Task&) { throw TimeoutError("nobody came"); };
    if (!waits)
      cpu.device.make_executor = [](const Segments&) -> std::unique_ptr<Executor> {
        throw std::runtime_error("no memory");
      };
    Alone c(RankNames{{7}});
    (void)queued_events();
    CHECK_THROWS(std::runtime_error, waits ? "nobody came" : "no memory", c.run(cpu.device, {}));
    CHECK(posted_only(EventKind::failure));
    REQUIRE(c.failed());
    const Fault f = *c.trouble();
    CHECK(f.event == (waits ? Event::quoted_timeout : Event::quoted_failure) && f.reporter == 7);
    CHECK_EQ(f.evidence.text(), waits ? "nobody came" : "no memory");
  }
}

TEST_CASE("an exception of a call ends the ring and is reported") {
  FakeDevice cpu;
  Alone c(RankNames{{7}});
  c.run(cpu.device, {});
  cpu.call = [](const Task&) { throw std::runtime_error("no memory"); };
  (void)queued_events();
  CHECK_THROWS(std::runtime_error, "no memory", c.run(cpu.device, numbered(5)));
  CHECK(posted_only(EventKind::report));
  CHECK_EQ(cpu.aborts, 1);
  REQUIRE(c.failed());
  const Fault f = *c.trouble();
  CHECK(f.event == Event::exception && f.rank == 7 && f.seq == 2 && f.mine.call.words.count == 5);
  CHECK_EQ(f.evidence.text(), "no memory");
}

TEST_CASE("the first of two aborts counts, also before there is a ring") {
  Alone c(RankNames{{7}});
  (void)queued_events();
  c.abort("enough");
  c.abort("more than enough");
  CHECK(posted_only(EventKind::failure));
  const Fault f = c.trouble().value();
  CHECK(f.event == Event::abort && f.rank == 7 && f.reporter == 7);
  CHECK_EQ(f.evidence.text(), "enough");
}

TEST_CASE("an abort while the ranks connect ends the first call") {
  FakeDevice cpu;
  Alone c;
  const auto make = cpu.device.make_executor;
  cpu.device.make_executor = [&](const Segments& segments) {
    c.abort("enough");
    return make(segments);
  };
  CHECK_THROWS(AbortedError, "aborted by rank 0: enough", c.run(cpu.device, {}));
  CHECK_EQ(cpu.calls, 0);
  CHECK_EQ(cpu.aborts, 1);
}

// The ring knows only that it was aborted; the communicator has the reason.
TEST_CASE("a call that an abort ends gives the reason") {
  FakeDevice cpu;
  Alone c;
  c.run(cpu.device, {});
  cpu.call = [&](const Task&) {
    c.abort("enough");
    throw AbortedError("rank 0 waited.");
  };
  CHECK_THROWS(AbortedError, "aborted by rank 0: enough. Here: rank 0 waited.",
               c.run_now(cpu.device, {}));
}

}  // namespace
