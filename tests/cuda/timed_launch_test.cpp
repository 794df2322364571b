// The kernel of a traced task, and the place of its rows; over a runtime that only records
// launches.
#include "check.h"

#if RK_WITH_CUDA

#include "cuda/fake_runtime.h"
#include "cuda/local.h"

using namespace ringkern;
using namespace ringkern::cuda;
using test::Launch;
using test::runtime;

namespace {

const std::vector<int> kDevices = {0, 1, 0};
constexpr Milliseconds kTimeout{1000};

// Addresses and sizes that tell whose they are.
struct Traced {
  std::vector<Timeline> timelines;
  std::vector<Task> tasks;

  Traced() : timelines(kDevices.size()), tasks(kDevices.size()) {
    for (size_t r = 0; r < tasks.size(); ++r) {
      timelines[r] = {reinterpret_cast<TimedVerb*>((r + 1) << 12), int64_t(r) + 10};
      tasks[r].in = tasks[r].out = reinterpret_cast<void*>((r + 1) << 20);
      tasks[r].count = 1000;
      tasks[r].timeline = &timelines[r];
    }
  }
};

TEST_CASE("every rank has its rows") {
  for (int p = 0; p < kProtocols; ++p) {
    runtime = {};
    LocalRing ring(kDevices, kTimeout);
    Traced traced;
    for (Task& task : traced.tasks) task.protocol = Protocol(p);
    ring.run(traced.tasks);
    CHECK_EQ(runtime.launches.size(), size_t(2));
    int seen = 0;
    for (const Launch& launch : runtime.launches) {
      CHECK(launch.timed.has_value());
      CHECK_EQ(int(launch.timed->plan.protocol), p);
      CHECK_EQ(launch.timed->plan.count, int64_t(1000));
      for (unsigned i = 0; i < launch.blocks / unsigned(launch.channels()); ++i, ++seen) {
        const auto r = size_t(launch.timed->ranks[i].rank);
        CHECK(launch.timed->timelines[i].rows == traced.timelines[r].rows);
        CHECK_EQ(launch.timed->timelines[i].room, traced.timelines[r].room);
        CHECK(launch.timed->ranks[i].out == traced.tasks[r].out);
      }
    }
    CHECK_EQ(seen, 3);
  }
}

TEST_CASE("a task that is not traced has a kernel without a clock") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  Traced traced;
  ring.run(traced.tasks);
  for (Task& task : traced.tasks) task.timeline = nullptr;
  ring.run(traced.tasks);
  REQUIRE(runtime.launches.size() == 4);
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(runtime.launches[i].timed.has_value(), i < 2);
}

// Each rank traces or does not; what has no room gets no rows.
TEST_CASE("one rank may trace alone") {
  runtime = {};
  LocalRing ring({0, 0}, kTimeout);
  Traced traced;
  traced.tasks.pop_back();
  traced.tasks[1].timeline = nullptr;
  ring.run(traced.tasks);
  REQUIRE(runtime.launches.size() == 1);
  CHECK(runtime.launches[0].timed->timelines[0].rows == traced.timelines[0].rows);
  CHECK(runtime.launches[0].timed->timelines[1].room == 0);
}

TEST_CASE("a trace of what has no kernel with a clock is refused") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  const auto run = [&](auto change) {
    Traced traced;
    for (Task& task : traced.tasks) change(task);
    ring.run(traced.tasks);
  };
  CHECK_THROWS(UsageError, "not for all_reduce by ring of bfloat16: trace such a call",
               run([](Task& t) { t.reduction.dtype = DType::bf16; }));
  CHECK_THROWS(UsageError, "kernels with a clock",
               run([](Task& t) { t.reduction.combine = Combine::max; }));
  CHECK_THROWS(UsageError, "by one_shot of float32", run([](Task& t) {
                 t.algorithm = Algorithm::one_shot;
                 t.protocol = Protocol::ll;
               }));
  CHECK(runtime.launches.empty());
  run([](Task&) {});  // and the ring is as good as before
}

}  // namespace

#else
TEST_CASE("without CUDA kernels") {
  std::puts("built without CUDA kernels: there is nothing to test");
}
#endif
