// Memory for tensors in place: the ranks that have mapped it, and the arguments of their launches,
// over a runtime that only records them.
#include "check.h"

#if RK_WITH_CUDA

#include "cuda/executor.h"
#include "cuda/fake_runtime.h"

using namespace ringkern;
using namespace ringkern::cuda;
using test::runtime;

namespace {

constexpr int64_t kBytes = 4 << 20;

std::byte* allocate(int64_t bytes = kBytes, int device = 0) {
  return static_cast<std::byte*>(Regions::mine().allocate(device, bytes));
}

// Two ranks of one process, which is more than CUDA allows: the runtime opens what it has made.
struct Two {
  explicit Two(int device = 0) : first(device, 0, 2), second(device, 1, 2) {
    first.meet(1, second.fd(), {});
    second.meet(0, first.fd(), {});
  }
  void exchange() { first.exchange(), second.exchange(); }

  PeerRegions first, second;
};

TEST_CASE("a region is an allocation of its own, and is used again") {
  runtime = {};
  std::byte* const one = allocate();
  std::byte* const other = allocate(kBytes - 5);
  const RegionPlace place = Regions::mine().place_of(one + 100, 10);
  CHECK(place.region >= 0 && place.offset == 100);
  CHECK_EQ(Regions::mine().place_of(other, 1).region, place.region + 1);
  CHECK_EQ(Regions::mine().place_of(other + kBytes - 1, 1).region, place.region + 1);
  CHECK_EQ(Regions::mine().place_of(other + kBytes - 1, 2).region, -1);
  CHECK_EQ(Regions::mine().place_of(one - 1, 1).region, -1);
  const int count = Regions::mine().count();
  Regions::mine().free(one);
  CHECK(allocate(kBytes, 1) != one);  // on another device
  CHECK(allocate(2 * kBytes) != one);
  CHECK(allocate() == one);
  CHECK_EQ(Regions::mine().count(), count + 2);
}

TEST_CASE("without CUDA IPC memory is in no region") {
  runtime = {};
  runtime.ipc = false;
  const int count = Regions::mine().count();
  std::byte* const memory = allocate();
  CHECK(memory != nullptr && Regions::mine().count() == count);
  CHECK_EQ(int(runtime.last), int(cudaSuccess));
  Regions::mine().free(memory);
  CHECK(!runtime.memory.contains(memory));
}

TEST_CASE("a place is told once all others have mapped its region") {
  runtime = {};
  std::byte* const memory = allocate();
  Two two;
  CHECK_EQ(two.first.place_of(memory, 8), uint64_t(0));
  two.exchange();  // the second one has mapped it, and the first one has not seen the second's
  CHECK(two.first.place_of(memory, 8) != 0);
  CHECK_EQ(two.second.place_of(memory, 8), uint64_t(0));
  two.exchange();
  const RegionPlace place = RegionPlace::of(two.second.place_of(memory + 24, 8));
  CHECK(place.region == Regions::mine().place_of(memory, 1).region && place.offset == 24);
  const PeerRegion& mapped = two.second.table()[place.region];  // of rank 0
  CHECK(mapped.base == memory && mapped.bytes == kBytes);
  const PeerRegion& own = two.second.table()[RegionPlace::kMostRegions + place.region];
  CHECK(own.base == nullptr);
  CHECK_EQ(two.first.place_of(memory + kBytes - 7, 8), uint64_t(0));
  std::byte* const later = allocate();
  CHECK_EQ(two.first.place_of(later, 8), uint64_t(0));
  two.exchange();
  CHECK(two.first.place_of(later, 8) != 0);
}

TEST_CASE("memory that cannot be mapped is announced to no rank, nor is later memory") {
  runtime = {};
  Two two;
  runtime.opens = false;
  std::byte* const memory = allocate();
  two.exchange(), two.exchange();
  CHECK_EQ(two.first.place_of(memory, 8), uint64_t(0));
  runtime.opens = true;
  two.exchange(), two.exchange();
  CHECK_EQ(two.first.place_of(memory, 8), uint64_t(0));
}

TEST_CASE("memory of another device is not mapped") {
  runtime = {};
  std::byte* const memory = allocate(kBytes, 1);
  Two two(0);
  two.exchange(), two.exchange();
  const int region = Regions::mine().place_of(memory, 8).region;
  CHECK(two.second.table()[region].base == nullptr);
}

TEST_CASE("a board is a memory file of its size") {
  runtime = {};
  PeerRegions one(0, 0, 2);
  const MemoryFile small(4096);
  CHECK_THROWS(TransportError, "the memory offered by rank 1 is refused",
               one.meet(1, small.fd(), {}));
}

// A launch of rank 0, whose other rank has mapped all.
cuda::AcrossArgs launched(const Task& task, unsigned long long capture = 0) {
  runtime.launches.clear();
  Two two;
  two.exchange();
  std::vector<std::byte> memory[2];
  for (auto& segment : memory) segment.resize(size_t(segment_bytes(default_geometry(), 2)));
  Segments s;
  s.mine = memory[0].data();
  s.next = s.prev = memory[1].data();
  s.all = {memory[0].data(), memory[1].data()};
  CudaExecutor engine(s, default_geometry(), 0, 2, 0, Milliseconds(1000), &two.first);
  runtime.capture = capture;
  const auto shown = [&] { return two.second.place_of(task.out, 1) != 0; };
  two.second.exchange();
  CHECK(!shown());
  engine.run(task);
  CHECK_EQ(shown(), capture == 0);  // the launch has mapped what rank 1 has
  runtime.capture = 0;
  return *runtime.launches.at(0).across;
}

TEST_CASE("a launch tells where its tensor is, where the others can take it") {
  runtime = {};
  std::byte* const memory = allocate();
  Task task;
  task.algorithm = Algorithm::two_shot;
  task.in = task.out = memory + 64;
  task.count = 1000;
  task.stream = reinterpret_cast<void*>(16);
  const AcrossArgs args = launched(task);
  CHECK(args.plan.told && args.plan.tensors.ranks == 2 && args.plan.tensors.bytes == 4000);
  CHECK(args.ranks[0].in == memory + 64 && args.plan.regions != nullptr);
  CHECK_EQ(RegionPlace::of(args.plan.place).offset, int64_t(64));
  CHECK(launched(task, /*capture=*/7).plan.place != 0);
  Task multiplied = task;
  multiplied.reduction = Reduction::of(Op::premul_sum, DType::f32, 2, 0.5);
  CHECK_EQ(launched(multiplied).plan.place, uint64_t(0));
  Task apart = task;
  apart.in = memory + 8192;
  CHECK_EQ(launched(apart).plan.place, uint64_t(0));
  Task beyond = task;
  beyond.count = kBytes / 4;
  CHECK_EQ(launched(beyond).plan.place, uint64_t(0));
}

TEST_CASE("the number of regions is bounded") {
  runtime = {};
  std::byte* last = nullptr;
  while (Regions::mine().count() < RegionPlace::kMostRegions) last = allocate(1);
  CHECK(Regions::mine().place_of(last, 1).region >= 0);
  std::byte* const none = allocate(1);
  CHECK_EQ(Regions::mine().place_of(none, 1).region, -1);
  Regions::mine().free(none);
  CHECK(!runtime.memory.contains(none));
  Regions::mine().free(last);
  CHECK(allocate(1) == last && runtime.memory.contains(last));
}

}  // namespace

#else
TEST_CASE("without CUDA kernels") {
  std::puts("built without CUDA kernels: there is nothing to test");
}
#endif
