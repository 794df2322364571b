// Launches of a ring of several ranks and devices in one process, over a runtime that only records
// them: no GPU is needed.
#include "check.h"

#if RK_WITH_CUDA

#include <algorithm>

#include "comm/probe.h"
#include "comm/ring_of_threads.h"
#include "cuda/executor.h"
#include "cuda/fake_runtime.h"
#include "cuda/ipc.h"
#include "cuda/local.h"
#include "cuda/residency.h"
#include "orders.h"

using namespace ringkern;
using namespace ringkern::cuda;
using test::Launch;
using test::open_files;
using test::runtime;

namespace {

const std::vector<int> kDevices = {0, 2, 0, 1, 2, 0};
constexpr Milliseconds kTimeout{1000};

// Addresses that identify their owner.
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

size_t seats(const Launch& launch) { return launch.blocks / unsigned(launch.channels()); }

TEST_CASE("each device gets one launch") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  CHECK_EQ(runtime.memory.size(), size_t(6));  // on each device segments, and a table of all
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
  CHECK_EQ(runtime.current, 0);  // the thread's device is unchanged
  CHECK(ring.drain(Milliseconds(1)));
}

TEST_CASE("links are probed before there is a ring") {
  const auto make = [] { LocalRing(kDevices, kTimeout); };
  runtime = {};
  make();
  CHECK(runtime.launches.empty() && runtime.probes.empty() && runtime.memory.empty());
  runtime = {};
  runtime.broken = {{1, 2}};  // CUDA reports that they reach each other
  CHECK_THROWS(TransportError,
               "the data that rank 3 (cuda:1, PCI 0000:01:00.0) wrote into the memory of rank 1 "
               "(cuda:2, PCI 0000:02:00.0) did not arrive within 0.5 s: all 2816 bytes are 0. "
               "CUDA says that the two GPUs reach each other's memory, and data do not",
               make());
  CHECK(runtime.memory.empty());
  runtime = {};
  runtime.corrupt = 0;
  CHECK_THROWS(TransportError,
               "into the memory of rank 0 (cuda:0, PCI 0000:00:00.0) is wrong: 1 "
               "of 2816 bytes differ, the first of them in word 5",
               make());
  runtime = {};
  runtime.busy = true;
  CHECK_THROWS(TransportError, "device 0 did not run the kernel that probes",
               LocalRing(kDevices, Milliseconds(60)));
  CHECK(runtime.memory.empty());
  runtime = {};
  runtime.apart = {{1, 2}, {2, 1}};  // no neighbours in this order: nothing is written
  runtime.broken = runtime.apart;
  LocalRing({0, 2, 0, 1, 0}, kTimeout);
  LocalRing({0, 0}, kTimeout);  // one device has no links
  CHECK(runtime.memory.empty());
}

TEST_CASE("every launch is told the root") {
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

RingOrders two_orders() {
  RingOrders orders = test::the_order({0, 3, 1, 5, 2, 4});
  const int back[] = {0, 4, 2, 5, 1, 3};
  CHECK(orders.add(back, 6));
  return orders;
}

// And the kernels find their neighbours among all.
TEST_CASE("every launch is told the orders") {
  runtime = {};
  const RingOrders orders = two_orders();
  LocalRing ring(kDevices, kTimeout, orders);
  ring.run(tasks_on(kDevices));
  CHECK_EQ(runtime.launches.size(), size_t(3));
  std::map<int, RankArgs> ranks;
  for (const Launch& launch : runtime.launches) {
    CHECK(launch.args.plan.orders == orders);
    for (size_t i = 0; i < seats(launch); ++i)
      ranks.emplace(launch.args.ranks[i].rank, launch.args.ranks[i]);
  }
  for (const auto& [rank, args] : ranks)
    for (int peer = 0; peer < 6; ++peer) CHECK(args.all[peer] == ranks[peer].mine);
  runtime.launches.clear();
  std::vector<Task> tasks = tasks_on(kDevices);
  for (Task& task : tasks) task.algorithm = Algorithm::one_shot, task.protocol = Protocol::ll;
  ring.run(tasks);
  CHECK_EQ(runtime.launches.size(), size_t(3));
  for (const Launch& launch : runtime.launches) CHECK(launch.direct->orders == orders);
}

TEST_CASE("a message takes one order") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout, two_orders()),
      one(kDevices, kTimeout, test::the_order({0, 3, 1, 5, 2, 4}));
  std::vector<Task> tasks = tasks_on(kDevices);
  for (Task& task : tasks) task.collective = Collective::send_recv;
  CHECK_THROWS(UsageError, "this ring has 2 orders", ring.run(tasks));
  CHECK(runtime.launches.empty());
  one.run(tasks);
  CHECK_EQ(runtime.launches.size(), size_t(3));
}

TEST_CASE("impossible orders are refused") {
  runtime = {};
  CHECK_THROWS(UsageError, "these orders of 6 ranks are invalid",
               LocalRing(kDevices, kTimeout, test::the_order({0, 2, 1})));
  CHECK(runtime.access.empty());  // before anybody is looked up in them
  Segments s;
  s.orders = test::the_order({0, 2, 1, 3});
  CHECK_THROWS(UsageError, "these orders of 3 ranks are invalid",
               CudaExecutor(s, default_geometry(), 0, 3, 0, kTimeout));
  std::byte here{};
  s.mine = &here;
  s.all = {&here, nullptr, &here, &here};  // rank 1 is no neighbour of rank 0
  {
    CudaExecutor engine(s, default_geometry(), 0, 4, 0, kTimeout);
  }
  s.all = {&here, &here, nullptr, &here};
  CHECK_THROWS(TransportError, "rank 0 and rank 2 are neighbours on a ring, and device 0",
               CudaExecutor(s, default_geometry(), 0, 4, 0, kTimeout));
  s.all.resize(3, &here);
  s.all[2] = &here;
  CHECK_THROWS(TransportError, "no access to the memory of rank 3",
               CudaExecutor(s, default_geometry(), 0, 4, 0, kTimeout));
}

std::vector<Task> direct_tasks(const std::vector<int>& devices, Algorithm algorithm) {
  std::vector<Task> tasks = tasks_on(devices);
  for (Task& task : tasks) task.algorithm = algorithm, task.protocol = Protocol::ll;
  return tasks;
}

TEST_CASE("the sums of more than three ranks by a tree have kernels of their own") {
  const auto check = [&](const std::vector<int>& devices, Algorithm algorithm, Protocol protocol,
                         const std::string& name) {
    const auto ranks = int(devices.size());
    for (const bool tree : {false, true})
      for (const int64_t count : {1000, 10'000'000}) {
        runtime = {};
        LocalRing ring(devices, kTimeout);
        std::vector<Task> tasks = direct_tasks(devices, algorithm);
        for (Task& task : tasks) {
          task.protocol = protocol, task.count = count;
          task.reduction = Reduction::of(Op::sum, DType::f32, ranks, 1.0, false, tree);
        }
        ring.run(tasks);
        CHECK(!runtime.launches.empty());
        for (const Launch& launch : runtime.launches) {
          const bool own = tree && ranks > 3;
          CHECK(launch.kernel.find(name + "<float, true, " + (own ? "true" : "false") + ">") !=
                std::string::npos);
          if (!launch.in_place) continue;
          CHECK(launch.threads <= unsigned(kMostInPlaceThreads / (own ? 2 : 1)));
          // Each thread takes a word or a pack, and no block is without one.
          const int64_t block = (own ? 8 : 16) * int64_t(launch.threads);
          CHECK_EQ(int64_t(launch.blocks), (4 * count + block - 1) / block);
        }
      }
  };
  for (const auto& devices : {std::vector<int>{0, 0, 0}, {0, 0, 0, 0}}) {
    check(devices, Algorithm::one_shot, Protocol::ll, "::direct_kernel");
    check(devices, Algorithm::two_shot, Protocol::simple, "::in_place");
  }
  for (const auto& devices : {std::vector<int>{0, 1, 0}, {0, 1, 0, 1}})
    check(devices, Algorithm::two_shot, Protocol::simple, "::across");
}

TEST_CASE("a launch with norms is told of each rank's") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  std::vector<Task> tasks = direct_tasks(kDevices, Algorithm::two_shot);
  std::vector<RowNorm> norms(tasks.size());
  const auto place = [](size_t rank, size_t n) {
    return static_cast<std::byte*>(pointer(rank, size_t(1) << (30 + n)));
  };
  for (size_t r = 0; r < tasks.size(); ++r) {
    norms[r] = {1000, place(r, 0), place(r, 5), place(r, 10), 0.5f};
    tasks[r].norm = &norms[r];
  }
  ring.run(tasks);
  CHECK_EQ(runtime.launches.size(), size_t(3));
  size_t seen = 0;
  for (const Launch& launch : runtime.launches) {
    REQUIRE(launch.norm.has_value());
    const NormArgs& args = *launch.norm;
    CHECK(args.rows.row == 1000 && args.rows.count == 100'000 && args.rows.pieces == 1);
    CHECK_EQ(args.rows.rounds, div_up(100, args.rows.channels));
    CHECK(args.plan.rounds == args.rows.rounds && args.plan.channels == args.rows.channels);
    CHECK(args.plan.ranks == 6 && args.mesh.ranks == 6 && args.eps == 0.5f);
    for (size_t i = 0; i < seats(launch); ++i, ++seen) {
      const auto r = size_t(args.ranks[i].rank);
      CHECK(args.ranks[i].out == out_of(r) && args.norms[i].normalised == place(r, 10));
      CHECK(args.norms[i].residual == place(r, 0) && args.norms[i].weight == place(r, 5));
    }
  }
  CHECK_EQ(seen, kDevices.size());
  for (const RowNorm& norm : norms) CHECK(norm.done);
  // The ring has none.
  for (size_t r = 0; r < tasks.size(); ++r)
    norms[r].done = false, tasks[r].algorithm = Algorithm::ring;
  ring.run(tasks);
  for (const RowNorm& norm : norms) CHECK(!norm.done);
}

TEST_CASE("a direct launch is told of everybody") {
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
    runtime = {};
    LocalRing ring(kDevices, kTimeout);
    ring.run(direct_tasks(kDevices, algorithm));
    CHECK_EQ(runtime.launches.size(), size_t(3));
    std::map<int, RankArgs> ranks;
    for (const Launch& launch : runtime.launches) {
      CHECK(launch.direct && launch.stream == stream_of(launch.device));
      const DirectArgs& args = *launch.direct;
      CHECK(args.plan.algorithm == algorithm && args.plan.ranks == 6 && args.plan.ahead == 0);
      CHECK(args.plan.count == 100'000 && args.plan.rounds >= 1);
      CHECK(args.mesh.ranks == 6 && args.mesh.channels == ring.geometry().channels);
      CHECK(args.plan.channels <= args.mesh.channels);
      // A chunk, or a part of one, is no longer than the lines for it.
      const bool two = algorithm == Algorithm::two_shot;
      CHECK((two ? args.plan.part : args.plan.chunk) * 4 * 2 <=
            (two ? args.mesh.half_bytes() : args.mesh.slot_bytes));
      for (size_t i = 0; i < seats(launch); ++i)
        CHECK(ranks.emplace(args.ranks[i].rank, args.ranks[i]).second);
    }
    CHECK_EQ(ranks.size(), kDevices.size());
    for (const auto& [rank, args] : ranks) {
      CHECK(args.in == in_of(size_t(rank)) && args.out == out_of(size_t(rank)));
      CHECK(args.next == ranks[(rank + 1) % 6].mine && args.prev == ranks[(rank + 5) % 6].mine);
      CHECK_EQ(runtime.device_of(reinterpret_cast<const std::byte*>(args.all)),
               kDevices[size_t(rank)]);
      for (int peer = 0; peer < 6; ++peer) CHECK(args.all[peer] == ranks[peer].mine);
      // The mesh ends before the word for the rank's failure.
      const MeshGeometry mesh = MeshGeometry::make(6, ring.geometry().channels);
      CHECK(reinterpret_cast<std::byte*>(args.failed) ==
            args.mine + ring.geometry().bytes() + mesh.bytes());
    }
  }
}

TEST_CASE("over the tensors themselves, one launch has all of them and waits for no other") {
  runtime = {};
  const std::vector<int> devices(3, 1);
  LocalRing ring(devices, kTimeout);
  std::vector<Task> tasks = direct_tasks(devices, Algorithm::two_shot);
  for (Task& task : tasks) task.protocol = Protocol::simple, task.seq = 7;
  CHECK(!ring.run(tasks));
  REQUIRE(runtime.launches.size() == 1 && runtime.launches[0].in_place);
  const Launch& launch = runtime.launches[0];
  const Tensors& args = launch.in_place->tensors;
  CHECK(launch.device == 1 && launch.stream == stream_of(1));
  CHECK(args.ranks == 3 && args.bytes == 400'000 && args.aligned);
  for (size_t r = 0; r < 3; ++r) CHECK(args.in[r] == in_of(r) && args.out[r] == out_of(r));
  CHECK(int64_t(launch.blocks) * launch.threads * 16 >= args.bytes);
  tasks[2].out = static_cast<std::byte*>(tasks[2].out) + 8;
  ring.run(tasks);
  CHECK(!runtime.launches[1].in_place->tensors.aligned);
}

TEST_CASE("over the tensors themselves on several devices, each launch has all of them") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout, two_orders());
  std::vector<Task> tasks = direct_tasks(kDevices, Algorithm::two_shot);
  for (Task& task : tasks) task.protocol = Protocol::simple, task.seq = 7;
  CHECK(ring.run(tasks));
  REQUIRE(runtime.launches.size() == 3);
  std::map<int, RankArgs> ranks;
  for (const Launch& launch : runtime.launches) {
    REQUIRE(launch.across && launch.stream == stream_of(launch.device));
    const AcrossArgs& args = *launch.across;
    const Tensors& tensors = args.plan.tensors;
    CHECK(tensors.ranks == 6 && tensors.bytes == 400'000 && tensors.aligned);
    for (size_t r = 0; r < 6; ++r) CHECK(tensors.in[r] == in_of(r) && tensors.out[r] == out_of(r));
    CHECK(args.mesh.ranks == 6 && args.orders.count == 2 && args.seq == 7);
    // A pack belongs to a thread by how many there are, on all devices.
    CHECK_EQ(args.plan.channels, runtime.launches[0].across->plan.channels);
    CHECK_EQ(launch.threads, runtime.launches[0].threads);
    CHECK(args.plan.channels <= args.mesh.channels && launch.threads <= unsigned(kMaxThreads));
    for (size_t i = 0; i < launch.blocks / unsigned(args.plan.channels); ++i)
      CHECK(ranks.emplace(args.ranks[i].rank, args.ranks[i]).second);
  }
  CHECK_EQ(ranks.size(), size_t(6));
}

TEST_CASE("ranks that are apart have a launch each") {
  runtime = {};
  const std::vector<int> devices(4, 1);
  LocalRing ring(devices, kTimeout, {}, /*apart=*/true);
  std::vector<Task> tasks = direct_tasks(devices, Algorithm::two_shot);
  for (Task& task : tasks) task.protocol = Protocol::simple;
  ring.run(tasks);
  CHECK_EQ(runtime.launches.size(), size_t(4));
  for (const Launch& launch : runtime.launches) CHECK(launch.across && launch.device == 1);
  // All of them are resident at once.
  CHECK(ring.geometry().channels * 4 <= runtime.processors * runtime.blocks_each);
}

TEST_CASE("launches that wait have a domain of their own, and all their blocks come at once") {
  using Attributes = std::map<cudaLaunchAttributeID, int>;
  const std::pair remote(cudaLaunchAttributeMemSyncDomain, int(cudaLaunchMemSyncDomainRemote));
  const std::pair cooperative(cudaLaunchAttributeCooperative, 1);
  const auto check = [](const std::vector<int>& devices, const Attributes& expected) {
    LocalRing ring(devices, kTimeout);
    Timeline timeline;
    for (const bool direct : {false, true})
      for (const bool timed : {false, true}) {
        if (direct && timed) continue;
        std::vector<Task> tasks =
            direct ? direct_tasks(devices, Algorithm::one_shot) : tasks_on(devices);
        for (Task& task : tasks) task.timeline = timed ? &timeline : nullptr;
        runtime.launches.clear();
        ring.run(tasks);
        CHECK(!runtime.launches.empty());
        for (const Launch& launch : runtime.launches) {
          CHECK(launch.direct.has_value() == direct && launch.timed.has_value() == timed);
          CHECK(launch.attributes == expected);
        }
      }
  };
  const std::vector<int> together(3, 1), apart = {0, 1, 0};
  runtime = {};
  check(together, {remote, cooperative});
  check(apart, {remote});
  runtime.cooperates = false;
  check(together, {remote});
  runtime = {};
  runtime.capability = 8;
  check(together, {cooperative});
  check(apart, {});
  // These wait for no other.
  runtime = {};
  LocalRing ring(together, kTimeout), alone({1}, kTimeout);
  std::vector<Task> tasks = direct_tasks(together, Algorithm::two_shot);
  for (Task& task : tasks) task.protocol = Protocol::simple;
  ring.run(tasks);
  tasks.resize(1);
  tasks[0] = tasks_on({1})[0];
  tasks[0].reduction.scale = Reduction::Scale::multiply_input;
  alone.run(tasks);
  REQUIRE(runtime.launches.size() == 2);
  for (const Launch& launch : runtime.launches) CHECK(launch.attributes.empty());
}

TEST_CASE("a collective that has no kernel is refused") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  for (int a = 1; a < kAlgorithms; ++a)
    for (int c = 0; c < kCollectives; ++c)
      for (int p = 0; p < kProtocols; ++p) {
        std::vector<Task> tasks = direct_tasks(kDevices, Algorithm(a));
        for (Task& task : tasks) task.collective = Collective(c), task.protocol = Protocol(p);
        if (Collective(c) == Collective::all_reduce && direct_runs_over(Algorithm(a), Protocol(p)))
          continue;
        CHECK_THROWS(UsageError, "and two_shot over ll and simple", ring.run(tasks));
      }
  const Reduction wide = Reduction::of(Op::sum, DType::bf16, 6, 1.0, /*wide=*/true);
  for (int c = 0; c < kCollectives; ++c) {
    std::vector<Task> tasks = tasks_on(kDevices);
    for (Task& task : tasks) task.collective = Collective(c), task.reduction = wide;
    CHECK_THROWS(UsageError, "of bfloat16 round the ring cannot accumulate in float32",
                 ring.run(tasks));
  }
  CHECK(runtime.launches.empty());
  ring.run(direct_tasks(kDevices, Algorithm::one_shot));  // nothing has come to harm
  CHECK_EQ(runtime.launches.size(), size_t(3));
  std::vector<Task> tasks = direct_tasks(kDevices, Algorithm::two_shot);
  for (Task& task : tasks) task.reduction = wide;
  ring.run(tasks);
  REQUIRE(runtime.launches.size() == 6);
  for (size_t i = 3; i < 6; ++i) CHECK(runtime.launches[i].direct->reduction.wide);
}

TEST_CASE("ranks without access to each other's device have host memory in common") {
  const std::vector<int> devices = {0, 1, 2, 1};
  runtime = {};
  runtime.apart = {{0, 2}};  // one way is as good as both
  {
    LocalRing ring(devices, kTimeout);
    ring.run(tasks_on(devices));
    ring.run(direct_tasks(devices, Algorithm::one_shot));
    REQUIRE(runtime.launches.size() == 6);
    std::map<int, RankArgs> ranks;
    for (size_t i = 3; i < 6; ++i)
      for (int r = 0; r < (runtime.launches[i].device == 1 ? 2 : 1); ++r)
        ranks[runtime.launches[i].ranks()[r].rank] = runtime.launches[i].ranks()[r];
    const uint32_t on_host[] = {1 << 2, 0, 1 << 0, 0};
    for (int r = 0; r < 4; ++r) {
      CHECK_EQ(ranks[r].on_host, on_host[r]);
      CHECK_EQ(ranks[r].host != nullptr, r % 2 == 0);
      for (int peer = 0; peer < 4; ++peer)
        CHECK(ranks[r].all[peer] == (on_host[peer] >> r & 1 ? ranks[peer].host : ranks[peer].mine));
    }
    CHECK(!carry_lines({0, 2}) && carry_lines({0, 1}));
  }
  CHECK(runtime.memory.empty());
  std::vector<int> many(33, 0);
  many[7] = 1;
  {
    LocalRing fits(many, kTimeout);
  }
  many[5] = 2;
  CHECK_THROWS(TransportError, "host memory serves at most 32 ranks, not 33",
               LocalRing(many, kTimeout));
  memory_choice = MemoryChoice::host;
  CHECK(!reach_each_other({1, 1}) && !carry_lines({1, 1}));
  LocalRing one({1, 1}, kTimeout);
  one.run(tasks_on({1, 1}));
  memory_choice = MemoryChoice::any;
  const RankArgs& last = runtime.launches.back().ranks()[1];
  CHECK(last.on_host == 1 && last.next == runtime.launches.back().ranks()[0].host);
}

TEST_CASE("direct all-reduces take no more ranks than a warp has lanes") {
  for (const int ranks : {32, 33}) {
    runtime = {};
    std::vector<int> devices(size_t(ranks), 0);
    devices.back() = 1;
    LocalRing ring(devices, kTimeout);
    if (ranks == 32) {
      ring.run(direct_tasks(devices, Algorithm::one_shot));
      CHECK_EQ(runtime.launches.size(), size_t(2));
      continue;
    }
    ring.run(tasks_on(devices));
    CHECK_THROWS(UsageError, "takes at most 32 ranks, not 33",
                 ring.run(direct_tasks(devices, Algorithm::one_shot)));
    CHECK_EQ(runtime.launches.size(), size_t(2));
  }
}

// The word that each rank looks at, of every channel, and nothing beside it.
TEST_CASE("an abort is told to all") {
  runtime = {};
  std::byte* segments[5];
  Segments mine;
  const Geometry geometry = default_geometry();
  const MeshGeometry mesh = MeshGeometry::make(5, geometry.channels);
  const auto bytes = size_t(segment_bytes(geometry, 5));
  for (auto& segment : segments)
    mine.all.push_back(segment = static_cast<std::byte*>(test::zeroed(bytes)));
  mine.mine = segments[2], mine.next = segments[3], mine.prev = segments[1];
  {
    CudaExecutor engine(mine, geometry, 2, 5, 0, kTimeout);
    engine.abort();
  }
  for (int r = 0; r < 5; ++r) {
    for (int c = 0; c < geometry.channels; ++c) {
      auto* at = segments[r] + geometry.bytes() + c * mesh.channel_bytes();
      const auto* counters = reinterpret_cast<MeshCounters*>(at);
      CHECK_EQ(counters->poisoned.value, kPoisoned);
      CHECK_EQ(counters->count[0].value, uint64_t(0));
      CHECK(std::all_of(at + sizeof(MeshCounters), at + mesh.channel_bytes(),
                        [](std::byte b) { return b == std::byte(0); }));
      for (int p = 0; p < kProtocols; ++p) {
        const auto* link =
            reinterpret_cast<LinkCounters*>(segments[r] + geometry.counters_offset(c, Protocol(p)));
        CHECK_EQ(link->tail.value, r == 3 ? kPoisoned : 0);
        CHECK_EQ(link->head.value, r == 1 ? kPoisoned : 0);
      }
    }
    const auto* tail = reinterpret_cast<SegmentTail*>(segments[r] + tail_offset(geometry, 5));
    CHECK_EQ(tail->failed != 0, r == 2);
    std::free(segments[r]);
  }
}

// The ranks that wait for this one differ by channel.
TEST_CASE("an abort is told to the neighbours on every channel") {
  runtime = {};
  RingOrders orders = test::the_order({0, 2, 4, 1, 3});
  const int second[] = {3, 0, 1, 2, 4}, third[] = {2, 1, 0, 4, 3};
  CHECK(orders.add(second, 5) && orders.add(third, 5));
  Geometry geometry = default_geometry();
  geometry.channels = 7;
  std::byte* segments[5];
  Segments mine;
  const auto bytes = size_t(segment_bytes(geometry, 5));
  for (auto& segment : segments)
    mine.all.push_back(segment = static_cast<std::byte*>(test::zeroed(bytes)));
  mine.mine = segments[2];
  mine.orders = orders;
  {
    CudaExecutor engine(mine, geometry, 2, 5, 0, kTimeout);
    engine.abort();
  }
  const int next[] = {4, 4, 1}, prev[] = {0, 1, 3};
  for (int r = 0; r < 5; ++r) {
    for (int c = 0; c < geometry.channels; ++c)
      for (int p = 0; p < kProtocols; ++p) {
        const auto* link =
            reinterpret_cast<LinkCounters*>(segments[r] + geometry.counters_offset(c, Protocol(p)));
        CHECK_EQ(link->tail.value, r == next[c % 3] ? kPoisoned : 0);
        CHECK_EQ(link->head.value, r == prev[c % 3] ? kPoisoned : 0);
      }
    // And nothing beside, but for what is the mesh's and the rank's own.
    auto* words = reinterpret_cast<const uint64_t*>(segments[r]);
    int written = 0, expected = geometry.channels + int(r == 2);
    for (size_t i = 0; i < bytes / sizeof *words; ++i) written += words[i] != 0;
    for (int c = 0; c < geometry.channels; ++c)
      expected += kProtocols * (int(r == next[c % 3]) + int(r == prev[c % 3]));
    CHECK_EQ(written, expected);
    std::free(segments[r]);
  }
}

TEST_CASE("neighbours have access") {
  runtime = {};
  runtime.access = {{0, 1}};  // enabled before by another library
  {
    LocalRing ring({0, 1, 1, 2}, kTimeout);
  }
  CHECK(runtime.access ==
        (std::set<std::pair<int, int>>{{0, 1}, {1, 0}, {1, 2}, {2, 1}, {0, 2}, {2, 0}}));
  CHECK_EQ(int(runtime.last), int(cudaSuccess));
  CHECK(runtime.memory.empty());
}

// The offer as another process would make it.
Offer as_of_another(Offer offer) {
  const int64_t pid = 1;  // the last thing in an offer
  offer.bytes.replace(offer.bytes.size() - sizeof pid, sizeof pid,
                      reinterpret_cast<const char*>(&pid), sizeof pid);
  return offer;
}

TEST_CASE("processes have host memory in common where they cannot open device memory") {
  constexpr int64_t kBytes = 1 << 20;
  runtime = {};
  runtime.descriptors = false;
  IpcTransport mine(0, kBytes, 0, 3), peer(1, kBytes, 1, 3), third(2, kBytes, 2, 3);
  runtime.pcie = {{0, 1}};
  CHECK(mine.map(as_of_another(peer.offer()), 1) == peer.mine());
  CHECK(!mine.carries_lines());
  runtime.opens = false;
  CHECK(mine.map(as_of_another(third.offer()), 2) == nullptr);
  CHECK(peer.map(mine.offer(), 0) == nullptr);  // of its own process, as far as it can tell
  CHECK_EQ(mine.mapped().value_or(0), 1u << 1);
  const auto segments_of = [](IpcTransport& of) {
    Segments s;
    s.mine = of.mine();
    s.all.resize(3, s.mine);
    return s;
  };
  Segments one = segments_of(mine), other = segments_of(peer);
  mine.settle(0, one);  // rank 1 has not mapped rank 0's
  peer.settle(0b100, other);
  CHECK_EQ(one.on_host, 0b110u);
  CHECK_EQ(other.on_host, 0b001u);
  CHECK(one.host != nullptr && one.written_by(1) == one.host && one.written_by(0) == one.mine);
  *static_cast<int*>(one.all[1]) = 17;  // what one writes, the other reads
  CHECK_EQ(*static_cast<int*>(other.host), 17);
  CHECK_EQ(runtime.registered.size(), size_t(3 + 2));
  const std::vector<std::string> why = mine.memory().host;
  REQUIRE(why.size() == 2);
  CHECK_CONTAINS(why[0], "rank 0 and rank 1 use host memory");
  CHECK_CONTAINS(why[0], "rank 1 says so");
  CHECK_CONTAINS(why[1], "cudaIpcOpenMemHandle");
  CHECK_CONTAINS(peer.memory().host[0], "both processes are pid");
  CHECK_EQ(mine.memory().device + peer.memory().device, "");
  CHECK(mine.unmap() && peer.unmap());
  CHECK(runtime.registered.empty());
  CHECK_EQ(int(runtime.last), int(cudaSuccess));
  runtime.registers = false;
  Segments none = segments_of(third);
  third.map(as_of_another(peer.offer()), 1);
  CHECK_THROWS(TransportError, "ulimit -l", third.settle(0b001, none));
}

TEST_CASE("processes open device memory by a descriptor where its device has one") {
  constexpr int64_t kBytes = 1 << 20;
  runtime = {};
  const int files = open_files();
  {
    IpcTransport mine(0, kBytes, 0, 5), peer(1, kBytes, 1, 5);
    runtime.descriptors = false;
    IpcTransport other(2, kBytes, 2, 5);
    runtime.descriptors = true, runtime.exports = false;
    IpcTransport third(0, kBytes, 3, 5);
    memory_choice = MemoryChoice::ipc;
    runtime.exports = true;
    IpcTransport fourth(0, kBytes, 4, 5);
    memory_choice = MemoryChoice::any;
    REQUIRE(peer.offer().fds.size() == 2 && other.offer().fds.size() == 1);
    CHECK((::fcntl(peer.offer().fd(1), F_GETFD) & FD_CLOEXEC) != 0);
    auto* const seen = static_cast<int*>(mine.map(peer.offer(), 1));  // also of one process
    REQUIRE(seen != nullptr && seen != peer.mine());
    CHECK_EQ(seen[5], 0);
    static_cast<int*>(peer.mine())[5] = 17;
    CHECK_EQ(seen[5], 17);
    CHECK_EQ(mine.memory().device, "file descriptor");
    CHECK(mine.map(as_of_another(other.offer()), 2) == other.mine());
    CHECK(mine.map(as_of_another(third.offer()), 3) == third.mine());
    CHECK_EQ(mine.memory().device, "file descriptor and CUDA IPC");
    CHECK(mine.map(as_of_another(fourth.offer()), 4) == fourth.mine());
    runtime.ipc = false;
    CHECK(peer.map(as_of_another(fourth.offer()), 4) == nullptr);
    CHECK_EQ(int(runtime.last), int(cudaSuccess));
    // Host memory stands in for memory that a rank cannot open.
    runtime.apart = {{1, 0}};
    CHECK(peer.map(mine.offer(), 0) == nullptr);
    runtime.opens = false;
    CHECK(peer.map(mine.offer(), 2) == nullptr);
    Segments segments;
    segments.mine = peer.mine();
    segments.all.resize(5, segments.mine);
    peer.settle(1u << 3, segments);
    REQUIRE(peer.memory().host.size() == 3);
    CHECK_CONTAINS(peer.memory().host[0], "mapping its file descriptor");
    CHECK_CONTAINS(peer.memory().host[1], "cuMemImportFromShareableHandle");
    CHECK_CONTAINS(peer.memory().host[2], "neither by a file descriptor nor by CUDA IPC");
    // Once all have it, no forked process must keep the memory.
    const int before = open_files();
    mine.begin_probe({});
    CHECK_EQ(open_files(), before - 1);
    mine.end_probe({}, Milliseconds(100), [] {});
  }
  CHECK_EQ(open_files(), files);
  CHECK(runtime.memory.empty());
  CHECK_EQ(int(runtime.last), int(cudaSuccess));
}

TEST_CASE("memory by a descriptor is taken from the framework's cache") {
  runtime = {};
  runtime.full = 0;
  framework.empty_cache = [] { runtime.full = -1; };
  CHECK_EQ(IpcTransport(0, 1 << 20, 0, 2).offer().fds.size(), size_t(2));
  runtime.full = 0;
  framework.empty_cache = nullptr;
  CHECK_THROWS(TransportError, "use another GPU", IpcTransport(0, 1 << 20, 0, 2));
  CHECK(runtime.memory.empty());
}

TEST_CASE("of more ranks than host memory serves, neighbours open device memory") {
  runtime = {};
  IpcTransport mine(0, 1 << 20, 0, 33), peer(1, 1 << 20, 1, 33);
  CHECK(!mine.mapped());
  runtime.opens = false;
  CHECK(mine.map(as_of_another(peer.offer()), 2) == nullptr);
  for (const int rank : {1, 32})
    CHECK_THROWS(TransportError, "rank " + std::to_string(rank) + " cannot be opened",
                 mine.map(as_of_another(peer.offer()), rank));
}

TEST_CASE("LL128 takes links that lines cross whole") {
  for (const bool pcie : {false, true})
    for (const int devices : {2, 1}) {  // a device that this process does not see may be anywhere
      runtime = {};
      if (pcie) runtime.pcie = {{0, 1}};
      IpcTransport mine(0, 1 << 20, 0, 2), peer(1, 1 << 20, 1, 2);
      CHECK(mine.carries_lines());
      const Offer offer = as_of_another(peer.offer());
      runtime.devices = devices;
      CHECK(mine.map(offer, 1) != nullptr);
      CHECK_EQ(mine.carries_lines(), !pcie && devices == 2);
      CHECK_EQ(int(runtime.last), int(cudaSuccess));
    }
  runtime = {};
  runtime.pcie = {{0, 2}};
  CHECK(carry_lines({0, 1, 2, 1}));  // on the ring 0 does not write to 2
  CHECK(!carry_lines({0, 2, 1}));
  CHECK(carry_lines({2, 2}));
  runtime.devices = 2;
  CHECK(!carry_lines({0, 2}));
  CHECK_EQ(int(runtime.last), int(cudaSuccess));
}

// The peer's part, its write and its answer, is done by hand.
TEST_CASE("a process probes its links") {
  runtime = {};
  IpcTransport mine(0, 1 << 20, 0, 2), peer(1, 1 << 20, 1, 2);
  const ProbeSlots slots{probe_room(default_geometry()), 2};
  const auto at = [&](IpcTransport& owner, int64_t offset) {
    return reinterpret_cast<uint64_t*>(static_cast<std::byte*>(owner.mine()) + offset);
  };
  const auto words = size_t(slots.words());
  const std::vector<uint64_t> sends(words + 1, 11);
  std::vector<uint64_t> receives(words, 0);
  ProbedLink link;
  link.peer = 1;
  link.theirs = at(peer, slots.offset(0, 1));
  link.sends = sends.data();
  link.mine = at(mine, slots.offset(1, 0));
  link.receives = receives.data();
  link.words = slots.words();
  link.spare = at(mine, slots.offset(1, 0, 1));
  link.second_spare = at(mine, slots.offset(1, 0, 2));
  for (const uint64_t answer : {33, 0}) {
    std::fill_n(link.mine, words, 22);
    link.mine[words] = answer;
    link.theirs[words] = 0;
    mine.begin_probe({&link, 1});
    CHECK_EQ(link.theirs[0], answer != 0 ? 0u : 11u);  // nothing before all have come
    mine.end_probe({&link, 1}, Milliseconds(100), [] {});
    CHECK(receives == std::vector<uint64_t>(words, 22));
    CHECK(std::equal(sends.begin(), sends.end(), link.theirs));  // the answer, too
    CHECK_EQ(link.answered, answer != 0);
  }
  link.mine[words - 1] = 0;  // of what does not come whole, what there is
  std::fill_n(link.spare, words, 0);
  mine.begin_probe({&link, 1});
  mine.end_probe({&link, 1}, Milliseconds(100), [] {});
  CHECK(receives.front() == 22 && receives.back() == 0);
  CHECK(!mine.reads_others());
  CHECK_CONTAINS(mine.place(), "cuda:0, PCI 0000:00:00.0");
  CHECK_CONTAINS(mine.remedy(), "iommu=pt");
}

TEST_CASE("a launch that fails ends the others") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  std::vector<Task> tasks = tasks_on(kDevices);
  runtime.failing = 1;
  CHECK(test::refused("cudaLaunchKernel", [&] { ring.run(tasks); }));  // no kernel waits
  for (const unsigned long long capture : {7, 0}) {
    runtime.launches.clear();
    ring.run(tasks);
    CHECK_EQ(runtime.launches.size(), size_t(3));
    runtime.launches.clear();
    runtime.capture = capture;
    runtime.refuses = 2;
    // Nor does one that is only captured.
    CHECK_EQ(test::refused("cudaLaunchKernel", [&] { ring.run(tasks); }), capture != 0);
    runtime.refuses = -1;
  }
  REQUIRE(runtime.launches.size() == 1);
  const Launch& launch = runtime.launches[0];
  for (size_t i = 0; i < seats(launch); ++i) CHECK_EQ(launch.args.ranks[i].mailbox->aborted, 1u);
  CHECK_THROWS(AbortedError, "was aborted before", ring.run(tasks_on(kDevices)));
  CHECK_EQ(runtime.launches.size(), size_t(1));
}

TEST_CASE("the first rank's failure is thrown") {
  runtime = {};
  LocalRing ring(kDevices, kTimeout);
  ring.run(tasks_on(kDevices));
  for (const Launch& launch : runtime.launches)
    for (size_t i = 0; i < seats(launch); ++i) {
      const RankArgs& args = launch.args.ranks[i];
      // The timed-out wait of rank 4, and its effect on the others.
      args.mailbox->report.verdict = args.rank == 4 ? Verdict::timed_out : Verdict::aborted;
    }
  CHECK_THROWS(TimeoutError, "rank 4 waited", ring.run(tasks_on(kDevices)));
  CHECK_EQ(runtime.launches.size(), size_t(3));  // and nothing was launched
}

TEST_CASE("a launch that does not fit is refused") {
  runtime = {};
  runtime.processors = 20;
  {  // 32 ranks on device 0 and 4 on device 1: as many channels as the first can take
    std::vector<int> devices(36, 0);
    std::fill_n(devices.begin(), 4, 1);
    LocalRing ring(devices, kTimeout);
    CHECK_EQ(ring.geometry().channels, 1);
  }
  runtime.processors = 15;
  CHECK_EQ(LocalRing({0, 0, 1}, kTimeout).geometry().channels, 15);
  const DeviceRoom room = room_of(1);
  CHECK(room.bus == "0000:01:00.0" && room.uuid.back() == 1 && room.blocks == 30);
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

TEST_CASE("a ring of one takes no memory") {
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

#else
TEST_CASE("without CUDA kernels") {
  std::puts("built without CUDA kernels: there is nothing to test");
}
#endif
