// The refusals of a launcher, before it launches anything.
#include "cuda/device.h"
#include "cuda/launcher.h"
#include "cuda/residency.h"

namespace ringkern::cuda {

void Launcher::check_geometry() const {
  const Geometry& g = geometry_;
  const int64_t unit = kLL128Unit * line_bytes(Protocol::ll128);
  bool ok = g.valid() && g.slot_bytes[int(Protocol::ll128)] % unit == 0;
  for (const int64_t bytes : g.slot_bytes) ok = ok && bytes <= 1 << 29;  // offsets in it are ints
  if (!ok)
    throw UsageError("the CUDA engine takes 1 to " + std::to_string(kMaxChannels) +
                     " channels, at least two slots of at most 512 MiB, and LL128 slots of whole " +
                     std::to_string(unit) + " bytes");
}

// The kernels take them from a table of all ranks, which then always exists.
void Launcher::check_neighbours() const {
  static_assert(RingOrders::kMostRanks <= MeshGeometry::kMostRanks);
  for (const Seat& seat : seats_)
    for (int channel = 0; channel < orders_.count; ++channel)
      for (const int peer :
           {orders_.next(channel, seat.rank, ranks_), orders_.prev(channel, seat.rank, ranks_)})
        if (size_t(peer) >= seat.segments.all.size() || seat.segments.all[size_t(peer)] == nullptr)
          throw TransportError(seat.segments.names.text(seat.rank) + " and " +
                               seat.segments.names.text(peer) +
                               " are neighbours on a ring, and device " + std::to_string(device_) +
                               " of " + seat.segments.names.text(seat.rank) +
                               " has no access to the memory of " + seat.segments.names.text(peer) +
                               ". Give an order of the ranks in which neighbours "
                               "have access (see nvidia-smi topo -p2p r)");
}

void Launcher::check_resident() const {
  const int needed = int(seats_.size()) * geometry_.channels;
  if (ranks_ > 1 && needed > resident_)
    throw UsageError(std::to_string(seats_.size()) + " ranks of " +
                     std::to_string(geometry_.channels) + " channels need " +
                     std::to_string(needed) + " blocks resident at once, and device " +
                     std::to_string(device_) + " holds " + std::to_string(resident_) +
                     ": use fewer ranks or channels on it, or a larger GPU");
}

void Launcher::check_task(const Task& task) const {
  if (ranks_ > 1) check_wide(task);
  const Reduction& r = task.reduction;
  if (task.timeline != nullptr &&
      (task.algorithm != Algorithm::ring || r.dtype != DType::f32 || r.combine != Combine::sum))
    throw UsageError(std::string("kernels with a clock exist only for sums of float32 by ring, "
                                 "not for ") +
                     name_of(task.collective) + " by " + name_of(task.algorithm) + " of " +
                     name_of(r.dtype) + ": trace such a call");
  if (task.collective == Collective::send_recv && orders_.count > 1)
    throw UsageError("a message goes from the root to the next rank, and this ring has " +
                     std::to_string(orders_.count) +
                     " orders of the ranks: send it over a ring with one order");
  if (task.algorithm == Algorithm::ring) return;
  const std::string what = name_of(task.algorithm);
  if (task.collective != Collective::all_reduce || !direct_runs_over(task.algorithm, task.protocol))
    throw UsageError(
        std::string(name_of(task.collective)) + " by " + what + " over " + name_of(task.protocol) +
        " does not exist on CUDA, where all_reduce has one_shot over ll, and two_shot over ll and "
        "simple. Use protocol ll, or algorithm ring");
  if (is_in_place(task.algorithm, task.protocol) && int(seats_.size()) == ranks_) return;
  if (ranks_ > 1 && !mesh_.possible())
    throw UsageError(what + " on CUDA takes at most " + std::to_string(MeshGeometry::kMostRanks) +
                     " ranks, not " + std::to_string(ranks_) + ": use algorithm ring");
}

}  // namespace ringkern::cuda
