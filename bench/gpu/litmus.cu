// Litmus tests of what the protocols rely on, with the very instructions of the kernels.
//
//   line    a warp stores lines of 128 bytes again and again, each time with the next number in all
//           of its 16 words. A reader that sees number n in the last word, the flag, and loads the
//           line once more must find no word older than n: that is LL128. Loads that mix two stores
//           are counted, too: LL128 bears them, because it loads again.
//   word    the same with one 16-byte line a lane: the two halves of each 8-byte word must agree
//           (LL). The words of a line may differ: LL bears that.
//   publish weak stores, a barrier of the block, a fence and a relaxed counter; an acquire, a
//           barrier and weak loads must find nothing older than the counter (Simple).
//
// Writers run freely; readers end when they have seen the last number, or after so many rounds.
// The same number of blocks copies other memory at the same time, so that the L2 is busy. A result
// means nothing unless readers saw numbers change under them: "changes".
#include <cstring>

#include "check.cuh"
#include "cuda/ptx.cuh"

using namespace ringkern::cuda;

namespace {

constexpr int kLines = 64;       // of a pair of writer and reader: 16 rows of a warp
constexpr int kWords = 16;       // of 8 bytes, in a line
constexpr int kRows = kLines / 4;
constexpr int kThreads = 32;     // of line and word
constexpr int kPublishThreads = 128;

struct Counts {
  unsigned long long loads, changes, mixed, stale;
};

struct Tally {
  unsigned long long loads = 0, changes = 0, mixed = 0, stale = 0;
  __device__ void add_to(Counts* c) const {
    atomicAdd(&c->loads, loads);
    atomicAdd(&c->changes, changes);
    atomicAdd(&c->mixed, mixed);
    atomicAdd(&c->stale, stale);
  }
};

RK_DEVICE int lane() { return thread_index() % kWarp; }
RK_DEVICE uint64_t* pair_memory(uint64_t* memory) {
  return memory + int64_t(block_index()) * kLines * kWords;
}

// ---- line: 8 lanes a line, 4 lines an instruction

__global__ void line_writer(uint64_t* memory, uint64_t last) {
  uint64_t* mine = pair_memory(memory) + 2 * lane();
  for (uint64_t n = 1; n <= last; ++n)
    for (int row = 0; row < kRows; ++row) {
      syncwarp();
      st_line16(mine + row * 2 * kWarp, {n, n});
    }
}

__global__ void line_reader(const uint64_t* memory, uint64_t last, uint64_t rounds,
                            Counts* counts) {
  const uint64_t* mine = pair_memory(const_cast<uint64_t*>(memory)) + 2 * lane();
  const int flag_lane = lane() | 7;  // the last of the 8 that hold the line
  Tally tally;
  uint64_t before = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    bool finished = true;
    for (int row = 0; row < kRows; ++row) {
      const uint64_t* p = mine + row * 2 * kWarp;
      syncwarp();
      const Words first = ld_line16(p);
      syncwarp();  // the second load is of another instruction, as in the kernel
      const Words again = ld_line16(p);
      // Numbers fit in 32 bits.
      const uint64_t flag = from_lane(uint32_t(first.hi), flag_lane);
      tally.loads += 1;
      tally.mixed += first.lo != flag || first.hi != flag;
      tally.stale += again.lo < flag || again.hi < flag;
      if (row == 0) tally.changes += flag != before, before = flag;
      finished = finished && flag == last;
    }
    if (all_lanes(finished)) break;
  }
  tally.add_to(counts);
}

// ---- word: one line of 16 bytes a lane

__global__ void word_writer(uint64_t* memory, uint64_t last) {
  uint64_t* mine = pair_memory(memory) + 2 * lane();
  for (uint64_t n = 1; n <= last; ++n)
    for (int row = 0; row < kRows; ++row)
      st_relaxed16(mine + row * 2 * kWarp, {n << 32 | n, n << 32 | n});
}

__global__ void word_reader(const uint64_t* memory, uint64_t last, uint64_t rounds,
                            Counts* counts) {
  const uint64_t* mine = pair_memory(const_cast<uint64_t*>(memory)) + 2 * lane();
  Tally tally;
  uint64_t before = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    bool finished = true;
    for (int row = 0; row < kRows; ++row) {
      const Words w = ld_relaxed16(mine + row * 2 * kWarp);
      tally.loads += 1;
      tally.mixed += w.lo != w.hi;
      tally.stale += uint32_t(w.lo) != w.lo >> 32 || uint32_t(w.hi) != w.hi >> 32;
      if (row == 0) tally.changes += w.lo != before, before = w.lo;
      finished = finished && uint32_t(w.lo) == last;
    }
    if (all_lanes(finished)) break;
  }
  tally.add_to(counts);
}

// ---- publish: the first words are data, the last of the pair's memory is the counter

__global__ void publish_writer(uint64_t* memory, uint64_t last) {
  uint64_t* data = pair_memory(memory);
  uint64_t* counter = data + kLines * kWords - 1;
  for (uint64_t n = 1; n <= last; ++n) {
    st_weak16(data + 2 * thread_index(), {n, n});
    barrier_or(0, thread_count(), false);
    if (thread_index() == 0) {
      fence_acq_rel();
      st_relaxed(counter, n);
    }
  }
}

__global__ void publish_reader(const uint64_t* memory, uint64_t last, uint64_t rounds,
                               Counts* counts) {
  const uint64_t* data = pair_memory(const_cast<uint64_t*>(memory));
  const uint64_t* counter = data + kLines * kWords - 1;
  RK_SHARED(uint64_t, shared);
  Tally tally;
  uint64_t before = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    if (thread_index() == 0) st_shared(&shared, ld_acquire(counter));
    barrier_or(0, thread_count(), false);
    const uint64_t n = ld_shared(&shared);
    const Words w = ld_weak16(data + 2 * ((thread_index() + 37) % thread_count()));
    tally.loads += 1;
    tally.mixed += w.lo != w.hi;
    tally.stale += w.lo < n || w.hi < n;
    tally.changes += n != before;
    before = n;
    // Also keeps the next round's number from being stored before all have read this one's.
    if (barrier_or(0, thread_count(), n == last)) break;
  }
  tally.add_to(counts);
}

__global__ void noise(uint4* to, const uint4* from, int64_t words, int rounds) {
  const int64_t threads = int64_t(gridDim.x) * blockDim.x;
  for (int r = 0; r < rounds; ++r)
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += threads)
      to[i] = from[i];
}

using Writer = void (*)(uint64_t*, uint64_t);
using Reader = void (*)(const uint64_t*, uint64_t, uint64_t, Counts*);

struct Stage {  // what one device needs
  int device;
  cudaStream_t stream;
  explicit Stage(int d) : device(d) {
    CHECK_CUDA(cudaSetDevice(device));
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  ~Stage() {
    (void)cudaSetDevice(device);
    (void)cudaStreamDestroy(stream);
  }
};

// The writer on one device, the memory and its reader on another or the same: as neighbours.
void run_test(const char* name, Writer write, Reader read, int threads, int from, int to,
              uint64_t last) {
  const Stage writer(from), reader(to), other(to);
  const int pairs = std::max(1, bench::attribute(cudaDevAttrMultiProcessorCount) / 4);
  const int64_t bytes = int64_t(pairs) * kLines * kWords * 8;
  uint64_t* memory = nullptr;
  Counts* counts = nullptr;
  CHECK_CUDA(cudaMalloc(&memory, size_t(bytes)));
  CHECK_CUDA(cudaMalloc(&counts, sizeof *counts));
  CHECK_CUDA(cudaMemset(memory, 0, size_t(bytes)));
  CHECK_CUDA(cudaMemset(counts, 0, sizeof *counts));
  const bench::Memory source(64 << 20, 3), target(64 << 20, 5);
  // Loads every kernel before one of them waits for another.
  CHECK_CUDA(cudaDeviceSynchronize());
  cudaFuncAttributes loaded;
  CHECK_CUDA(cudaFuncGetAttributes(&loaded, reinterpret_cast<const void*>(read)));
  CHECK_CUDA(cudaFuncGetAttributes(&loaded, reinterpret_cast<const void*>(&noise)));
  CHECK_CUDA(cudaSetDevice(from));
  CHECK_CUDA(cudaFuncGetAttributes(&loaded, reinterpret_cast<const void*>(write)));

  CHECK_CUDA(cudaSetDevice(to));
  const uint64_t rounds = std::max<uint64_t>(last, 1000);  // a writer's takes less than a reader's
  read<<<pairs, threads, 0, reader.stream>>>(memory, last, rounds, counts);
  CHECK_LAUNCH();
  noise<<<pairs, 256, 0, other.stream>>>(target.get<uint4>(), source.get<uint4>(), (64 << 20) / 16,
                                         1 + int(last / 1000));
  CHECK_LAUNCH();
  CHECK_CUDA(cudaSetDevice(from));
  write<<<pairs, threads, 0, writer.stream>>>(memory, last);
  CHECK_LAUNCH();
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaSetDevice(to));
  CHECK_CUDA(cudaDeviceSynchronize());

  Counts found{};
  CHECK_CUDA(cudaMemcpy(&found, counts, sizeof found, cudaMemcpyDeviceToHost));
  std::printf("{\"test\": \"%s\", \"from\": %d, \"to\": %d, \"pairs\": %d, "
              "\"stores_per_line\": %llu, \"loads\": %llu, \"changes\": %llu, "
              "\"mixed\": %llu, \"wrong\": %llu}\n",
              name, from, to, pairs, static_cast<unsigned long long>(last), found.loads,
              found.changes, found.mixed, found.stale);
  std::fflush(stdout);
  CHECK_CUDA(cudaFree(counts));
  CHECK_CUDA(cudaFree(memory));
}

void run_all(int from, int to, uint64_t last) {
  run_test("line", line_writer, line_reader, kThreads, from, to, last);
  run_test("word", word_writer, word_reader, kThreads, from, to, last);
  run_test("publish", publish_writer, publish_reader, kPublishThreads, from, to, last);
}

}  // namespace

// usage: litmus [stores of each line]
int main(int argc, char** argv) {
  const uint64_t last = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000000;
  if (last < 1 || last >= 1ull << 31) {
    std::fprintf(stderr, "usage: litmus [stores of each line, below 2^31]\n");
    return 2;
  }
  int devices = 0;
  CHECK_CUDA(cudaGetDeviceCount(&devices));
  run_all(0, 0, last);
  for (int d = 0; d + 1 < devices; ++d) {
    int peers = 0;
    CHECK_CUDA(cudaDeviceCanAccessPeer(&peers, d, d + 1));
    if (!peers) continue;
    CHECK_CUDA(cudaSetDevice(d));
    CHECK_CUDA(cudaDeviceEnablePeerAccess(d + 1, 0));
    run_all(d, d + 1, last);
  }
}
