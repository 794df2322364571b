#include "cuda/shape.h"

#include <algorithm>

#include "cuda/launch.h"

namespace ringkern::cuda {
namespace {

// The bytes of a chunk that a channel should have before another channel helps, and the bytes that
// a warp moves at once. On an H100 no larger share of a channel was faster, for 2 to 8 ranks and 8
// KiB to 1 MiB.
struct Share {
  int64_t channel, warp;
};
constexpr Share share_of(Protocol p) {
  switch (p) {
    case Protocol::simple: return {2 << 10, 4 * 16 * 32};
    case Protocol::ll: return {1 << 10, 8 * 32};
    case Protocol::ll128: return {2 * 960, 960};
  }
  return {1, 1};
}

// The same for a direct all-reduce, whose chunk is small: more channels come before more rounds.
constexpr Share kDirectShare = {1 << 10, 8 * 32};

// The same for an all-reduce over the tensors themselves; a channel costs two meetings. Not
// measured.
constexpr Share kAcrossShare = {4 << 10, 2 * 16 * 32};

int to_int(int64_t v, int64_t least, int64_t most) { return int(std::clamp(v, least, most)); }

}  // namespace

Shape shape_of(const Task& task, int ranks, const Geometry& geometry) {
  const bool direct = task.algorithm != Algorithm::ring;
  const bool across = is_in_place(task.algorithm, task.protocol);
  const Share share = across ? kAcrossShare : direct ? kDirectShare : share_of(task.protocol);
  const int64_t bytes = task.count * size_of(task.reduction.dtype);
  const bool cut = (!direct || across) && task.collective == Collective::all_reduce;
  const int64_t part = cut ? div_up(bytes, ranks) : bytes;
  Shape shape;
  shape.channels = to_int(div_up(part, share.channel), 1, geometry.channels);
  int64_t chunk = div_up(part, shape.channels);
  if (direct && task.norm != nullptr) {
    const int64_t rows = task.count / task.norm->row;
    shape.channels = to_int(rows, 1, geometry.channels);
    chunk = bytes / rows;
  }
  if (!direct) {  // a plan rounds it up
    const int element = size_of(task.reduction.dtype);
    const Plan plan = Plan::make(task.collective, task.protocol, ranks, task.count, element,
                                 kPlanWorkers, geometry, shape.channels);
    chunk = plan.chunk_in_loop(0) * element;
  }
  if (across) {  // all threads move data
    shape.threads = 32 * to_int(div_up(chunk, share.warp), 2, kMostAcrossThreads / 32);
    return shape;
  }
  // Two warps and the poster's at least; see workers_of.
  shape.threads = 32 + 32 * to_int(div_up(chunk, share.warp), 2, kPlanWorkers / 32);
  return shape;
}

Tensors tensors_of(std::span<const Task> all) {
  const Task& task = all.front();
  Tensors t;
  t.bytes = task.count * size_of(task.reduction.dtype);
  t.ranks = int(all.size());
  uint64_t places = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    t.in[rank] = static_cast<const std::byte*>(all[rank].in);
    t.out[rank] = static_cast<std::byte*>(all[rank].out);
    places |= uint64_t(all[rank].in) | uint64_t(all[rank].out);
  }
  t.aligned = places % 16 == 0;
  return t;
}

// Small blocks spread a small tensor over more multiprocessors. Measured on an H100: with 8 ranks
// 8 KiB take 1.7 us in blocks of 64 and 2.7 in blocks of 512; from 16 MiB on these are the fastest.
int in_place_threads(int64_t bytes, bool tree) {
  return bytes <= 512 << 10 ? 64 : bytes < 16 << 20 || tree ? 256 : kMostInPlaceThreads;
}

}  // namespace ringkern::cuda
