// How a ring of several ranks and devices in one process is launched, over a runtime that only
// takes note of it: no GPU is needed.
#include "check.h"

#if RK_WITH_CUDA

#include "cuda/fake_runtime.h"
#include "cuda/local.h"

using namespace ringkern;
using namespace ringkern::cuda;
using test::Launch;
using test::runtime;

namespace {

const std::vector<int> kDevices = {0, 2, 0, 1, 2, 0};
constexpr Milliseconds kTimeout{1000};

// Addresses that tell what they belong to.
void* pointer(size_t n, size_t unit) { return reinterpret_cast<void*>((n + 1) * unit); }
void* in_of(size_t rank) { return pointer(rank, 1 << 12); }
void* out_of(size_t rank) { return pointer(rank, 1 << 20); }
void* stream_of(int device) { return pointer(size_t(device), 16); }

std::vector<Task> tasks_on(const std::vector<int>& devices, int64_t count = 100'000) {
  std::vector<Task> tasks(devices.size());
  for (size_t r = 0; r < devices.size(); ++r) {
    tasks[r].in = in_of(r);
    tasks[r].out = out_of(r);
    tasks[r].count = count;
    tasks[r].stream = stream_of(devices[r]);
  }
  return tasks;
}

size_t seats(const Launch& launch) { return launch.blocks / unsigned(launch.args.plan.channels); }

void one_launch_a_device() {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  CHECK_EQ(runtime.memory.size(), size_t(3));
  ring.run(tasks_on(kDevices));
  CHECK_EQ(runtime.launches.size(), size_t(3));
  std::map<int, RankArgs> ranks;
  for (const Launch& launch : runtime.launches) {
    CHECK_EQ(launch.args.plan.channels, runtime.launches[0].args.plan.channels);
    CHECK(launch.stream == stream_of(launch.device));
    for (size_t i = 0; i < seats(launch); ++i) {
      const RankArgs& args = launch.args.ranks[i];
      CHECK_EQ(kDevices[size_t(args.rank)], launch.device);
      CHECK_EQ(runtime.device_of(args.mine), launch.device);
      CHECK(ranks.emplace(args.rank, args).second);
    }
  }
  CHECK_EQ(ranks.size(), kDevices.size());
  std::set<const void*> segments, mailboxes;
  for (int r = 0; r < 6; ++r) {
    const RankArgs& args = ranks[r];
    CHECK(args.in == in_of(size_t(r)) && args.out == out_of(size_t(r)));
    CHECK(args.next == ranks[(r + 1) % 6].mine && args.prev == ranks[(r + 5) % 6].mine);
    segments.insert(args.mine);
    mailboxes.insert(args.mailbox);
  }
  CHECK_EQ(segments.size(), size_t(6));
  CHECK_EQ(mailboxes.size(), size_t(6));
  CHECK_EQ(runtime.current, 0);  // the thread's device, as before
  CHECK(ring.drain(Milliseconds(1)));
}

void every_launch_is_told_the_root() {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  for (int c = 0; c < kCollectives; ++c)
    for (int root = 0; root < int(kDevices.size()); ++root) {
      runtime.launches.clear();
      std::vector<Task> tasks = tasks_on(kDevices);
      for (Task& task : tasks) task.collective = Collective(c), task.root = root;
      ring.run(tasks);
      CHECK_EQ(runtime.launches.size(), size_t(3));
      for (const Launch& launch : runtime.launches) {
        const Plan& plan = launch.args.plan;
        CHECK(plan.collective == Collective(c) && plan.root == root && plan.ranks == 6);
        CHECK(plan.count == 100'000 && plan.loops == runtime.launches[0].args.plan.loops);
      }
    }
}

void neighbours_have_access() {
  runtime = {};
  runtime.access = {{0, 1}};  // somebody else was first
  { LocalRing ring({0, 1, 1, 2}, kTimeout); }
  CHECK(runtime.access ==
        (std::set<std::pair<int, int>>{{0, 1}, {1, 0}, {1, 2}, {2, 1}, {0, 2}, {2, 0}}));
  CHECK_EQ(int(runtime.last), int(cudaSuccess));
  CHECK(runtime.memory.empty());
  runtime.peers = false;
  CHECK_THROWS(TransportError, "device 0 and device 2 are neighbours",
               LocalRing(kDevices, kTimeout));
  LocalRing ring({1, 1, 1}, kTimeout);
}

void a_launch_that_fails_ends_the_others() {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  runtime.refuses = 2;
  CHECK_THROWS(TransportError, "cudaLaunchKernel", ring.run(tasks_on(kDevices)));
  CHECK_EQ(runtime.launches.size(), size_t(1));
  const Launch& launch = runtime.launches[0];
  for (size_t i = 0; i < seats(launch); ++i) CHECK_EQ(launch.args.ranks[i].mailbox->aborted, 1u);
  runtime.refuses = -1;
  CHECK_THROWS(AbortedError, "was aborted before", ring.run(tasks_on(kDevices)));
  CHECK_EQ(runtime.launches.size(), size_t(1));
}

void the_cause_is_thrown() {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  ring.run(tasks_on(kDevices));
  for (const Launch& launch : runtime.launches)
    for (size_t i = 0; i < seats(launch); ++i) {
      const RankArgs& args = launch.args.ranks[i];
      // What the wait of rank 4 that ran out makes of the others.
      args.mailbox->report.verdict = args.rank == 4 ? Verdict::timed_out : Verdict::aborted;
    }
  CHECK_THROWS(TimeoutError, "rank 4 waited", ring.run(tasks_on(kDevices)));
  CHECK_EQ(runtime.launches.size(), size_t(3));  // and nothing was launched
}

void what_does_not_fit_is_refused() {
  runtime = {};
  runtime.processors = 20;
  {  // 32 ranks on device 0 and 4 on device 1: as many channels as the first can take
    std::vector<int> devices(36, 0);
    std::fill_n(devices.begin(), 4, 1);
    LocalRing ring(devices, kTimeout);
    CHECK_EQ(ring.geometry().channels, 1);
  }
  runtime.processors = 4;
  CHECK_THROWS(UsageError, "32 blocks resident at once, and device 0 holds 8: use fewer ranks",
               LocalRing(std::vector<int>(32, 0), kTimeout));
  CHECK_THROWS(TransportError, "there is no CUDA device 3", LocalRing({0, 3}, kTimeout));
  CHECK(runtime.memory.empty());
  runtime = {};
  runtime.full = 2;
  CHECK_THROWS(TransportError, "Device 2 needs", LocalRing(kDevices, kTimeout));
  CHECK(runtime.memory.empty());  // of the devices that came before
}

void a_ring_of_one_takes_no_memory() {
  runtime = {};
  LocalRing ring({1}, kTimeout);
  CHECK(runtime.memory.empty());
  const std::vector<float> in(10, 1.5f);
  for (int c = 0; c < kCollectives; ++c) {
    std::vector<float> out(10);
    Task task;
    task.collective = Collective(c);
    task.in = in.data();
    task.out = out.data();
    task.count = 10;
    ring.run({&task, 1});
    CHECK(in == out);
  }
}

}  // namespace

int main() {
  one_launch_a_device();
  every_launch_is_told_the_root();
  neighbours_have_access();
  a_launch_that_fails_ends_the_others();
  the_cause_is_thrown();
  what_does_not_fit_is_refused();
  a_ring_of_one_takes_no_memory();
}

#else
int main() { std::puts("built without CUDA kernels: there is nothing to test"); }
#endif
