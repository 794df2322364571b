// Common parts of the programs of this folder: checked calls, data that is not zeros, times of
// graph replays, and results as one line of JSON each.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK_CUDA(call) bench::check((call), #call, __FILE__, __LINE__)
// After a launch: what was wrong with it. Errors in the kernel appear at the next wait.
#define CHECK_LAUNCH() CHECK_CUDA(cudaGetLastError())

namespace bench {

inline void check(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: %s: %s (%s)\n", file, line, call, cudaGetErrorString(error),
               cudaGetErrorName(error));
  std::exit(1);
}

__host__ __device__ inline uint64_t scrambled(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__global__ void fill_kernel(uint64_t* words, int64_t count, uint64_t seed) {
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads)
    words[i] = scrambled(seed + uint64_t(i));
}

// Device memory, filled with numbers that compress and repeat nowhere.
class Memory {
 public:
  explicit Memory(int64_t bytes, uint64_t seed = 1) : bytes_(bytes) {
    CHECK_CUDA(cudaMalloc(&at_, size_t(bytes)));
    fill_kernel<<<1024, 256>>>(static_cast<uint64_t*>(at_), bytes / 8, seed);
    CHECK_LAUNCH();
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  ~Memory() { (void)cudaFree(at_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  T* get() const {
    return static_cast<T*>(at_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* at_ = nullptr;
  const int64_t bytes_;
};

// Half a second of work: an idle GPU has lowered its clocks.
inline void wake_up() {
  const Memory memory(256 << 20);
  cudaEvent_t start, now;
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&now));
  CHECK_CUDA(cudaEventRecord(start));
  for (float ms = 0; ms < 500;) {
    fill_kernel<<<1024, 256>>>(memory.get<uint64_t>(), memory.bytes() / 8, 7);
    CHECK_LAUNCH();
    CHECK_CUDA(cudaEventRecord(now));
    CHECK_CUDA(cudaEventSynchronize(now));
    CHECK_CUDA(cudaEventElapsedTime(&ms, start, now));
  }
  CHECK_CUDA(cudaEventDestroy(start));
  CHECK_CUDA(cudaEventDestroy(now));
}

// Holds a stream up for some 100 us: what is timed is enqueued meanwhile, or the time of the host
// that launches it would count.
__global__ void pause_kernel() {
  for (const long long start = clock64(); clock64() - start < 200000;) {
  }
}

struct Times {
  double median_us, least_us, most_us;
};

inline Times times_of(std::vector<float> ms, double divisor) {
  std::sort(ms.begin(), ms.end());
  const double scale = 1000.0 / divisor;
  return {ms[ms.size() / 2] * scale, ms.front() * scale, ms.back() * scale};
}

inline constexpr int kRepeats = 9;  // odd: a median that was measured

// `enqueue(stream)` is captured `calls` times in one graph, whose replays are timed: of one call.
template <class F>
Times time_replays(int calls, F enqueue) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cudaEvent_t start, stop;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) enqueue(stream);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  CHECK_CUDA(cudaGraphLaunch(replay, stream));  // modules are loaded, the graph is uploaded
  CHECK_CUDA(cudaStreamSynchronize(stream));
  std::vector<float> ms;
  for (int i = 0; i < kRepeats; ++i) {
    float elapsed = 0;
    pause_kernel<<<1, 1, 0, stream>>>();
    CHECK_LAUNCH();
    CHECK_CUDA(cudaEventRecord(start, stream));
    CHECK_CUDA(cudaGraphLaunch(replay, stream));
    CHECK_CUDA(cudaEventRecord(stop, stream));
    CHECK_CUDA(cudaEventSynchronize(stop));
    CHECK_CUDA(cudaEventElapsedTime(&elapsed, start, stop));
    ms.push_back(elapsed);
  }
  CHECK_CUDA(cudaGraphExecDestroy(replay));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaEventDestroy(start));
  CHECK_CUDA(cudaEventDestroy(stop));
  CHECK_CUDA(cudaStreamDestroy(stream));
  return times_of(std::move(ms), calls);
}

inline int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

}  // namespace bench
