// The kernels on a GPU, several ranks on one device and on several, against a model of the ring's
// order. Skipped without a GPU.
#include "check.h"

#if RK_WITH_CUDA

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cuda/device.h"
#include "cuda/local.h"
#include "cuda/model.h"
#include "cuda/shape.h"
#include "orders.h"

using namespace ringkern;
using namespace ringkern::cuda;

namespace {

// Device memory with room for a start at any element.
class Buffer {
 public:
  Buffer(int device, int64_t bytes, int64_t offset) : bytes_(bytes), offset_(offset) {
    const OnDevice guard(device);
    check(cudaMalloc(&memory_, size_t(bytes + offset + 1)), "cudaMalloc");
  }
  ~Buffer() { (void)cudaFree(memory_); }
  Buffer(const Buffer&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(memory_) + offset_; }
  void fill(const void* from, int64_t at, int64_t bytes) {
    check(cudaMemcpy(get() + at, from, size_t(bytes), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<std::byte> contents() const {
    std::vector<std::byte> host(size_t(bytes_), std::byte{});
    check(cudaMemcpy(host.data(), get(), host.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return host;
  }

 private:
  void* memory_ = nullptr;
  const int64_t bytes_, offset_;
};

struct Call {
  Collective collective;
  Algorithm algorithm;
  Protocol protocol;
  Op op;
  int64_t count, offset;
  int root;
  bool wide = false, tree = false;
};

template <class T>
void run_call(LocalRing& ring, const std::vector<int>& devices, DType dtype, const Call& call,
              const RingOrders& orders, const std::vector<cudaStream_t>& streams,
              std::mt19937_64& random) {
  const int k = ring.ranks();
  const auto ranks = size_t(k);
  const int64_t e = sizeof(T), n = call.count;
  const int64_t in_count = call.collective == Collective::reduce_scatter ? n * k : n;
  const int64_t out_count = call.collective == Collective::all_gather ? n * k : n;
  std::vector<std::vector<T>> in(ranks), before(ranks);
  std::vector<std::unique_ptr<Buffer>> sources, targets;
  Task task;
  task.collective = call.collective;
  task.algorithm = call.algorithm;
  task.protocol = call.protocol;
  task.reduction = Reduction::of(call.op, dtype, k, 0.75, call.wide, call.tree);
  task.count = n;
  task.root = call.root;
  std::vector<Task> tasks(ranks, task);
  for (int r = 0; r < k; ++r) {
    in[size_t(r)].resize(size_t(in_count));
    before[size_t(r)].resize(size_t(out_count));
    for (auto* values : {&in[size_t(r)], &before[size_t(r)]})
      for (T& x : *values) x = test::sample<T>(random);
    const int device = devices[size_t(r)];
    sources.push_back(std::make_unique<Buffer>(device, in_count * e, call.offset * e));
    targets.push_back(
        std::make_unique<Buffer>(device, out_count * e, (call.offset * 3 + r) % 7 * e));
    sources.back()->fill(in[size_t(r)].data(), 0, in_count * e);
    targets.back()->fill(before[size_t(r)].data(), 0, out_count * e);
    tasks[size_t(r)].in = sources.back()->get();
    tasks[size_t(r)].out = targets.back()->get();
    tasks[size_t(r)].stream = streams[size_t(r)];
    const OnDevice guard(device);  // such a stream does not wait for the copies
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  ring.run(tasks);
  REQUIRE(ring.drain(Milliseconds(60000)));
  const Shape shape = shape_of(task, k, ring.geometry());
  Plan plan = Plan::make(call.collective, call.protocol, k, n, int(e), kPlanWorkers,
                         ring.geometry(), shape.channels, call.root);
  plan.orders = orders;
  const bool direct = call.algorithm != Algorithm::ring;
  const auto expected = direct ? test::direct_model(task.reduction, in)
                               : test::model(plan, task.reduction, in, before);
  for (int r = 0; r < k; ++r) {
    const auto found = targets[size_t(r)]->contents();
    if (std::memcmp(found.data(), expected[size_t(r)].data(), found.size()) != 0)
      FAIL_CHECK(std::string(name_of(call.collective)) + " " + name_of(call.algorithm) + " " +
                 name_of(call.protocol) + " " + name_of(dtype) + "[" + std::to_string(n) + "] " +
                 name_of(call.op) + (task.reduction.wide ? " in floats" : "") +
                 (task.reduction.tree ? " by a tree" : "") + ": rank " + std::to_string(r) +
                 " of " + std::to_string(k) + " is wrong");
  }
}

// The ranks in their numbering, or in this many orders; with a launch for each device or each rank.
void run_ring(const std::vector<int>& devices, int count_of_orders, bool apart = false) {
  std::mt19937_64 random(devices.size() * 97);
  std::mt19937_64 drawn(uint64_t(count_of_orders) + 1);
  const RingOrders orders = test::drawn_orders(count_of_orders, int(devices.size()), drawn);
  std::printf("%zu ranks, %d orders%s\n", devices.size(), count_of_orders,
              apart ? ", a launch each" : "");
  std::fflush(stdout);
  LocalRing ring(devices, Milliseconds(20000), orders, apart);
  std::vector<cudaStream_t> streams(devices.size(), nullptr);
  for (size_t r = 0; apart && r < devices.size(); ++r) streams[r] = take_stream(devices[r]);
  const int rounds = devices.size() < 8 ? 3 : 1;
  for (int round = 0; round < rounds; ++round)
    for (int p = 0; p < kProtocols; ++p)
      for (int d = 0; d < kDTypes; ++d)
        for (const int64_t count : {int64_t(1), int64_t(17), int64_t(1000 + round),
                                    int64_t(DType(d) == DType::f32 ? 1500001 : 100003 + d)}) {
          Call call{Collective(random() % kCollectives),
                    Algorithm::ring,
                    Protocol(p),
                    Op::sum,
                    count,
                    int64_t(random() % 3 == 0 ? 0 : random() % 16),
                    int(random() % devices.size())};
          if (call.collective == Collective::send_recv && orders.count > 1)
            call.collective = Collective::broadcast;  // there is no one next rank
          do call.op = Op(random() % kOps);
          while (!accepts(call.op, kind_of(DType(d))));
          with_dtype(DType(d), [&](auto tag) {
            run_call<typename decltype(tag)::type>(ring, devices, DType(d), call, orders, streams,
                                                   random);
            call.collective = Collective::all_reduce;
            for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot})
              for (const int mode : {0, 1, 2}) {
                if (!direct_runs_over(algorithm, Protocol(p))) continue;
                call.algorithm = algorithm;
                call.wide = mode == 1, call.tree = mode == 2;
                run_call<typename decltype(tag)::type>(ring, devices, DType(d), call, orders,
                                                       streams, random);
              }
          });
        }
}

TEST_CASE("calls of every kind give the bits of the model") {
  const int devices = device_count();
  if (devices == 0) {
    std::puts("no GPU: there is nothing to run the kernels on");
    return;
  }
  for (const int ranks : {1, 2, 3, 4, 8}) {
    std::vector<int> one(size_t(ranks), 0), in_turn, in_a_row;
    run_ring(one, 0);
    if (ranks == 3 || ranks == 8) run_ring(one, 3);
    if (ranks == 2 || ranks == 8) run_ring(one, 0, /*apart=*/true);
    if (devices == 1 || ranks == 1) continue;
    for (int r = 0; r < ranks; ++r) {
      in_turn.push_back(r % devices);
      in_a_row.push_back(r * std::min(devices, ranks) / ranks);
    }
    run_ring(in_turn, 0);
    run_ring(in_a_row, ranks == 4 ? 2 : 0);
  }
  memory_choice = MemoryChoice::host;
  run_ring({0, 0, 0}, 0);
  memory_choice = MemoryChoice::any;
}

}  // namespace

#else
TEST_CASE("without CUDA kernels") {
  std::puts("built without CUDA kernels: there is nothing to test");
}
#endif
