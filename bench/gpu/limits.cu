// The limits of this GPU, as a measure for what the ring does: copies through device memory and
// within the L2, launches of kernels that do nothing, and the time of a hop between two blocks; the
// same of host memory that GPU and processes share.
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "check.cuh"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"

using namespace ringkern::cuda;
using bench::Memory;

namespace {

// ---- Copies. 1 GB/s is 1e9 bytes read or written a second.

constexpr int kCopyThreads = 512;
constexpr int kUnroll = 4;

// Around the L1, which belongs to one multiprocessor: what is read was written by another one.
__device__ __forceinline__ uint4 load_from_l2(const uint4* p) { return __ldcg(p); }

// Passes over the buffer run into each other, so that all blocks are busy however small it is.
__global__ void __launch_bounds__(kCopyThreads)
    copy(uint4* to, const uint4* from, uint32_t tiles, uint32_t passes) {
  for (uint32_t t = blockIdx.x; t < tiles * passes; t += gridDim.x) {
    const int64_t at = int64_t(t % tiles) * kCopyThreads * kUnroll + threadIdx.x;
    uint4 v[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) v[i] = load_from_l2(from + at + i * kCopyThreads);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) to[at + i * kCopyThreads] = v[i];
  }
}
constexpr int64_t kTileBytes = int64_t(kCopyThreads) * kUnroll * 16;

void report_copy(const char* name, int64_t footprint, double bytes, const bench::Times& t) {
  std::printf(
      "{\"limit\": \"%s\", \"footprint_bytes\": %lld, \"us\": %.3f, \"us_least\": %.3f, "
      "\"us_most\": %.3f, \"gb_s\": %.1f}\n",
      name, static_cast<long long>(footprint), t.median_us, t.least_us, t.most_us,
      bytes / t.median_us / 1e3);
  std::fflush(stdout);
}

void measure_copies() {
  const int processors = bench::attribute(cudaDevAttrMultiProcessorCount);
  const int64_t l2 = bench::attribute(cudaDevAttrL2CacheSize);
  const int blocks = 4 * processors;
  const int64_t large = int64_t(1) << 30;
  const Memory from(large, 11), to(large, 13);
  const auto run = [&](int64_t bytes, uint32_t passes) {
    const auto tiles = uint32_t(bytes / kTileBytes);
    return bench::time_replays(1, [&](cudaStream_t s) {
      copy<<<blocks, kCopyThreads, 0, s>>>(to.get<uint4>(), from.get<uint4>(), tiles, passes);
      CHECK_LAUNCH();
    });
  };
  report_copy("hbm_copy", 2 * large, 2.0 * large, run(large, 1));
  const auto engine = bench::time_replays(1, [&](cudaStream_t s) {
    CHECK_CUDA(cudaMemcpyAsync(to.get<void>(), from.get<void>(), size_t(large),
                               cudaMemcpyDeviceToDevice, s));
  });
  report_copy("memcpy_async", 2 * large, 2.0 * large, engine);
  // So many passes that a launch and the first one, out of device memory, do not count.
  for (int64_t footprint = 4 << 20; footprint <= 2 * l2; footprint *= 2) {
    const int64_t bytes = footprint / 2 / kTileBytes * kTileBytes;
    const auto passes = uint32_t((int64_t(8) << 30) / footprint);
    report_copy("l2_copy", 2 * bytes, 2.0 * bytes * passes, run(bytes, passes));
  }
}

// ---- Launches

__global__ void nothing() {}
__global__ void __launch_bounds__(kMaxThreads)
    nothing_with_arguments(const __grid_constant__ LaunchArgs args) {
  // So that the parameters are not optimised away: never true.
  if (args.timeout_ns == ~uint64_t(0)) __trap();
}

void report_launch(const char* how, int blocks, int threads, const bench::Times& t) {
  std::printf(
      "{\"limit\": \"empty_launch\", \"how\": \"%s\", \"blocks\": %d, \"threads\": %d, "
      "\"us\": %.3f, \"us_least\": %.3f, \"us_most\": %.3f}\n",
      how, blocks, threads, t.median_us, t.least_us, t.most_us);
  std::fflush(stdout);
}

template <class F>
bench::Times time_stream(int calls, F launch) {
  cudaStream_t stream;
  cudaEvent_t start, stop;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  std::vector<float> ms;
  for (int repeat = -1; repeat < bench::kRepeats; ++repeat) {
    float elapsed = 0;
    CHECK_CUDA(cudaEventRecord(start, stream));
    for (int i = 0; i < calls; ++i) launch(stream);
    CHECK_CUDA(cudaEventRecord(stop, stream));
    CHECK_CUDA(cudaEventSynchronize(stop));
    CHECK_CUDA(cudaEventElapsedTime(&elapsed, start, stop));
    if (repeat >= 0) ms.push_back(elapsed);  // the first one warms up
  }
  CHECK_CUDA(cudaEventDestroy(start));
  CHECK_CUDA(cudaEventDestroy(stop));
  CHECK_CUDA(cudaStreamDestroy(stream));
  return bench::times_of(std::move(ms), calls);
}

void measure_launches() {
  const int processors = bench::attribute(cudaDevAttrMultiProcessorCount);
  const auto tiny = [](cudaStream_t s) {
    nothing<<<1, 32, 0, s>>>();
    CHECK_LAUNCH();
  };
  report_launch("stream", 1, 32, time_stream(500, tiny));
  report_launch("graph", 1, 32, bench::time_replays(200, tiny));
  for (const int blocks : {2, 64, std::min(256, processors * kBlocksPerSM)}) {
    const auto full = [blocks](cudaStream_t s) {
      nothing_with_arguments<<<blocks, kMaxThreads, 0, s>>>(LaunchArgs{});
      CHECK_LAUNCH();
    };
    report_launch("stream, as the ring's", blocks, kMaxThreads, time_stream(500, full));
    report_launch("graph, as the ring's", blocks, kMaxThreads, bench::time_replays(200, full));
  }
}

// ---- Hops: two blocks answer each other, each polling memory of its own, as neighbours do

enum class Hop { release, relaxed, acquired, fenced, ll, ll128 };
constexpr int kHops = 6;
constexpr const char* kHopNames[kHops] = {
    "st.release / ld.acquire", "relaxed",
    "relaxed / ld.acquire",    "fence + relaxed / ld.acquire (Simple)",
    "16-byte line (LL)",       "128-byte line (LL128)"};
constexpr uint64_t kMostPolls = 1 << 20;  // about a second: then the partner is not there
constexpr int kHopWords = 64;             // of a block: 4 lines of 128 bytes

__device__ __forceinline__ void store_release(uint64_t* p, uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(global_address(p)), "l"(v) : "memory");
}

template <Hop hop>
__device__ void post(uint64_t* to, uint64_t n) {
  const int lane = int(threadIdx.x);
  if constexpr (hop == Hop::release) {
    if (lane == 0) store_release(to, n);
  } else if constexpr (hop == Hop::relaxed || hop == Hop::acquired) {
    if (lane == 0) st_relaxed(to, n);
  } else if constexpr (hop == Hop::fenced) {
    if (lane == 0) fence_acq_rel(), st_relaxed(to, n);
  } else if constexpr (hop == Hop::ll) {
    st_relaxed16(to + 2 * lane, {n << 32 | n, n << 32 | n});
  } else {
    st_line16(to + 2 * lane, {n, n});
  }
}

template <Hop hop>
__device__ bool arrived(const uint64_t* mine, uint64_t n) {
  const int lane = int(threadIdx.x);
  bool ready = true;
  if constexpr (hop == Hop::release || hop == Hop::acquired || hop == Hop::fenced) {
    if (lane == 0) ready = ld_acquire(mine) >= n;
  } else if constexpr (hop == Hop::relaxed) {
    if (lane == 0) ready = ld_relaxed(mine) >= n;
  } else if constexpr (hop == Hop::ll) {
    const Words w = ld_relaxed16(mine + 2 * lane);
    ready = w.lo >> 32 == n && w.hi >> 32 == n;
  } else {
    ready = ld_line16(mine + 2 * lane).hi == n;
  }
  return all_lanes(ready);
}

// Run by blocks 0 and `partner` of the grid; the others leave. `memory` has room for both, cleared.
template <Hop hop>
__global__ void ping_pong(uint64_t* memory, int partner, uint64_t rounds, uint32_t* missing) {
  const bool first = blockIdx.x == 0;
  if (!first && int(blockIdx.x) != partner) return;
  uint64_t* mine = memory + (first ? 0 : kHopWords);
  uint64_t* other = memory + (first ? kHopWords : 0);
  for (uint64_t n = 1; n <= rounds; ++n) {
    if (first) post<hop>(other, n);
    for (uint64_t polls = 0; !arrived<hop>(mine, n); ++polls)
      if (polls == kMostPolls) {
        *missing = 1;
        return;
      }
    if (!first) post<hop>(other, n);
  }
}

// `limit`: the name of the figure. `memory` is the GPU's or the host's.
template <Hop hop>
void measure_hop(const char* limit, uint64_t* memory) {
  constexpr uint64_t rounds = 2000;
  const int processors = bench::attribute(cudaDevAttrMultiProcessorCount);
  uint32_t* missing = nullptr;
  CHECK_CUDA(cudaMalloc(&missing, sizeof *missing));
  CHECK_CUDA(cudaMemset(missing, 0, sizeof *missing));
  uint32_t lost = 0;
  std::vector<float> ms;  // of each partner, which is on another multiprocessor
  // Where one is lost, no other is waited for in vain.
  for (int partner = 1; partner < processors && !lost; partner += std::max(1, processors / 16)) {
    const auto once = [&](cudaStream_t s) {
      CHECK_CUDA(cudaMemsetAsync(memory, 0, 2 * kHopWords * sizeof *memory, s));
      ping_pong<hop><<<partner + 1, 32, 0, s>>>(memory, partner, rounds, missing);
      CHECK_LAUNCH();
    };
    ms.push_back(float(bench::time_replays(1, once).median_us / 1e3));
    CHECK_CUDA(cudaMemcpy(&lost, missing, sizeof lost, cudaMemcpyDeviceToHost));
  }
  const size_t partners = ms.size();
  const bench::Times t = bench::times_of(std::move(ms), 2.0 * rounds);
  std::printf(
      "{\"limit\": \"%s\", \"how\": \"%s\", \"partners\": %zu, \"lost\": %u, "
      "\"ns_per_hop\": %.1f, \"ns_least\": %.1f, \"ns_most\": %.1f}\n",
      limit, kHopNames[int(hop)], partners, lost, t.median_us * 1e3, t.least_us * 1e3,
      t.most_us * 1e3);
  std::fflush(stdout);
  CHECK_CUDA(cudaFree(missing));
}

void measure_hops(const char* limit, uint64_t* memory) {
  measure_hop<Hop::release>(limit, memory);
  measure_hop<Hop::relaxed>(limit, memory);
  measure_hop<Hop::acquired>(limit, memory);
  measure_hop<Hop::fenced>(limit, memory);
  measure_hop<Hop::ll>(limit, memory);
  measure_hop<Hop::ll128>(limit, memory);
}

// ---- Host memory, as GPUs without access to each other share it

// Memory of a file without a name, registered.
class HostMemory {
 public:
  explicit HostMemory(int64_t bytes) : bytes_(size_t(bytes)) {
    const int fd = ::memfd_create("limits", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, off_t(bytes)) != 0) std::perror("memfd_create"), std::exit(1);
    at_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (at_ == MAP_FAILED) std::perror("mmap"), std::exit(1);
    std::memset(at_, 1, bytes_);
    CHECK_CUDA(cudaHostRegister(at_, bytes_, cudaHostRegisterPortable | cudaHostRegisterMapped));
    CHECK_CUDA(cudaHostGetDevicePointer(&seen_, at_, 0));
  }
  ~HostMemory() {
    (void)cudaHostUnregister(at_);
    (void)::munmap(at_, bytes_);
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  bool same_address() const { return at_ == seen_; }
  template <class T>
  T* get() const {
    return static_cast<T*>(seen_);
  }

 private:
  const size_t bytes_;
  void *at_ = nullptr, *seen_ = nullptr;
};

template <class F>
F driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CHECK_CUDA(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
  return reinterpret_cast<F>(found);
}

// Two streams answer each other by memory operations, which take no multiprocessor.
void measure_stream_operations(uint64_t* words) {
  constexpr int kRounds = 200;
  using Operation = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
  const auto write = driver_function<Operation>("cuStreamWriteValue64");
  const auto wait = driver_function<Operation>("cuStreamWaitValue64");
  cudaStream_t streams[2];
  for (auto& stream : streams)
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t start, stop;
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  std::vector<float> ms;
  uint64_t round = 0;
  CHECK_CUDA(cudaMemset(words, 0, 128));
  int refused = 0;
  for (int repeat = 0; repeat < bench::kRepeats; ++repeat) {
    CHECK_CUDA(cudaEventRecord(start, streams[0]));
    for (int i = 0; i < kRounds; ++i) {
      ++round;
      refused += write(streams[0], CUdeviceptr(words), round, 0) != CUDA_SUCCESS;
      refused += wait(streams[1], CUdeviceptr(words), round, CU_STREAM_WAIT_VALUE_GEQ) != 0;
      refused += write(streams[1], CUdeviceptr(words + 8), round, 0) != CUDA_SUCCESS;
      refused += wait(streams[0], CUdeviceptr(words + 8), round, CU_STREAM_WAIT_VALUE_GEQ) != 0;
    }
    CHECK_CUDA(cudaEventRecord(stop, streams[0]));
    CHECK_CUDA(cudaEventSynchronize(stop));
    float elapsed = 0;
    CHECK_CUDA(cudaEventElapsedTime(&elapsed, start, stop));
    ms.push_back(elapsed);
  }
  const bench::Times t = bench::times_of(std::move(ms), 2.0 * kRounds);
  std::printf(
      "{\"limit\": \"host_stream_operation\", \"us_per_hop\": %.2f, \"us_least\": %.2f, "
      "\"us_most\": %.2f, \"refused\": %d}\n",
      t.median_us, t.least_us, t.most_us, refused);
  std::fflush(stdout);
  for (auto stream : streams) CHECK_CUDA(cudaStreamDestroy(stream));
  CHECK_CUDA(cudaEventDestroy(start));
  CHECK_CUDA(cudaEventDestroy(stop));
}

// 64 MiB each way by kernels of few and many blocks and by copy engines; out, in, and both at once.
void measure_host_copies() {
  constexpr int64_t kBytes = 64 << 20;
  const HostMemory out(kBytes), in(kBytes);
  const Memory from(kBytes, 17), to(kBytes, 19);
  cudaStream_t second;
  cudaEvent_t forked, joined;
  CHECK_CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CHECK_CUDA(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
  CHECK_CUDA(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
  const auto report = [&](const char* how, int blocks, bool outward, bool inward) {
    const auto move = [&](void* dst, void* src, cudaStream_t s) {
      if (blocks == 0) {
        CHECK_CUDA(cudaMemcpyAsync(dst, src, size_t(kBytes), cudaMemcpyDefault, s));
        return;
      }
      copy<<<blocks, kCopyThreads, 0, s>>>(static_cast<uint4*>(dst), static_cast<uint4*>(src),
                                           uint32_t(kBytes / kTileBytes), 1);
      CHECK_LAUNCH();
    };
    const bench::Times t = bench::time_replays(1, [&](cudaStream_t s) {
      CHECK_CUDA(cudaEventRecord(forked, s));
      CHECK_CUDA(cudaStreamWaitEvent(second, forked, 0));
      if (outward) move(out.get<void>(), from.get<void>(), s);
      if (inward) move(to.get<void>(), in.get<void>(), second);
      CHECK_CUDA(cudaEventRecord(joined, second));
      CHECK_CUDA(cudaStreamWaitEvent(s, joined, 0));
    });
    std::printf(
        "{\"limit\": \"host_copy\", \"how\": \"%s\", \"blocks\": %d, \"out\": %d, \"in\": %d, "
        "\"us\": %.1f, \"gb_s_each_way\": %.2f}\n",
        how, blocks, outward, inward, t.median_us, kBytes / t.median_us / 1e3);
    std::fflush(stdout);
  };
  for (const int blocks : {0, 8, 32, 128})
    for (const auto& [outward, inward] : {std::pair(true, false), {false, true}, {true, true}})
      report(blocks == 0 ? "copy engine" : "kernel", blocks, outward, inward);
  CHECK_CUDA(cudaEventDestroy(forked));
  CHECK_CUDA(cudaEventDestroy(joined));
  CHECK_CUDA(cudaStreamDestroy(second));
}

// Tells if this process may export device memory by a file descriptor, and map it again by that.
bool maps_descriptors() {
  CUmemAllocationProp asked{};
  asked.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  asked.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  asked.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemAccessDesc access{};
  access.location = asked.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  constexpr size_t kBytes = 2 << 20;
  CUmemGenericAllocationHandle made{}, imported{};
  CUdeviceptr at = 0;
  int fd = -1;
#define DRIVER(name) driver_function<decltype(&name)>(#name)
  if (DRIVER(cuMemCreate)(&made, kBytes, &asked, 0) != CUDA_SUCCESS) return false;
  const auto kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (DRIVER(cuMemExportToShareableHandle)(&fd, made, kind, 0) != CUDA_SUCCESS) return false;
  auto* const shown = reinterpret_cast<void*>(uintptr_t(fd));
  const bool mapped =
      DRIVER(cuMemImportFromShareableHandle)(&imported, shown, kind) == CUDA_SUCCESS &&
      DRIVER(cuMemAddressReserve)(&at, kBytes, 0, 0, 0) == CUDA_SUCCESS &&
      DRIVER(cuMemMap)(at, kBytes, 0, imported, 0) == CUDA_SUCCESS &&
      DRIVER(cuMemSetAccess)(at, kBytes, &access, 1) == CUDA_SUCCESS;
#undef DRIVER
  if (mapped) {
    bench::fill_kernel<<<1, 32>>>(reinterpret_cast<uint64_t*>(at), 32, 1);
    CHECK_LAUNCH();
    CHECK_CUDA(cudaDeviceSynchronize());
  }
  ::close(fd);
  return mapped;
}

void measure_host() {
  const HostMemory words(4096);
  std::printf("{\"limit\": \"host_memory\", \"same_address\": %d, \"descriptors\": %d}\n",
              words.same_address(), maps_descriptors());
  std::fflush(stdout);
  measure_hops("host_ping_pong", words.get<uint64_t>());
  measure_stream_operations(words.get<uint64_t>());
  measure_host_copies();
}

}  // namespace

int main() {
  CHECK_CUDA(cudaSetDevice(0));
  bench::wake_up();
  measure_launches();
  const Memory words(2 * kHopWords * sizeof(uint64_t));
  measure_hops("ping_pong", words.get<uint64_t>());
  measure_copies();
  measure_host();
}
