// The mesh over Simple: a chunk is staged in a slot, and a counter publishes it. In a two_shot each
// rank writes its reduced part where the others staged theirs, and publishes it by another counter.
#pragma once

#include "cpu/mesh_call.h"

namespace ringkern::cpu {

class MeshSlots {
 public:
  MeshSlots(MeshCall& call, const Task& task) : x_(call), call_(call_word(task)) {}

  Verdict stage(const DirectPlan& plan, const Span& chunk, int64_t i) {
    const bool whole = plan.algorithm == Algorithm::one_shot || x_.reducer.scales_input();
    stage(chunk, whole ? Span{} : plan.part_of(chunk, x_.rank), i);
    return Verdict::ok;
  }

  // Stages a chunk but for the part `mine`, which no other rank needs.
  void stage(const Span& chunk, const Span& mine, int64_t i) {
    std::byte* const to = slot(x_.rank, i);
    const std::byte* const in = x_.in + x_.bytes(chunk.first);
    if (mine.count == 0) {
      x_.reducer.input(to, in, chunk.count);
    } else {
      const int64_t before = min64(mine.first, chunk.count), after = before + mine.count;
      x_.reducer.input(to, in, before);
      x_.reducer.input(to + x_.bytes(after), in + x_.bytes(after), chunk.count - after);
    }
    Staged& staged = board(x_.rank).staged;
    // A rank that polls `rounds` may take the cache line between the two stores. So a slot of the
    // same call as before is not marked again.
    std::atomic_ref call(staged.calls[place(i)]);
    if (call.load(std::memory_order_relaxed) != call_) call.store(call_, std::memory_order_relaxed);
    publish(staged.rounds, i);
  }

  Verdict reduce(const DirectPlan& plan, const Span& chunk, int64_t i) {
    for (int p = 0; p < x_.ranks; ++p) {
      const Verdict verdict = await_staged(p, i);
      if (verdict != Verdict::ok) return verdict;
    }
    const bool two_shot = plan.algorithm == Algorithm::two_shot;
    const Span span = two_shot ? plan.part_of(chunk, x_.rank) : Span{0, chunk.count};
    const int64_t at = x_.bytes(chunk.first + span.first);
    const auto theirs = [&](int p) { return slot(p, i) + x_.bytes(span.first); };
    const auto version_of = [&](int p) -> const std::byte* {
      return p == x_.rank && !x_.reducer.scales_input() ? x_.in + at : theirs(p);
    };
    reduce_versions(x_.reducer, x_.out + at, x_.ranks, version_of, two_shot ? x_.ranks - 1 : 0,
                    x_.of_others(theirs), span.count);
    if (two_shot) publish(board(x_.rank).reduced.value, i);
    return Verdict::ok;
  }

  Verdict collect(const DirectPlan& plan, const Span& chunk, int64_t i) {
    for (int j = 1; j < x_.ranks; ++j) {
      const int p = (x_.rank + j) % x_.ranks;
      const Verdict verdict = await(p, board(p).reduced.value, i);
      if (verdict != Verdict::ok) return verdict;
      const Span part = plan.part_of(chunk, p);
      copy_one(x_.out + x_.bytes(chunk.first + part.first), slot(x_.rank, i) + x_.bytes(part.first),
               x_.bytes(part.count));
    }
    return Verdict::ok;
  }

  std::byte* slot(int peer, int64_t i) const {
    return x_.peers[size_t(peer)].slots + int64_t(place(i)) * MeshGeometry::kSlotBytes;
  }
  void publish(uint64_t& rounds, int64_t i) const {
    store_release(rounds, round(i));
    x_.wake_all();
  }
  // Waits until a rank has published round i by `rounds`.
  Verdict await(int peer, uint64_t& rounds, int64_t i) const {
    return await(peer, rounds, i, [&] { return load_acquire(rounds) >= round(i); });
  }
  Verdict await_staged(int peer, int64_t i) const {
    if (peer == x_.rank) return Verdict::ok;
    Staged& staged = board(peer).staged;
    std::atomic_ref call(staged.calls[place(i)]);
    return await(peer, staged.rounds, i, [&] {
      return load_acquire(staged.rounds) >= round(i) &&
             call.load(std::memory_order_relaxed) == call_;
    });
  }

 private:
  Board& board(int peer) const { return *x_.peers[size_t(peer)].board; }
  uint64_t round(int64_t i) const { return x_.base + uint64_t(i) + 1; }
  uint64_t place(int64_t i) const {
    return (x_.base + uint64_t(i)) % DirectPlan::slots(MeshGeometry::kAhead);
  }
  template <class Ready>
  Verdict await(int peer, uint64_t& rounds, int64_t i, Ready&& ready) const {
    return x_.await(peer, Protocol::simple, round(i), ready, [&] { return load_acquire(rounds); });
  }

  MeshCall& x_;
  const uint64_t call_;
};

}  // namespace ringkern::cpu
