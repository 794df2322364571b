#include "cpu/mesh.h"

#include <bit>
#include <utility>

#include "cpu/mesh_in_place.h"
#include "cpu/mesh_lines.h"
#include "cpu/mesh_slots.h"

namespace ringkern::cpu {

Mesh::Mesh(const Segments& segments, int64_t offset, int rank, std::shared_ptr<const Arenas> arenas)
    : rank_(rank), arenas_(std::move(arenas)), names_(segments.names) {
  for (void* segment : segments.all) {
    auto* const at = static_cast<std::byte*>(segment) + offset;
    auto* const lines = at + sizeof(Board);
    peers_.push_back({static_cast<Bell*>(segment),
                      reinterpret_cast<Board*>(at),
                      reinterpret_cast<DirectLine*>(lines),
                      lines + MeshGeometry::lines_bytes(),
                      {}});
  }
  if (peers_.empty()) return;
  const Processors mine = my_processors();
  for (size_t word = 0; word < mine.size(); ++word)
    std::atomic_ref(peers_[size_t(rank)].board->processors[word])
        .store(mine[word], std::memory_order_relaxed);
}

int Mesh::processors() const {
  int count = 0;
  for (size_t word = 0; word < Processors{}.size(); ++word) {
    uint64_t all = 0;
    for (const MeshPeer& peer : peers_)
      all |= std::atomic_ref(peer.board->processors[word]).load(std::memory_order_relaxed);
    count += std::popcount(all);
  }
  return count;
}

Verdict Mesh::run(const Task& task, const Reducer& reducer, Wait& wait, WaitReport& report) {
  const bool lines = task.protocol == Protocol::ll;
  const int ranks = int(peers_.size());
  uint64_t& rounds = lines ? line_rounds_ : rounds_;
  const DirectPlan plan =
      DirectPlan::make(task.algorithm, ranks, task.count, int(reducer.element_bytes()),
                       lines ? MeshGeometry::line_slot_data() : MeshGeometry::kSlotBytes,
                       /*channels=*/1, lines ? MeshGeometry::kLineAhead : MeshGeometry::kAhead);
  MeshCall call{peers_,
                rank_,
                ranks,
                rounds,
                /*flag=*/0,
                reducer,
                static_cast<const std::byte*>(task.in),
                static_cast<std::byte*>(task.out),
                wait,
                report,
                names_};
  // Counted before the choice between staging and in place: all ways take the same number.
  rounds += uint64_t(plan.rounds);
  const int64_t place = arenas_ == nullptr || arenas_->mine == nullptr ||
                                task.algorithm != Algorithm::two_shot || task.in != task.out ||
                                reducer.scales_input() || plan.rounds == 0
                            ? -1
                            : arenas_->mine->place_of(task.out, call.bytes(task.count));
  if (place >= 0) {
    MeshInPlace mesh(call, task);
    bool all = false;
    const Verdict verdict = mesh.meet(place, all);
    if (verdict != Verdict::ok) return verdict;
    if (all) return mesh.reduce(*arenas_);
  }
  if (lines) {
    MeshLines mesh(call, task);
    return run_direct(plan, 0, mesh);
  }
  MeshSlots mesh(call, task);
  return run_direct(plan, 0, mesh);
}

}  // namespace ringkern::cpu
