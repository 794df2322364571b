// The mesh on several sockets: a two_shot that crosses the link between two of them once in each
// direction, in place of k/2 times with k ranks. For ranks that are numbered in the order of their
// sockets. Rank j of each socket owns part j of a chunk, and they form a chain:
//
//   stage     show my chunk to the ranks of my socket
//   reduce    combine the partial result of rank j of the socket before with my socket's versions
//             of part j, in the order of the ranks: the bits of a two_shot over all of them. On the
//             last socket this is the result: give it to rank j of every socket.
//   collect   copy every part from the rank of my socket that has it
//
// While a socket reduces a round, the one before reduces the next round.
//
// REUSE      As in core/direct.h: a rank that has collected round i knows that all ranks of its
//            socket have reduced it, and so collected round i-1-ahead. But it learns only late that
//            ranks of other sockets have begun, which may still read the slots of the call before.
//            In place, the ranks of a socket read each other's tensors, until all have collected.
#pragma once

#include "cpu/mesh_slots.h"

namespace ringkern::cpu {

class MeshSockets {
 public:
  // `near`: ranks of a socket. `tensors`: those of all ranks, which are reduced in place; null:
  // they are staged.
  MeshSockets(MeshCall& call, const Task& task, int near, std::byte* const* tensors)
      : x_(call), slots_(call, task), near_(near), first_(call.rank / near * near),
        place_(call.rank % near), last_(call.ranks - near), tensors_(tensors) {}

  // The rounds and parts of a call of this many elements.
  static DirectPlan plan(int near, int64_t count, int64_t element) {
    // From 128 KiB on four rounds or more, so that all sockets have work.
    constexpr int64_t kLeastChunk = 32 << 10;
    const int64_t chunk = min64(MeshGeometry::kSlotBytes, max64(kLeastChunk, count * element / 4));
    return DirectPlan::make(Algorithm::two_shot, near, count, int(element), chunk, /*channels=*/1,
                            MeshGeometry::kAhead);
  }

  Verdict stage(const DirectPlan& plan, const Span& chunk, int64_t i) {
    if (tensors_ != nullptr) return Verdict::ok;
    // The slots of rounds 0 to kAhead are free: core/direct.h. Later ones are if all have begun.
    if (i == MeshGeometry::kAhead + 1)
      if (const Verdict v = await_all(0, x_.ranks, &MeshSockets::staged, 0); v != Verdict::ok)
        return v;
    slots_.stage(chunk, plan.part_of(chunk, place_), i);
    return Verdict::ok;
  }

  Verdict reduce(const DirectPlan& plan, const Span& chunk, int64_t i) {
    const int before = x_.rank - near_;  // on the socket before; negative on the first one
    if (tensors_ == nullptr) {
      for (int p = first_; p < first_ + near_; ++p)
        if (const Verdict v = slots_.await_staged(p, i); v != Verdict::ok) return v;
      if (before >= 0)  // it must be in the same call
        if (const Verdict v = slots_.await_staged(before, i); v != Verdict::ok) return v;
    }
    if (before >= 0)
      if (const Verdict v = slots_.await(before, reduced(before), i); v != Verdict::ok) return v;
    const Span part = plan.part_of(chunk, place_);
    const int64_t at = x_.bytes(part.first);
    const std::byte* const in = x_.in + x_.bytes(chunk.first) + at;
    std::byte* const out = memory(x_.rank, chunk, i) + at;
    const bool scales = x_.reducer.scales_input();
    if (scales) x_.reducer.input(out, in, part.count);
    const int partial = before >= 0 ? 1 : 0;
    const auto version_of = [&](int v) -> const std::byte* {
      const int p = v < partial ? before : first_ + v - partial;
      return p == x_.rank && !scales ? in : memory(p, chunk, i) + at;
    };
    const bool finishes = first_ == last_;
    const auto owner = [&](int socket) { return memory(socket * near_ + place_, chunk, i) + at; };
    reduce_versions(x_.reducer, out, near_ + partial, version_of, finishes ? last_ / near_ : 0,
                    owner, part.count, finishes);
    slots_.publish(reduced(x_.rank), i);
    return Verdict::ok;
  }

  Verdict collect(const DirectPlan& plan, const Span& chunk, int64_t i) {
    for (int j = 1; j <= near_; ++j) {
      const int place = (place_ + j) % near_, p = first_ + place;
      if (const Verdict v = slots_.await(last_ + place, reduced(last_ + place), i);
          v != Verdict::ok)
        return v;
      if (p == x_.rank && tensors_ != nullptr) continue;  // there already
      const Span part = plan.part_of(chunk, place);
      copy_one(x_.out + x_.bytes(chunk.first + part.first),
               memory(p, chunk, i) + x_.bytes(part.first), x_.bytes(part.count));
    }
    if (tensors_ == nullptr || i + 1 < plan.rounds) return Verdict::ok;
    slots_.publish(collected(x_.rank), i);
    return await_all(first_, near_, &MeshSockets::collected, i);
  }

 private:
  uint64_t& staged(int p) const { return x_.peers[size_t(p)].board->staged.rounds; }
  uint64_t& reduced(int p) const { return x_.peers[size_t(p)].board->reduced.value; }
  uint64_t& collected(int p) const { return x_.peers[size_t(p)].board->collected.value; }
  // Returns the memory of a rank's version of a chunk, and later of the parts that it owns.
  std::byte* memory(int p, const Span& chunk, int64_t i) const {
    return tensors_ != nullptr ? tensors_[p] + x_.bytes(chunk.first) : slots_.slot(p, i);
  }
  // Waits until `n` ranks have published round i by a counter.
  Verdict await_all(int first, int n, uint64_t& (MeshSockets::*counter)(int) const,
                    int64_t i) const {
    for (int p = first; p < first + n; ++p)
      if (const Verdict v = slots_.await(p, (this->*counter)(p), i); v != Verdict::ok) return v;
    return Verdict::ok;
  }

  MeshCall& x_;
  MeshSlots slots_;
  const int near_, first_, place_, last_;  // `first_`, `last_`: rank 0 of this and the last socket
  std::byte* const* const tensors_;
};

}  // namespace ringkern::cpu
