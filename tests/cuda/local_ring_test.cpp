// The kernels on a GPU, several ranks on one device, against a model of the ring's order. Without a
// GPU there is nothing to run them on.
#include "check.h"

#if RK_WITH_CUDA

#include <cstring>
#include <random>
#include <vector>

#include "cuda/device.h"
#include "cuda/local.h"
#include "reduce/ops.h"

using namespace ringkern;
using namespace ringkern::cuda;

namespace {

// Device memory with room for a start at any element.
class Buffer {
 public:
  Buffer(int64_t bytes, int64_t offset) : bytes_(bytes), offset_(offset) {
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

template <class T>
T sample(std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) return T(random());
  else if constexpr (is_small_float<T>) return from_float<T>(float(int(random() % 65) - 32) / 8);
  else return T(int(random() % 2001) - 1000) / T(7);
}

template <class T>
T combined(Combine c, T x, T y) {
  switch (c) {
#define RK_CASE(e) \
  case Combine::e: if constexpr (combines<Combine::e, T>) return combine<Combine::e>(x, y); break;
    RK_COMBINES(RK_CASE)
#undef RK_CASE
  }
  return x;
}

template <class T>
T scaled(const Reduction& r, Reduction::Scale when, T x) {
  if constexpr (!std::is_integral_v<T>) {
    using enum Reduction::Scale;
    const auto factor = wide_t<T>(r.factor);
    if (r.scale == when && when == multiply_input) return scale<multiply_input>(x, factor);
    if (r.scale == when && when == divide_result) return scale<divide_result>(x, factor);
  }
  return x;
}

struct Call {
  Collective collective;
  Protocol protocol;
  Op op;
  int64_t count, offset;
};

// What each rank should hold, in the order in which the plan's chunks travel.
template <class T>
std::vector<std::vector<T>> model(const Call& call, const Plan& plan, const Reduction& reduction,
                                  const std::vector<std::vector<T>>& in) {
  using enum Reduction::Scale;
  const int k = plan.ranks;
  const int64_t n = call.count;
  std::vector<std::vector<T>> out(
      size_t(k), std::vector<T>(size_t(call.collective == Collective::all_gather ? n * k : n)));
  for (int channel = 0; channel < plan.channels; ++channel)
    for (int64_t loop = 0; loop < plan.loops; ++loop)
      for (int owner = 0; owner < k; ++owner) {
        const Chunk c = plan.chunk_of(channel, loop, owner);
        for (int64_t i = 0; i < c.count; ++i) {
          const auto part = [&](int rank) {
            return scaled(reduction, multiply_input, in[size_t(rank)][size_t(c.in + i)]);
          };
          T x = part(call.collective == Collective::all_gather ? owner : (owner + 1) % k);
          if (call.collective != Collective::all_gather) {
            for (int hop = 2; hop <= k; ++hop)
              x = combined(reduction.combine, x, part((owner + hop) % k));
            x = scaled(reduction, divide_result, x);
          }
          for (int rank = 0; rank < k; ++rank)
            if (call.collective != Collective::reduce_scatter || rank == owner)
              out[size_t(rank)][size_t(c.out + i)] = x;
        }
      }
  return out;
}

template <class T>
void run_call(LocalRing& ring, DType dtype, const Call& call, std::mt19937_64& random) {
  const int k = ring.ranks();
  const auto ranks = size_t(k);
  const int64_t e = sizeof(T), n = call.count;
  const int64_t in_count = call.collective == Collective::reduce_scatter ? n * k : n;
  const int64_t out_count = call.collective == Collective::all_gather ? n * k : n;
  std::vector<std::vector<T>> in(ranks);
  for (auto& x : in) x.resize(size_t(in_count));
  std::vector<std::unique_ptr<Buffer>> sources, targets;
  Task task;
  task.collective = call.collective;
  task.protocol = call.protocol;
  task.reduction = Reduction::of(call.op, dtype, k, 0.75);
  task.count = n;
  std::vector<Task> tasks(ranks, task);
  for (int r = 0; r < k; ++r) {
    for (T& x : in[size_t(r)]) x = sample<T>(random);
    sources.push_back(std::make_unique<Buffer>(in_count * e, call.offset * e));
    targets.push_back(std::make_unique<Buffer>(out_count * e, (call.offset * 3 + r) % 7 * e));
    sources.back()->fill(in[size_t(r)].data(), 0, in_count * e);
    tasks[size_t(r)].in = sources.back()->get();
    tasks[size_t(r)].out = targets.back()->get();
  }
  ring.run(tasks);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const Shape shape = shape_of(task, k, ring.geometry());
  const Plan plan = Plan::make(call.collective, call.protocol, k, n, int(e), kPlanWorkers,
                               ring.geometry(), shape.channels);
  const auto expected = model(call, plan, task.reduction, in);
  for (int r = 0; r < k; ++r) {
    const auto found = targets[size_t(r)]->contents();
    if (std::memcmp(found.data(), expected[size_t(r)].data(), found.size()) != 0)
      test::fail(__FILE__, __LINE__,
                 std::string(name_of(call.collective)) + " " + name_of(call.protocol) + " " +
                     name_of(dtype) + "[" + std::to_string(n) + "] " + name_of(call.op) +
                     ": rank " + std::to_string(r) + " of " + std::to_string(k) + " is wrong");
  }
}

void run_ring(int ranks) {
  LocalRing ring(0, ranks, Milliseconds(20000));
  std::mt19937_64 random(uint64_t(ranks) * 97);
  for (int round = 0; round < 3; ++round)
    for (int p = 0; p < kProtocols; ++p)
      for (int d = 0; d < kDTypes; ++d)
        for (const int64_t count : {int64_t(1), int64_t(17), int64_t(1000 + round),
                                    int64_t(DType(d) == DType::f32 ? 1500001 : 100003 + d)}) {
          Call call{Collective(random() % kCollectives), Protocol(p), Op::sum, count,
                    int64_t(random() % 3 == 0 ? 0 : random() % 16)};
          do call.op = Op(random() % kOps);
          while (!accepts(call.op, kind_of(DType(d))));
          with_dtype(DType(d), [&](auto tag) {
            run_call<typename decltype(tag)::type>(ring, DType(d), call, random);
          });
        }
}

}  // namespace

int main() {
  if (device_count() == 0) {
    std::puts("no GPU: there is nothing to run the kernels on");
    return 0;
  }
  for (const int ranks : {1, 2, 3, 4, 8}) run_ring(ranks);
}

#else
int main() { std::puts("built without CUDA kernels: there is nothing to test"); }
#endif
