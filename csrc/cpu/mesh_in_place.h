// The mesh without staging: a two_shot of tensors that are all in arenas. Each rank knows only its
// own tensor, so it publishes the tensor's place and reads the others' places in this call. If one
// rank stages, all do.
#pragma once

#include <array>
#include <string>

#include "cpu/mesh_call.h"

namespace ringkern::cpu {

class MeshInPlace {
 public:
  MeshInPlace(MeshCall& call, const Task& task)
      : x_(call), call_(call_word(task)), count_(task.count) {}

  // Publishes this rank's place and waits for all ranks. Sets `all` to whether all are in place, if
  // the verdict is `ok`.
  Verdict meet(int64_t place, bool& all) {
    Arrival& mine = x_.peers[size_t(x_.rank)].board->arrival;
    std::atomic_ref(mine.place).store(place, std::memory_order_relaxed);
    std::atomic_ref(mine.call).store(call_, std::memory_order_relaxed);
    store_release(mine.round, x_.base + 1);
    x_.wake_all();
    all = true;
    for (int p = 0; p < x_.ranks; ++p) {
      if (p == x_.rank) continue;
      Board& board = *x_.peers[size_t(p)].board;
      const std::atomic_ref call(board.arrival.call);
      const auto ready = [&] {
        return (load_acquire(board.arrival.round) > x_.base &&
                call.load(std::memory_order_relaxed) == call_) ||
               load_acquire(board.staged.rounds) > x_.base;
      };
      const Verdict verdict = x_.await(p, Protocol::simple, x_.base + 1, ready,
                                       [&] { return load_acquire(board.staged.rounds); });
      if (verdict != Verdict::ok) return verdict;
      all = all && load_acquire(board.arrival.round) > x_.base;
    }
    return Verdict::ok;
  }

  // Returns the tensors of all ranks.
  std::array<std::byte*, kMaxRanks> find(const Arenas& arenas) {
    std::array<std::byte*, kMaxRanks> tensors;
    for (int p = 0; p < x_.ranks; ++p) tensors[size_t(p)] = tensor_of(p, arenas);
    return tensors;
  }

  Verdict reduce(const Arenas& arenas) {
    const DirectPlan plan =
        DirectPlan::make(Algorithm::two_shot, x_.ranks, count_, int(x_.bytes(1)),
                         /*slot_bytes=*/x_.bytes(count_) + kMostPadding, /*channels=*/1, 0);
    const Span mine = plan.part_of(plan.chunk_of(0, 0), x_.rank);
    const int64_t at = x_.bytes(mine.first);
    const auto tensors = find(arenas);
    const auto theirs = [&](int p) { return tensors[size_t(p)] + at; };
    reduce_versions(x_.reducer, x_.out + at, x_.ranks, theirs, x_.ranks - 1, x_.of_others(theirs),
                    mine.count);
    store_release(x_.peers[size_t(x_.rank)].board->reduced.value, x_.base + 1);
    x_.wake_all();
    for (int p = 0; p < x_.ranks; ++p) {
      if (p == x_.rank) continue;
      uint64_t& reduced = x_.peers[size_t(p)].board->reduced.value;
      const auto ready = [&] { return load_acquire(reduced) > x_.base; };
      const Verdict verdict =
          x_.await(p, Protocol::simple, x_.base + 1, ready, [&] { return load_acquire(reduced); });
      if (verdict != Verdict::ok) return verdict;
    }
    return Verdict::ok;
  }

 private:
  static constexpr int64_t kMostPadding = DirectPlan::kGrainBytes * kMaxRanks;

  std::byte* tensor_of(int p, const Arenas& arenas) {
    if (p == x_.rank) return x_.out;
    MeshPeer& peer = x_.peers[size_t(p)];
    const int64_t bytes = x_.bytes(count_);
    // Read once: another rank owns it, and may change it after the check.
    const int64_t place =
        std::atomic_ref(peer.board->arrival.place).load(std::memory_order_relaxed);
    if (place < 0 || place > INT64_MAX - bytes || p >= int(arenas.of.size()) ||
        arenas.of[size_t(p)] == nullptr)
      throw TransportError(x_.names.text(p) + " names memory that it has not offered");
    if (place + bytes > peer.arena.bytes) peer.arena = arenas.of[size_t(p)]->view(place + bytes);
    return peer.arena.base + place;
  }

  MeshCall& x_;
  const uint64_t call_;
  const int64_t count_;
};

}  // namespace ringkern::cpu
