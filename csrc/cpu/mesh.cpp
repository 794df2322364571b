#include "cpu/mesh.h"

#include <bit>
#include <utility>

#include "cpu/mesh_in_place.h"
#include "cpu/mesh_lines.h"
#include "cpu/mesh_slots.h"
#include "cpu/mesh_sockets.h"

namespace ringkern::cpu {
namespace {

// From here on two sockets take less time in a chain than by a two_shot over all ranks. Predicted:
// `python -m ringkern model --device cpu --sockets 2`.
constexpr int64_t kLeastChain = 256 << 10;

// Not inlined: a small call takes longer if Mesh::run() has more to keep.
[[gnu::noinline]] Verdict run_chain(const DirectPlan& plan, MeshCall& call, const Task& task,
                                    int near, std::byte* const* tensors) {
  MeshSockets mesh(call, task, near, tensors);
  return run_direct(plan, 0, mesh);
}

}  // namespace

Mesh::Mesh(const Segments& segments, int64_t offset, int rank, std::shared_ptr<const Arenas> arenas,
           int socket)
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
  std::atomic_ref(peers_[size_t(rank)].board->socket).store(socket, std::memory_order_relaxed);
}

int Mesh::near_ranks() const {
  const auto socket = [&](size_t p) {
    return std::atomic_ref(peers_[p].board->socket).load(std::memory_order_relaxed);
  };
  size_t near = 1;
  while (near < peers_.size() && socket(near) == socket(0)) ++near;
  if (near < 2 || near == peers_.size() || peers_.size() % near != 0) return 0;
  for (size_t p = 0; p < peers_.size(); ++p) {
    const size_t first = p / near * near;
    if (socket(p) < 0 || socket(p) != socket(first)) return 0;
    for (size_t other = 0; other < first; other += near)
      if (socket(other) == socket(p)) return 0;
  }
  return int(near);
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
  // A chain adds the ranks in order. Partial results that are kept in float32 would not fit into
  // the slots.
  const bool chain = task.algorithm == Algorithm::two_shot && !reducer.widens(ranks) &&
                     !reducer.by_tree(ranks) &&
                     task.whole_count() * reducer.element_bytes() >= kLeastChain && near() > 0;
  uint64_t& rounds = lines ? line_rounds_ : rounds_;
  const DirectPlan plan =
      chain ? MeshSockets::plan(near(), task.count, reducer.element_bytes())
            : DirectPlan::make(task.algorithm, ranks, task.count, int(reducer.element_bytes()),
                               lines ? MeshGeometry::line_slot_data() : MeshGeometry::kSlotBytes,
                               /*channels=*/1,
                               lines ? MeshGeometry::kLineAhead : MeshGeometry::kAhead);
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
  if (place >= 0)
    if (const auto verdict = run_in_place(plan, call, task, place, chain)) return *verdict;
  if (chain) return run_chain(plan, call, task, near(), nullptr);
  if (lines) {
    MeshLines mesh(call, task);
    return run_direct(plan, 0, mesh);
  }
  MeshSlots mesh(call, task);
  return run_direct(plan, 0, mesh);
}

// Returns nothing if the tensors have to be staged.
std::optional<Verdict> Mesh::run_in_place(const DirectPlan& plan, MeshCall& call, const Task& task,
                                          int64_t place, bool chain) {
  const auto hold = arenas_->mine->hold();
  if (!arenas_->mine->is_in(arenas_->file)) return {};
  MeshInPlace mesh(call, task);
  bool all = false;
  const Verdict verdict = mesh.meet(place, all);
  if (verdict != Verdict::ok) return verdict;
  if (all && chain) return run_chain(plan, call, task, near(), mesh.find(*arenas_).data());
  if (all) return mesh.reduce(*arenas_);
  return {};
}

}  // namespace ringkern::cpu
