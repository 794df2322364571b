// The number and the timeout of a launch, and the host's reading of its progress; over a runtime
// that only records calls.
#include "check.h"

#if RK_WITH_CUDA

#include "cuda/executor.h"
#include "cuda/fake_runtime.h"
#include "cuda/local.h"

using namespace ringkern;
using namespace ringkern::cuda;
using test::Launch;
using test::runtime;

namespace {

const std::vector<int> kDevices = {0, 1, 0};
constexpr Milliseconds kTimeout{1000};
constexpr uint64_t kTimeoutNs = 1'000'000'000;

// Returns the tasks of a call. A communicator sees, and numbers, the first one alone.
std::vector<Task> tasks_of(uint64_t seq, int64_t count = 1000) {
  std::vector<Task> tasks(kDevices.size());
  for (size_t r = 0; r < tasks.size(); ++r) {
    tasks[r].in = tasks[r].out = reinterpret_cast<void*>((r + 1) << 20);
    tasks[r].stream = reinterpret_cast<void*>(size_t(kDevices[r] + 1) << 4);
    tasks[r].count = count;
  }
  tasks.front().seq = seq;
  return tasks;
}

// Each kind of launch: round the ring, the same with a clock, and direct.
constexpr int kKinds = 3;
Timeline nowhere;
std::vector<Task> tasks_of_kind(int kind, uint64_t seq) {
  std::vector<Task> tasks = tasks_of(seq);
  for (Task& task : tasks) {
    if (kind == 1) task.timeline = &nowhere;
    if (kind == 2) task.algorithm = Algorithm::one_shot, task.protocol = Protocol::ll;
  }
  return tasks;
}

uint64_t seq_of(const Launch& l) { return l.direct ? l.direct->seq : l.args.seq; }
uint64_t timeout_of(const Launch& l) { return l.direct ? l.direct->timeout_ns : l.args.timeout_ns; }

// Returns each rank's, after a launch of all.
std::map<int, Mailbox*> mailboxes() {
  std::map<int, Mailbox*> all;
  for (const Launch& launch : runtime.launches)
    for (unsigned i = 0; i < launch.blocks / unsigned(launch.channels()); ++i)
      all[launch.ranks()[i].rank] = launch.ranks()[i].mailbox;
  return all;
}

// One end of a link for messages.
struct Link {
  static constexpr Geometry geometry() {
    Geometry g = default_geometry();
    g.channels = 4;
    return g;
  }
  static Segments segments() {
    const auto bytes = size_t(segment_bytes(geometry(), 2));
    Segments s;
    s.mine = test::zeroed(bytes), s.next = s.prev = test::zeroed(bytes);
    s.all = {s.mine, s.next};
    return s;
  }
  // Returns what its message is launched with; `beside`: blocks of others.
  MessageArgs launch(uint64_t seq, int beside = 0) {
    LaunchBatch batch(nullptr);
    batch.beside = beside;
    add_to(batch, seq);
    batch.launch();
    return runtime.launches.back().messages->messages[0];
  }
  void add_to(LaunchBatch& batch, uint64_t seq) {
    Task task = tasks_of(seq, 100'000).front();
    task.collective = Collective::send_recv;
    task.reduction.dtype = DType::u8;
    task.batch = &batch;
    CHECK(engine.run(task).under_way);
  }
  const Segments memory = segments();
  CudaExecutor engine{memory, geometry(), /*rank=*/0, /*ranks=*/2, /*device=*/0, kTimeout};
};

TEST_CASE("messages are launched together") {
  runtime = {};
  Link one, other;
  LaunchBatch batch(nullptr);
  one.add_to(batch, 1), other.add_to(batch, 5);
  CHECK(runtime.launches.empty());
  batch.launch();
  CHECK_EQ(runtime.launches.size(), size_t(1));
  const Launch& launch = runtime.launches[0];
  CHECK_EQ(launch.blocks, 8u);
  for (const int i : {0, 1}) {
    const MessageArgs& args = launch.messages->messages[i];
    CHECK_EQ(args.seq, uint64_t(i == 0 ? 1 : 5));
    CHECK_EQ(args.plan.channels, 4);
    CHECK(args.ranks[0].mine == (i == 0 ? one : other).memory.mine);
  }
  runtime.refuses = 0;
  LaunchBatch refused(nullptr);
  one.add_to(refused, 2), other.add_to(refused, 6);
  CHECK_THROWS(TransportError, "cudaLaunchKernelExC", refused.launch());
  for (Link* each : {&one, &other}) CHECK_THROWS(AbortedError, "was aborted", each->launch(7));
}

TEST_CASE("a message waits for the one before it, unless that has ended") {
  runtime = {};
  Link link;
  const MessageArgs first = link.launch(1);
  CHECK(first.after == 0 && first.last != nullptr);
  CHECK_EQ(link.launch(2).after, uint64_t(1));
  first.ranks[0].mailbox->done = 2;
  CHECK_EQ(link.launch(3).after, uint64_t(0));
  CHECK_EQ(link.launch(4, /*beside=*/1 << 20).after, uint64_t(3));  // there is no room: in a stream
  runtime.capture = 1;
  LaunchBatch batch(reinterpret_cast<void*>(16));
  Task task = tasks_of(5).front();
  task.collective = Collective::send_recv;
  task.reduction.dtype = DType::u8;
  task.batch = &batch;
  CHECK(!link.engine.run(task).under_way);
  batch.launch();
  const MessageArgs& captured = runtime.launches.back().messages->messages[0];
  CHECK(captured.after == 0 && captured.seq == 0 && captured.last == nullptr);
  runtime.capture = 0;
}

TEST_CASE("every launch is told its call's number and timeout") {
  for (int kind = 0; kind < kKinds; ++kind) {
    runtime = {};
    LocalRing ring(kDevices, kTimeout);
    std::vector<Task> tasks = tasks_of_kind(kind, 17);
    CHECK(ring.run(tasks));
    for (Task& task : tasks) task.timeout = Milliseconds(250);
    tasks.front().seq = 18;
    ring.run(tasks);
    REQUIRE(runtime.launches.size() == 4);
    for (size_t i = 0; i < 4; ++i) {
      CHECK_EQ(seq_of(runtime.launches[i]), i < 2 ? 17u : 18u);
      CHECK_EQ(timeout_of(runtime.launches[i]), i < 2 ? kTimeoutNs : 250'000'000);
    }
  }
}

// Beside the word for the rank's failure, and no other rank's.
TEST_CASE("every rank counts its blocks for itself") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  ring.run(tasks_of(1));
  std::set<const uint32_t*> words;
  for (const Launch& launch : runtime.launches)
    for (unsigned i = 0; i < launch.blocks / unsigned(launch.channels()); ++i) {
      const RankArgs& rank = launch.ranks()[i];
      CHECK(rank.ended == rank.failed + 1 && *rank.ended == 0);
      CHECK_EQ(runtime.device_of(reinterpret_cast<std::byte*>(rank.ended)), launch.device);
      words.insert(rank.ended);
    }
  CHECK_EQ(words.size(), kDevices.size());
}

TEST_CASE("a call that posts no number is not under way") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  std::vector<Task> tasks = tasks_of(0);  // not counted
  CHECK(!ring.run(tasks));
  CHECK_EQ(runtime.launches.size(), size_t(2));
  CHECK(!ring.run(tasks_of(1, 0)));  // nothing to do
  CHECK_EQ(runtime.launches.size(), size_t(2));
}

TEST_CASE("a ring of one has ended when its stream has") {
  runtime = {};
  CudaExecutor engine({}, default_geometry(), 0, 1, 0, kTimeout);
  float x = 1;
  Task task;
  task.in = task.out = &x;
  task.count = 1;
  task.seq = 5;
  CHECK(!engine.run(task).under_way);
  CHECK_EQ(engine.progress().done, uint64_t(0));
  CHECK(!engine.progress().failed);
}

// One query of the runtime a launch, and one more where it is captured.
TEST_CASE("a captured launch posts nothing") {
  for (int kind = 0; kind < kKinds; ++kind) {
    runtime = {};
    LocalRing ring(kDevices, kTimeout);
    for (const unsigned long long capture : {7, 0, 8}) {
      runtime.launches.clear();
      runtime.capture = capture;
      runtime.capture_queries = 0;
      std::vector<Task> tasks = tasks_of_kind(kind, 3);
      CHECK_EQ(ring.run(tasks), capture == 0);
      REQUIRE(runtime.launches.size() == 2);
      CHECK_EQ(runtime.capture_queries, capture == 0 ? 2 : 4);
      for (const Launch& launch : runtime.launches) {
        CHECK_EQ(seq_of(launch), capture == 0 ? 3u : 0u);
        CHECK_EQ(timeout_of(launch), kTimeoutNs);
      }
    }
  }
}

TEST_CASE("the slowest rank determines the progress of a call") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  CHECK_EQ(ring.progress().done, uint64_t(0));
  CHECK(!ring.progress().failed);
  ring.run(tasks_of(1));
  auto of = mailboxes();
  REQUIRE(of.size() == 3);
  for (auto& [rank, mailbox] : of) mailbox->done = 10;
  CHECK_EQ(ring.progress().done, uint64_t(10));
  for (auto& [rank, mailbox] : of) {
    mailbox->done = 9;
    CHECK_EQ(ring.progress().done, uint64_t(9));
    mailbox->done = 10;
  }
  CHECK(!ring.progress().failed);
}

// A rank whose deadline has passed is the cause of others that were aborted, wherever it sits.
TEST_CASE("the cause goes before what came of it") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  ring.run(tasks_of(1));
  auto of = mailboxes();
  REQUIRE(of.size() == 3);
  for (int r = 0; r < 3; ++r)
    of[r]->report = {Verdict::ok, WaitFor::credit, Protocol::ll, r, -1, 17, 16, 4, kTimeoutNs};
  CHECK(!ring.progress().failed);  // no word counts before the verdict
  for (int one = 0; one < 3; ++one) {
    of[one]->report.verdict = Verdict::aborted;
    REQUIRE(ring.progress().failed.has_value());
    const Fault fault = *ring.progress().failed;
    const WaitReport found = fault.wait;
    CHECK(fault.cause == Cause::aborted && fault.seq == 4 && fault.reporter == one);
    CHECK(found.verdict == Verdict::aborted && found.what == WaitFor::credit);
    CHECK(found.protocol == Protocol::ll && found.channel == one && found.wanted == 17);
    CHECK(found.seen == 16 && found.seq == 4 && found.timeout_ns == kTimeoutNs);
    of[one]->report.verdict = Verdict::ok;
  }
  for (int one = 0; one < 3; ++one) {
    for (int r = 0; r < 3; ++r)
      of[r]->report.verdict = r == one ? Verdict::timed_out : Verdict::aborted;
    const WaitReport found = ring.progress().failed.value().wait;
    CHECK(found.verdict == Verdict::timed_out && found.channel == one);
  }
  // It does not become an error of this call, which queries nothing.
  CHECK_THROWS(TimeoutError, "seq=4 a collective over ll: rank 2 waited for a free slot",
               ring.run(tasks_of(2)));
}

TEST_CASE("an executor passes on what its launches show") {
  runtime = {};
  std::byte here{};
  Segments s;
  s.mine = s.next = s.prev = &here;
  s.all = {&here, &here, &here};
  CudaExecutor engine(s, default_geometry(), 1, 3, 0, kTimeout);
  const Executor& executor = engine;
  Task task = tasks_of(9)[0];
  CHECK(engine.run(task).under_way);
  REQUIRE(runtime.launches.size() == 1);
  Mailbox* mailbox = runtime.launches[0].args.ranks[0].mailbox;
  mailbox->done = 9;
  CHECK_EQ(executor.progress().done, uint64_t(9));
  mailbox->report.verdict = Verdict::aborted;
  CHECK(executor.progress().failed.has_value());
  mailbox->report.verdict = Verdict::ok;
  task.count = 0;
  CHECK(!engine.run(task).under_way);
}

// Each ends the waits of its neighbours, too, but for a launch that is refused.
TEST_CASE("an engine raises what its launches show, and what a launch fails with") {
  for (const Verdict verdict : {Verdict::timed_out, Verdict::aborted, Verdict::ok}) {
    runtime = {};
    Segments s;
    s.orders = {};
    std::vector<std::byte> here(size_t(cuda::segment_bytes(default_geometry(), 3)));
    s.mine = s.next = s.prev = here.data();
    s.all = {here.data(), here.data(), here.data()};
    CudaExecutor engine(s, default_geometry(), 1, 3, 0, kTimeout);
    Task task = tasks_of(9)[0];
    engine.run(task);
    Mailbox* mailbox = runtime.launches[0].args.ranks[0].mailbox;
    CHECK_EQ(mailbox->aborted, 0u);
    mailbox->report = {verdict, WaitFor::data, Protocol::ll, 0, -1, 17, 16, 9, kTimeoutNs};
    if (verdict == Verdict::timed_out)
      CHECK_THROWS(TimeoutError, "rank 1 waited for data from rank 0", engine.run(task));
    if (verdict == Verdict::aborted)
      CHECK_THROWS(AbortedError, "rank 1 waited for data from rank 0", engine.run(task));
    CHECK_EQ(mailbox->aborted, verdict == Verdict::ok ? 0u : 1u);
    runtime.failing = 1;
    if (verdict == Verdict::ok) {
      CHECK(test::refused("cudaLaunchKernel", [&] { engine.run(task); }));
      CHECK_EQ(mailbox->aborted, 0u);
      CHECK(engine.run(task).under_way);
      CHECK_EQ(runtime.launches.size(), size_t(2));
      runtime.launches.pop_back();
      runtime.lost = 0;
      CHECK(!test::refused("cudaLaunchKernel", [&] { engine.run(task); }));
    }
    runtime.lost = -1;
    CHECK_EQ(mailbox->aborted, 1u);
    if (verdict == Verdict::ok)
      CHECK_THROWS(AbortedError, "was aborted before all_reduce", engine.run(task));
    CHECK_EQ(runtime.launches.size(), size_t(1));
  }
}

// It is under way, and the next one would run beside it.
TEST_CASE("a launch that nothing can follow is no call that was refused") {
  for (const unsigned long long capture : {0, 7}) {
    runtime = {};
    LocalRing ring(kDevices, kTimeout);
    std::vector<Task> tasks = tasks_of(1);
    runtime.capture = capture;
    runtime.records = false;
    // A graph that is not made never runs.
    CHECK_EQ(test::refused("EventRecord", [&] { ring.run(tasks); }), capture != 0);
    CHECK_EQ(runtime.launches.size(), size_t(1));
  }
}

}  // namespace

#else
TEST_CASE("without CUDA kernels") {
  std::puts("built without CUDA kernels: there is nothing to test");
}
#endif
