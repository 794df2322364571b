#include "cuda/shape.h"

#include <algorithm>

#include "cuda/launch.h"

namespace ringkern::cuda {
namespace {

// What a channel should have to do before another one helps, and what a warp moves at once; bytes
// of a chunk. A pass of the block's workers, or less where latency is the point; not measured.
struct Share {
  int64_t channel, warp;
};
constexpr Share share_of(Protocol p) {
  switch (p) {
    case Protocol::simple: return {8 << 10, 4 * 16 * 32};
    case Protocol::ll: return {2 << 10, 8 * 32};
    case Protocol::ll128: return {4 * 960, 960};
  }
  return {1, 1};
}

// The same of a direct all-reduce, whose chunk is small: more channels come before more rounds.
constexpr Share kDirectShare = {1 << 10, 8 * 32};

int to_int(int64_t v, int64_t least, int64_t most) { return int(std::clamp(v, least, most)); }

}  // namespace

Shape shape_of(const Task& task, int ranks, const Geometry& geometry) {
  const bool direct = task.algorithm != Algorithm::ring;
  const Share share = direct ? kDirectShare : share_of(task.protocol);
  const int64_t bytes = task.count * size_of(task.reduction.dtype);
  const bool cut = !direct && task.collective == Collective::all_reduce;
  const int64_t part = cut ? div_up(bytes, ranks) : bytes;
  Shape shape;
  shape.channels = to_int(div_up(part, share.channel), 1, geometry.channels);
  const int64_t chunk = div_up(part, shape.channels);
  // Two warps and the poster's at least; see workers_of.
  shape.threads = 32 + 32 * to_int(div_up(chunk, share.warp), 2, kPlanWorkers / 32);
  return shape;
}

// Small blocks spread a small tensor over more multiprocessors. Measured on an H100: with 8 ranks
// 8 KiB take 1.7 us in blocks of 64 and 2.7 in blocks of 512; from 16 MiB on these are the fastest.
int in_place_threads(int64_t bytes) {
  return bytes <= 512 << 10 ? 64 : bytes < 16 << 20 ? 256 : kMostInPlaceThreads;
}

}  // namespace ringkern::cuda
