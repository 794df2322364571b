// Decisions about a launch that need no GPU: kernels, shapes, sizes; and the errors of a machine
// without one.
#include "check.h"

#if RK_WITH_CUDA

#include <set>

#include "cuda/device.h"
#include "cuda/executor.h"
#include "cuda/failure.h"
#include "cuda/ipc.h"
#include "cuda/local.h"
#include "cuda/residency.h"
#include "cuda/shape.h"
#include "orders.h"

using namespace ringkern;
using namespace ringkern::cuda;

namespace {

TEST_CASE("every collective has its kernel") {
  std::set<const void*> kernels, trees;
  for (int p = 0; p < kProtocols; ++p)
    for (int d = 0; d < kDTypes; ++d) {
      for (int c = 0; c < kCombines; ++c)
        CHECK(kernel_for(Protocol(p), DType(d), Combine(c)) != nullptr);
      kernels.insert(kernel_for(Protocol(p), DType(d), Combine::sum));
      kernels.insert(kernel_for(Protocol(p), DType(d), Combine::max));
      CHECK(kernel_for(Protocol(p), DType(d), Combine::max) ==
            kernel_for(Protocol(p), DType(d), Combine::bxor));
    }
  for (int d = 0; d < kDTypes; ++d) {
    kernels.insert(direct_kernel_for(DType(d), Combine::sum));
    kernels.insert(direct_kernel_for(DType(d), Combine::max));
    CHECK(direct_kernel_for(DType(d), Combine::max) == direct_kernel_for(DType(d), Combine::bxor));
    kernels.insert(in_place_kernel(DType(d), Combine::sum));
    kernels.insert(in_place_kernel(DType(d), Combine::max));
    kernels.insert(across_kernel(DType(d), Combine::sum));
    kernels.insert(across_kernel(DType(d), Combine::max));
    for (const auto kernel : {&direct_kernel_for, &in_place_kernel, &across_kernel}) {
      const void* const tree = kernel(DType(d), Combine::sum, /*tree=*/true);
      if (kind_of(DType(d)) == Kind::floating) trees.insert(tree);
      else CHECK(tree == kernel(DType(d), Combine::sum, false));
    }
  }
  for (int p = 0; p < kProtocols; ++p) kernels.insert(timed_kernel_for(Protocol(p)));
  constexpr DType kNormed[] = {DType::f32, DType::f16, DType::bf16};
  for (const DType dtype : kNormed) kernels.insert(norm_kernel_for(dtype));
  CHECK(norm_kernel_for(DType::f64) == nullptr && norm_kernel_for(DType::i32) == nullptr);
  CHECK(!kernels.contains(nullptr));
  // Dtypes with equal storage share kernels.
  std::set<const void*> stored;
  for (int d = 0; d < kDTypes; ++d) stored.insert(alone_kernel(DType(d)));
  std::set<const void*> floats;
  for (int d = 0; d < kDTypes; ++d)
    if (kind_of(DType(d)) == Kind::floating) floats.insert(alone_kernel(DType(d)));
  CHECK_EQ(trees.size(), 3 * floats.size());
  for (const void* tree : trees) CHECK(!kernels.contains(tree) && tree != nullptr);
  CHECK_EQ(kernels.size(), 2 * (kProtocols + 3) * stored.size() + kProtocols + std::size(kNormed));
}

TEST_CASE("default geometry suits the kernels") {
  constexpr Geometry g = default_geometry();
  CHECK(g.valid());
  for (int ranks = 1; ranks <= 64; ++ranks) CHECK(segment_bytes(g, ranks) <= 16 << 20);
  for (int p = 0; p < kProtocols; ++p) CHECK_EQ(g.slot_bytes[p] % 16, int64_t(0));
  CHECK_EQ(g.slot_bytes[int(Protocol::ll128)] % (kLL128Unit * 128), int64_t(0));
  // No slot is left half empty by the rounding to grains.
  for (int p = 0; p < kProtocols; ++p)
    for (const int bytes : {1, 2, 4, 8}) {
      const Plan plan =
          Plan::make(Collective::all_reduce, Protocol(p), 4, 1 << 20, bytes, kPlanWorkers, g);
      CHECK(plan.chunk * bytes * 20 >= g.slices(Protocol(p)) * g.slot_data_bytes(Protocol(p)) * 19);
    }
}

// No two things in a mesh share a byte, and a chunk of any dtype fits in what is there for it.
TEST_CASE("a mesh has room for its chunks") {
  for (int ranks = 2; ranks <= MeshGeometry::kMostRanks; ++ranks) {
    const MeshGeometry g = MeshGeometry::make(ranks, default_geometry().channels);
    CHECK(g.possible() && g.slots == DirectPlan::slots(0) && g.slot_bytes > 0);
    CHECK(g.meetings_offset(0) <= MeshGeometry::kChannelBytes);
    CHECK(g.channel_bytes() % kCacheLine == 0);
    CHECK_EQ(g.slot_bytes % 256, int64_t(0));
    CHECK(g.meetings_offset(0) >= g.peer_slots_offset() + (ranks - 1) * g.peer_slots_bytes());
    CHECK_EQ(g.meetings_offset(ranks - 1), g.channel_bytes());
    std::set<int> indices;
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != 1) indices.insert(MeshGeometry::index(peer, 1));
    REQUIRE(int(indices.size()) == ranks - 1);
    CHECK(*indices.begin() == 0 && *indices.rbegin() == ranks - 2);
    CHECK_EQ(MeshGeometry::peer_counter_offset(ranks - 1), g.peer_slots_offset());
    CHECK(g.peer_slots_offset() + (ranks - 1) * g.peer_slots_bytes() <= g.channel_bytes());
    for (const Algorithm a : {Algorithm::one_shot, Algorithm::two_shot})
      for (const int bytes : {1, 2, 4, 8})
        for (const int64_t count : {1, 1000, 1'000'000}) {
          const DirectPlan p =
              DirectPlan::make(a, ranks, count, bytes, g.chunk_bytes(a), g.channels, 0);
          const bool two = a == Algorithm::two_shot;
          CHECK((two ? p.part : p.chunk) * bytes * 2 <= (two ? g.half_bytes() : g.slot_bytes));
          CHECK(p.part * bytes % line_data_bytes(Protocol::ll) == 0);  // a line has one owner
        }
  }
  CHECK(!MeshGeometry::make(1, 32).possible() && MeshGeometry::make(1, 32).bytes() == 0);
  CHECK(!MeshGeometry::make(33, 32).possible() && MeshGeometry::make(33, 32).bytes() == 0);
}

TEST_CASE("shapes follow the size") {
  constexpr Geometry g = default_geometry();
  for (int i = 0; i < kProtocols * kCollectives; ++i) {
    int before = 0;
    for (int64_t count = 1; count < int64_t(1) << 34; count *= 3) {
      Task task;
      task.collective = Collective(i / kProtocols);
      task.protocol = Protocol(i % kProtocols);
      task.count = count;
      const Shape shape = shape_of(task, 4, g);
      CHECK(shape.channels >= 1 && shape.channels <= g.channels);
      CHECK(shape.channels >= before);
      CHECK(shape.threads >= 96 && shape.threads <= kMaxThreads && shape.threads % 32 == 0);
      CHECK_EQ(workers_of(shape.threads) % 32, 0);
      before = shape.channels;
    }
    CHECK_EQ(before, g.channels);
  }
}

TEST_CASE("as many warps work as a chunk has units for, or all") {
  constexpr Geometry g = default_geometry();
  for (int64_t count = 1; count < 1 << 22; count = count * 5 / 4 + 1) {
    Task task;
    task.protocol = Protocol::ll128;
    task.count = count;
    const Shape shape = shape_of(task, 4, g);
    const Plan plan = Plan::make(Collective::all_reduce, Protocol::ll128, 4, count, 4, kPlanWorkers,
                                 g, shape.channels);
    const int64_t units = div_up(4 * plan.chunk_in_loop(0), kLL128Unit * 120);
    CHECK(workers_of(shape.threads) / 32 >= std::min<int64_t>(units, kPlanWorkers / 32));
  }
}

// A rank that is shown all of a tensor has as much to do as if there were no other rank.
TEST_CASE("a direct shape follows the size") {
  constexpr Geometry g = default_geometry();
  for (const Algorithm a : {Algorithm::one_shot, Algorithm::two_shot}) {
    int before = 0;
    for (int64_t count = 1; count < int64_t(1) << 34; count *= 3) {
      Task task;
      task.algorithm = a;
      task.protocol = Protocol::ll;
      task.count = count;
      const Shape shape = shape_of(task, 4, g), other = shape_of(task, 8, g);
      CHECK(shape.channels == other.channels && shape.threads == other.threads);
      CHECK(shape.channels >= before && shape.channels <= g.channels);
      CHECK(shape.threads >= 96 && shape.threads <= kMaxThreads && shape.threads % 32 == 0);
      before = shape.channels;
    }
    CHECK_EQ(before, g.channels);
  }
}

// A row is one channel's.
TEST_CASE("a shape with a norm follows the rows") {
  constexpr Geometry g = default_geometry();
  for (const int64_t rows : {1, 5, 32, 1000})
    for (const int64_t row : {1, 200, 4096}) {
      RowNorm norm;
      norm.row = row;
      Task task;
      task.algorithm = Algorithm::one_shot;
      task.protocol = Protocol::ll;
      task.count = rows * row;
      task.norm = &norm;
      const Shape shape = shape_of(task, 4, g);
      CHECK_EQ(shape.channels, std::min<int64_t>(rows, g.channels));
      CHECK_EQ(shape.threads, row == 4096 ? kMaxThreads : row == 200 ? 160 : 96);
    }
}

// Every rank moves all of what goes down a chain, and a part of what an all-reduce cuts.
TEST_CASE("a chain is as wide as what it moves") {
  for (int p = 0; p < kProtocols; ++p)
    for (const int64_t count : {int64_t(100), int64_t(10'000), int64_t(300'000)}) {
      Task task;
      task.protocol = Protocol(p);
      task.count = 4 * count;
      const Shape whole = shape_of(task, 4, default_geometry());
      task.count = count;
      for (const Collective chain :
           {Collective::broadcast, Collective::reduce, Collective::send_recv}) {
        task.collective = chain;
        const Shape shape = shape_of(task, 4, default_geometry());
        CHECK_EQ(shape.channels, whole.channels);
        CHECK_EQ(shape.threads, whole.threads);
      }
    }
}

TEST_CASE("without a GPU every call reports so") {
  CHECK(runtime_version() >= 12000);
  if (device_count() > 0) return;  // tests/cuda/local_ring_test.cpp then has one to run on
  const char* call = "cudaGetDeviceCount";
  CHECK_THROWS(TransportError, call, IpcTransport(0, 1 << 20, 0, 2));
  CHECK_THROWS(TransportError, call, LocalRing({0, 0}, Milliseconds(1000)));
  CHECK_THROWS(TransportError, "nvidia-smi",
               CudaExecutor({}, default_geometry(), 0, 1, 0, Milliseconds(1000)));
}

TEST_CASE("a bad geometry is refused") {
  Geometry g = default_geometry();
  g.slot_bytes[int(Protocol::ll128)] = 128;
  CHECK_THROWS(UsageError, "LL128 slots", CudaExecutor({}, g, 0, 2, 0, Milliseconds(1000)));
  const Milliseconds timeout(1000);
  CHECK_THROWS(UsageError, "1 to 1024 ranks, not 0", LocalRing(std::vector<int>{}, timeout));
  CHECK_THROWS(UsageError, "1 to 32 ranks on a device, not 33 as on device 3",
               LocalRing(std::vector<int>(33, 3), timeout));
}

TEST_CASE("a ring takes no more channels than its devices hold") {
  const DeviceRoom a{"0000:01:00.0", {1}, 30}, b{"0000:02:00.0", {2}, 216};
  const auto channels = [](int ranks, const DeviceRoom& room, std::vector<DeviceRoom> others = {}) {
    others.insert(others.begin(), size_t(ranks), room);
    return channels_of(others, {});
  };
  CHECK_EQ(channels(1, a), 30);  // of 15 multiprocessors
  CHECK_EQ(channels(2, a), 15);
  CHECK_EQ(channels(30, a), 1);
  CHECK_EQ(channels(1, b), 32);  // the default
  CHECK_EQ(channels(4, b), 32);
  CHECK_EQ(channels(8, b), 16);  // 27 would have room, and more FIFOs than the L2 has
  CHECK_EQ(channels(16, b), 8);
  CHECK_EQ(channels(200, b), 1);
  CHECK_EQ(channels(8, {"", {}, 100}), 12);
  CHECK_EQ(channels(1, b, {a}), 30);
  CHECK_EQ(channels(2, b, {a, a, a}), 10);
  const DeviceRoom slice{a.bus, {3}, 28};  // MIG
  CHECK_EQ(channels(1, a, {slice}), 28);
  CHECK_EQ(channels(2, slice, {a}), 14);
  CHECK_EQ(channels(1, a, {{"0000:03:00.0", a.uuid, 30}}), 30);
  CHECK_EQ(channels(2, b, {{b.bus, b.uuid, 9}}), 3);  // the ranks of a device see less of it (MPS)
  CHECK_THROWS(UsageError,
               "the device at 0000:01:00.0 holds 2 blocks at once, and 3 ranks of a ring are on "
               "it, which need one each: rank 6 7 9. Put fewer ranks on it",
               channels_of({{a.bus, {}, 2}, {a.bus, {}, 2}, b, {a.bus, {}, 2}}, {{6, 7, 8, 9}}));
}

TEST_CASE("a first call in a graph gives the remedy") {
  CHECK_THROWS(TransportError, "make one call before",
               check(cudaErrorStreamCaptureUnsupported, "cudaMalloc", "Free some memory"));
}

TEST_CASE("a failed wait names both ranks") {
  WaitReport r{Verdict::timed_out, WaitFor::data, Protocol::ll, 3, -1, 17, 16};
  r.timeout_ns = 2'500'000'000;
  CHECK_THROWS(TimeoutError,
               "an earlier collective over ll: rank 0 waited for data from rank 3 on channel 3 "
               "(wants step 17",
               throw_wait(fault_in(r, 0, 4)));
  CHECK_THROWS(TimeoutError, "nothing came for 2.5 s (timed out).", throw_wait(fault_in(r, 0, 4)));
  r.seq = 12;
  CHECK_THROWS(TimeoutError, "seq=12 a collective over ll: rank 0 waited for data from rank 3",
               throw_wait(fault_in(r, 0, 4)));
  r.verdict = Verdict::aborted;
  r.what = WaitFor::credit;
  CHECK_THROWS(AbortedError, "rank 3 waited for a free slot at rank 0",
               throw_wait(fault_in(r, 3, 4)));
  // The ring of channel 3 is that of channel 1: 0 1 3 2.
  RingOrders orders = test::the_order({0, 3, 1, 2});
  const int second[] = {0, 1, 3, 2};
  CHECK(orders.add(second, 4));
  CHECK_THROWS(AbortedError, "rank 3 waited for a free slot at rank 2 on channel 3",
               throw_wait(fault_in(r, 3, 4, orders)));
  r.what = WaitFor::data;
  CHECK_THROWS(AbortedError, "rank 3 waited for data from rank 1 on channel 3",
               throw_wait(fault_in(r, 3, 4, orders)));
  r.what = WaitFor::credit;
  r.peer = 1;  // a direct all-reduce names the peer
  CHECK_THROWS(AbortedError, "rank 3 waited for a free slot at rank 1",
               throw_wait(fault_in(r, 3, 4)));
}

}  // namespace

#else
TEST_CASE("without CUDA kernels") {
  std::puts("built without CUDA kernels: there is nothing to test");
}
#endif
