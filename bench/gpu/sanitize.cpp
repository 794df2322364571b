// A reduced matrix of collectives for compute-sanitizer: every protocol, collective and algorithm,
// a dtype of each width, aligned and not, sizes of one element and of several loops. Results are
// checked, too: what a tool slows down by a hundred also runs in another order.
//
// usage: sanitize [most ranks [large count [channels]]]
// ctest runs it on a fake device.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/executor.h"
#include "cuda/local.h"
#include "reduce/ops.h"

using namespace ringkern;
using namespace ringkern::cuda;

namespace {

constexpr int kPoison = 0xa5;

// Device memory of exactly so many bytes, so that an access beyond them is one that a tool sees.
class Buffer {
 public:
  Buffer(int64_t bytes, int64_t offset) : bytes_(size_t(bytes)), offset_(size_t(offset)) {
    check(cudaMalloc(&memory_, bytes_ + offset_), "cudaMalloc");
    check(cudaMemset(memory_, kPoison, bytes_ + offset_), "cudaMemset");
  }
  ~Buffer() { (void)cudaFree(memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(memory_) + offset_; }
  void write(const void* from) {
    check(cudaMemcpy(get(), from, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  void read(void* to) const {
    check(cudaMemcpy(to, get(), bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }

 private:
  void* memory_ = nullptr;
  const size_t bytes_, offset_;
};

using Run = std::function<void(std::span<const Task>)>;
constexpr Milliseconds kTimeout{300000};

// Ranks of a ring as LocalRing has them, with fewer channels and so fewer blocks, for slow tools.
class SmallRing {
 public:
  SmallRing(int ranks, int channels) {
    Geometry g = default_geometry();
    g.channels = channels;
    const int64_t pitch = align_up(segment_bytes(g, ranks), 256);
    memory_ = std::make_unique<Buffer>(pitch * ranks, 0);
    check(cudaMemset(memory_->get(), 0, size_t(pitch * ranks)), "cudaMemset");
    std::vector<void*> all;
    for (int r = 0; r < ranks; ++r) all.push_back(memory_->get() + pitch * r);
    std::vector<Seat> seats;
    for (int r = 0; r < ranks; ++r) {
      void *next = all[size_t((r + 1) % ranks)], *prev = all[size_t((r + ranks - 1) % ranks)];
      seats.push_back({r, {all[size_t(r)], next, prev, all}});
    }
    launcher_ = std::make_unique<Launcher>(0, std::move(seats), ranks, g, kTimeout);
  }
  void run(std::span<const Task> tasks) { launcher_->run(tasks); }

 private:
  std::unique_ptr<Buffer> memory_;  // goes after the launcher
  std::unique_ptr<Launcher> launcher_;
};

// Small integers: their sums are exact in every dtype and every order.
int value_of(int rank, int64_t i) { return int((i * 7 + rank * 3) % 4); }

template <class T>
T as(int value) {
  if constexpr (is_small_float<T>) return from_float<T>(float(value));
  else return T(value);
}

struct Case {
  Collective collective;
  Algorithm algorithm;
  Protocol protocol;
  int64_t count, offset;
};
constexpr int kUnwritten = -1;

// The value that rank `r` of `k` must have at place `i` of its output, by a collective of root 0.
int expected_of(const Case& c, int k, int r, int64_t i) {
  const auto sum_at = [k](int64_t at) {
    int sum = 0;
    for (int q = 0; q < k; ++q) sum += value_of(q, at);
    return sum;
  };
  switch (c.collective) {
    case Collective::all_reduce: return sum_at(i);
    case Collective::reduce_scatter: return sum_at(r * c.count + i);
    case Collective::all_gather: return value_of(int(i / c.count), i % c.count);
    case Collective::broadcast: return value_of(0, i);
    case Collective::reduce: return r == 0 ? sum_at(i) : kUnwritten;
    case Collective::send_recv: return r == 1 ? value_of(0, i) : kUnwritten;
  }
  return kUnwritten;
}

template <class T>
bool run_case(const Run& ring, int k, DType dtype, const Case& c) {
  const int64_t bytes = int64_t(sizeof(T)), n = c.count;
  const int64_t in_count = c.collective == Collective::reduce_scatter ? n * k : n;
  const int64_t out_count = c.collective == Collective::all_gather ? n * k : n;
  Task task;
  task.collective = c.collective;
  task.algorithm = c.algorithm;
  task.protocol = c.protocol;
  task.reduction = Reduction::of(Op::sum, dtype, k);
  task.count = n;
  std::vector<Task> tasks(size_t(k), task);
  std::vector<std::unique_ptr<Buffer>> inputs, outputs;
  for (int r = 0; r < k; ++r) {
    std::vector<T> in(static_cast<size_t>(in_count));
    for (int64_t i = 0; i < in_count; ++i) in[size_t(i)] = as<T>(value_of(r, i));
    inputs.push_back(std::make_unique<Buffer>(in_count * bytes, c.offset * bytes));
    outputs.push_back(std::make_unique<Buffer>(out_count * bytes, c.offset * bytes));
    inputs.back()->write(in.data());
    tasks[size_t(r)].in = inputs.back()->get();
    tasks[size_t(r)].out = outputs.back()->get();
  }
  ring(tasks);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (int r = 0; r < k; ++r) {
    std::vector<T> out(static_cast<size_t>(out_count));
    outputs[size_t(r)]->read(out.data());
    for (int64_t i = 0; i < out_count; ++i) {
      const int expected = expected_of(c, k, r, i);
      T wanted = as<T>(expected);
      if (expected == kUnwritten) std::memset(&wanted, kPoison, sizeof wanted);
      if (std::memcmp(&out[size_t(i)], &wanted, sizeof wanted) == 0) continue;
      std::printf("WRONG: %s %s %s %s[%lld], start %lld: rank %d of %d, element %lld\n",
                  name_of(c.collective), name_of(c.algorithm), name_of(c.protocol), name_of(dtype),
                  static_cast<long long>(n), static_cast<long long>(c.offset), r, k,
                  static_cast<long long>(i));
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) try {
  const int most_ranks = argc > 1 ? std::atoi(argv[1]) : 3;
  const int64_t large = argc > 2 ? std::atoll(argv[2]) : 20000;
  const int channels = argc > 3 ? std::atoi(argv[3]) : 0;
  if (device_count() == 0) {
    std::puts("no GPU: there is nothing to run");
    return 2;
  }
  int cases = 0, wrong = 0;
  for (int ranks = 2; ranks <= most_ranks; ++ranks) {
    std::unique_ptr<SmallRing> small;
    std::unique_ptr<LocalRing> local;
    if (channels > 0) small = std::make_unique<SmallRing>(ranks, channels);
    else local = std::make_unique<LocalRing>(std::vector<int>(size_t(ranks), 0), kTimeout);
    const Run ring = [&](std::span<const Task> tasks) {
      if (small) small->run(tasks);
      else local->run(tasks);
    };
    for (int p = 0; p < kProtocols; ++p)
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i8})
        for (const int64_t count : {int64_t(1), int64_t(37), large}) {
          const auto run = [&](Collective c, Algorithm a) {
            const Case one{c, a, Protocol(p), count, count == 37 ? 1 : 0};
            with_dtype(dtype, [&](auto tag) {
              wrong += !run_case<typename decltype(tag)::type>(ring, ranks, dtype, one);
            });
            ++cases;
          };
          for (int c = 0; c < kCollectives; ++c) run(Collective(c), Algorithm::ring);
          for (int a = 0; a < kAlgorithms; ++a)
            if (direct_runs_over(Algorithm(a), Protocol(p)))
              run(Collective::all_reduce, Algorithm(a));
        }
  }
  std::printf("%d cases, %d wrong\n", cases, wrong);
  return wrong ? 1 : 0;
} catch (const std::exception& error) {
  std::printf("FAILED: %s\n", error.what());
  return 1;
}
