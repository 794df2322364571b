#include "cpu/threads.h"

#include <atomic>
#include <utility>

namespace ringkern::cpu {
namespace {

constexpr int64_t kPage = 4096;
// Threads that poll for work take some 5 us to start, as long as one thread takes for 64 KiB. From
// 256 KiB on four take half of the time of one (two ranks, Intel Xeon, 16 cores).
constexpr int64_t kLeastCall = 256 << 10, kLeastPart = 64 << 10;

// Returns the geometry of a channel. Those of Simple are alike: all channels cut by them.
Geometry geometry_of(int channel, const Geometry& first) {
  Geometry g = first;
  if (channel > 0)
    for (const Protocol p : {Protocol::ll, Protocol::ll128})
      g.slot_bytes[int(p)] = line_bytes(Protocol::ll128);  // the least that is valid
  return g;
}

int64_t offset_of(int channel, const Geometry& first) {
  if (channel == 0) return 0;
  return align_up(segment_bytes(first), kPage) +
         (channel - 1) * align_up(segment_bytes(geometry_of(channel, first)), kPage);
}

// Returns the parts of the segments that a channel uses.
Segments part_of(const Segments& whole, int64_t offset) {
  const auto at = [&](void* segment) { return static_cast<std::byte*>(segment) + offset; };
  Segments part = whole;
  part.mine = at(whole.mine);
  part.next = at(whole.next);
  part.prev = at(whole.prev);
  for (void*& segment : part.all) segment = at(segment);
  return part;
}

// Returns part `i` of `n`: of a ring all chunks, of which each channel takes its own; otherwise a
// part of the tensor, which begins on a page if the tensor does.
Task part_of(const Task& task, int i, int n, bool ring) {
  Task part = task;
  part.rests = nullptr;
  part.channels = ring ? n : 1;
  if (ring) return part;
  const int64_t element = size_of(task.reduction.dtype);
  const int64_t share = align_up(div_up(task.count, n), kPage / element);
  const int64_t first = min64(i * share, task.count);
  part.whole = task.count;
  part.count = min64(share, task.count - first);
  part.in = static_cast<const std::byte*>(task.in) + first * element;
  part.out = static_cast<std::byte*>(task.out) + first * element;
  return part;
}

}  // namespace

int64_t segment_bytes(const Geometry& geometry, int channels) {
  return channels == 1 ? segment_bytes(geometry) : offset_of(channels, geometry);
}

ThreadedExecutor::ThreadedExecutor(const Segments& segments, const Geometry& geometry, int rank,
                                   int ranks, std::chrono::nanoseconds timeout,
                                   std::shared_ptr<const Arenas> arenas, int channels,
                                   ParallelFor parallel_for, int socket)
    : ranks_(ranks), parallel_for_(std::move(parallel_for)) {
  for (int c = 0; c < channels; ++c)
    channels_.push_back(std::make_unique<CpuExecutor>(
        ranks == 1 ? segments : part_of(segments, offset_of(c, geometry)), geometry_of(c, geometry),
        rank, ranks, timeout, arenas, c, channels, socket));
}

RunResult ThreadedExecutor::run(const Task& task) {
  const bool all_reduce = task.collective == Collective::all_reduce;
  const bool of_shards =
      task.collective == Collective::reduce_scatter || task.collective == Collective::all_gather;
  const int64_t bytes = task.count * size_of(task.reduction.dtype) * (of_shards ? ranks_ : 1);
  // The bits of an all-reduce round the ring depend on the chunks.
  const bool divisible = bytes >= kLeastCall && task.protocol == Protocol::simple &&
                         (task.algorithm == Algorithm::ring) != all_reduce;
  if (!divisible) return channels_.front()->run(task);
  return run_parts(task, int(min64(int64_t(channels_.size()), bytes / kLeastPart)));
}

RunResult ThreadedExecutor::run_parts(const Task& task, int parts) {
  if (task.rests != nullptr) task.rests(task.with);  // only this thread may call it
  const bool ring = task.algorithm == Algorithm::ring && ranks_ > 1;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(parts));
  std::atomic<int> left = parts;
  Bell bell{};  // of this thread
  parallel_for_(parts, [&](int first, int last) {
    for (int i = first; i < last; ++i) {
      try {
        channels_[size_t(i)]->run(part_of(task, i, parts, ring));
      } catch (...) {
        errors[size_t(i)] = std::current_exception();
        abort();  // the other parts must not wait for data that does not come
      }
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) wake(bell);
    }
    if (first > 0) return;
    // Here, and not where the threads are joined, a signal can end the other parts.
    Wait wait(bell, pauses_for(1, 1), std::chrono::hours(24 * 365), history_);
    wait.until([&] { return left.load(std::memory_order_acquire) == 0; });
  });
  rethrow_cause(errors);
  return {.rested = true};
}

void ThreadedExecutor::abort() {
  for (const auto& channel : channels_) channel->abort();
}

}  // namespace ringkern::cpu
