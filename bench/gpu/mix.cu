// The ring without its waits: the schedule, the plan and the FIFOs of an all-reduce whose ranks
// share this GPU, each verb reading and writing what it would, and nobody waiting for anybody. What
// this takes is what the memory takes; no ring with the same bytes can be faster.
//
//     bytes of all ranks together, for S bytes a rank:  2kS of the users' tensors, read and written
//     once each, and 2(k-1) times the wire's S for each of the two ends of the FIFOs:
//     Simple (6k-4)S    LL (10k-8)S    LL128 (2k + 64/15 (k-1))S
#include "check.cuh"
#include "core/schedule.h"
#include "cuda/engine.h"
#include "cuda/ptx.cuh"

using namespace ringkern;
using namespace ringkern::cuda;

namespace {

constexpr int kThreads = kMaxThreads;

struct Mix {
  Plan plan;
  int64_t tensor_words = 0;  // of 16 bytes, a rank; in place
  int64_t slot_words = 0;    // of 16 bytes on the wire: room for a whole chunk
  int slots = 1;             // of that size, a link
  Words* tensors = nullptr;
  Words* fifos = nullptr;
};

// Moves chunks as any link does, in 16-byte accesses. What the lines of LL and LL128 have beyond
// their data is read and written, too.
class FreeLink {
 public:
  RK_DEVICE FreeLink(const Mix& mix, int rank, int channel) : mix_(mix) {
    const int next = mix.plan.next(channel, rank);
    tensor_ = mix.tensors + rank * mix.tensor_words;
    from_ = fifo(rank, channel);
    to_ = fifo(next, channel);
  }

  RK_DEVICE Verdict perform(Verb verb, const Plan& plan, const Chunk& chunk) {
    const int64_t data = chunk.count / 4;  // of float32
    const int64_t wire = div_up(data * line_bytes(plan.protocol), line_data_bytes(plan.protocol));
    Words* user = tensor_ + chunk.in / 4;
    const Words* from = from_ + at_ * mix_.slot_words;
    Words* to = to_ + at_ * mix_.slot_words;
    const bool in = reads_input(verb), incoming = receives(verb);
    for (int64_t i = thread_index(); i < data; i += 4 * thread_count()) {
      Words a[4] = {}, b[4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (const int64_t w = i + j * thread_count(); w < data) {
          if (in) a[j] = ld_weak16(user + w);
          if (incoming) b[j] = ld_weak16(from + w);
        }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (const int64_t w = i + j * thread_count(); w < data) {
          const Words sum = {a[j].lo + b[j].lo, a[j].hi + b[j].hi};
          if (copies(verb)) st_weak16(user + w, sum);
          if (sends(verb)) st_weak16(to + w, sum);
        }
    }
    for (int64_t w = data + thread_index(); w < wire; w += thread_count()) {
      Words flags{scramble_, scramble_};
      if (incoming) flags = ld_weak16(from + w);
      if (sends(verb)) st_weak16(to + w, flags);
      scramble_ += flags.lo;
    }
    at_ = at_ + 1 == mix_.slots ? 0 : at_ + 1;
    return Verdict::ok;
  }

 private:
  RK_DEVICE Words* fifo(int rank, int channel) const {
    return mix_.fifos +
           (int64_t(rank) * mix_.plan.channels + channel) * mix_.slots * mix_.slot_words;
  }

  const Mix& mix_;
  Words *tensor_, *to_;
  const Words* from_;
  int at_ = 0;
  uint64_t scramble_ = 1;
};

__global__ void __launch_bounds__(kThreads, kBlocksPerSM)
    free_ring(const __grid_constant__ Mix mix) {
  const int channel = block_index() % mix.plan.channels, rank = block_index() / mix.plan.channels;
  FreeLink link(mix, rank, channel);
  run_schedule(mix.plan, rank, channel, link);
}

double bytes_moved(Protocol p, int ranks, int64_t size) {
  const double wire = double(size) * line_bytes(p) / line_data_bytes(p);
  return 2.0 * ranks * double(size) + 4.0 * (ranks - 1) * wire;
}

void measure(Protocol p, int ranks, int64_t size, int slots, const char* fifos) {
  Geometry g = default_geometry();
  const int processors = bench::attribute(cudaDevAttrMultiProcessorCount);
  g.channels = std::clamp(processors * kBlocksPerSM / ranks, 1, g.channels);
  g.slots = std::min(slots, g.slots);
  Mix mix;
  mix.plan = Plan::make(Collective::all_reduce, p, ranks, size / 4, 4, kPlanWorkers, g);
  const int64_t chunk_bytes = align_up(mix.plan.chunk * 4, 16);
  mix.slot_words = div_up(chunk_bytes * line_bytes(p), 16 * line_data_bytes(p));
  mix.slots = int(max64(1, g.fifo_bytes(p) / (mix.slot_words * 16)));
  mix.tensor_words = align_up(size, 256) / 16;
  const int64_t fifo_bytes = int64_t(ranks) * mix.plan.channels * mix.slots * mix.slot_words * 16;
  const bench::Memory tensors(ranks * mix.tensor_words * 16, 17), memory(fifo_bytes, 19);
  mix.tensors = tensors.get<Words>();
  mix.fifos = memory.get<Words>();
  const int calls = size < 32 << 20 ? 10 : 2;
  const bench::Times t = bench::time_replays(calls, [&](cudaStream_t s) {
    free_ring<<<ranks * mix.plan.channels, kThreads, 0, s>>>(mix);
    CHECK_LAUNCH();
  });
  const double bytes = bytes_moved(p, ranks, size);
  std::printf("{\"limit\": \"mix\", \"protocol\": \"%s\", \"ranks\": %d, \"size_bytes\": %lld, "
              "\"fifos\": \"%s\", \"fifo_bytes\": %lld, \"us\": %.3f, \"us_least\": %.3f, "
              "\"us_most\": %.3f, \"gb_s\": %.1f, \"busbw_gb_s\": %.1f}\n",
              name_of(p), ranks, static_cast<long long>(size), fifos,
              static_cast<long long>(fifo_bytes), t.median_us, t.least_us, t.most_us,
              bytes / t.median_us / 1e3,
              double(size) * 2 * (ranks - 1) / ranks / t.median_us / 1e3);
  std::fflush(stdout);
}

}  // namespace

int main() {
  CHECK_CUDA(cudaSetDevice(0));
  bench::wake_up();
  for (const int ranks : {2, 4, 8})
    for (const Protocol p : {Protocol::simple, Protocol::ll, Protocol::ll128})
      // The sizes of the part `speed` for which the ring, too, uses all of its channels.
      for (int64_t size = 2 << 20; size <= 1 << 30; size *= 8) {
        size_t room = 0, total = 0;
        CHECK_CUDA(cudaMemGetInfo(&room, &total));
        if (size_t(ranks * size) > room / 10 * 9) continue;
        measure(p, ranks, size, kDefaultSlots, "as ringkern's");
        measure(p, ranks, size, 2, "two slots");
      }
}
