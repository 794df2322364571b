// The direct all-reduces of core/direct.h on a CPU: a rank stages in its own memory, and the others
// read it there.
//
// Two ways to say that something is there. LL, for one line or a few: the flag is in the line, next
// to the data, so that both make one journey. Simple, for all else: data, and then a counter.
//
// MAPPING    LL: 56 bytes of data a line of 64. Simple: a chunk a slot; by two_shot, a rank reduces
//            its part of everybody's slot and writes the result back where it came from. So each
//            cache line travels on a load, which the processor sees coming, and every store finds
//            its line at hand.
//            Tensors that all ranks have in their arenas are not staged at all: each rank reduces
//            its part of everybody's tensor, in place.
// ORDERING   data first, then the flag or counter with release; a reader acquires it first.
// POLLING    the flag or counter of the one who writes it.
// REUSE      as in core/direct.h; by two_shot a slot is free once its owner has copied the results.
#pragma once

#include <memory>
#include <vector>

#include "comm/ports.h"
#include "core/direct.h"
#include "cpu/arena.h"
#include "cpu/simd.h"
#include "cpu/wait.h"

namespace ringkern::cpu {

// The flag: of which call it is, and, above that, the round.
struct DirectLine {
  std::byte data[56];
  uint64_t flag;
};
static_assert(sizeof(DirectLine) == 64);

// Where the tensor of a call is in a rank's arena.
struct alignas(kCacheLine) Arrival {
  int64_t place;
  uint64_t call;   // as in Staged
  uint64_t round;  // the first of the call, from 1; written last
};

// Rounds that a rank has staged, over its life, and of which call each slot is: what is of another
// call than a rank's own is never taken. In one cache line, so that to look costs nothing.
struct alignas(kCacheLine) Staged {
  uint64_t rounds;
  uint64_t calls[DirectPlan::slots(1)];
};
static_assert(sizeof(Staged) == kCacheLine);

// The board that a rank shows to all others. Each counter has one writer.
struct Board {
  Staged staged;
  StepCounter reduced;    // rounds of which it has given the others its part (two_shot)
  Arrival arrival;        // its last call with a tensor in its arena
  Processors processors;  // that it had when it was connected; known to all by the first call
};

// In a rank's segment, behind the FIFOs.
struct MeshGeometry {
  static constexpr int kLineAhead = 0, kAhead = 1;  // Staged has as many slots
  static constexpr int64_t kLines = 64;             // of a slot
  static constexpr int64_t kSlotBytes = 256 << 10;  // four fill a second-level cache

  static constexpr int64_t line_slot_data() { return kLines * int64_t(sizeof(DirectLine::data)); }
  static constexpr int64_t lines_bytes() {
    return DirectPlan::slots(kLineAhead) * kLines * int64_t(sizeof(DirectLine));
  }
  static constexpr int64_t bytes() {
    return int64_t(sizeof(Board)) + lines_bytes() + DirectPlan::slots(kAhead) * kSlotBytes;
  }
};

// Where a rank finds another.
struct MeshPeer {
  Bell* bell;
  Board* board;
  DirectLine* lines;
  std::byte* slots;
  PeerArena::View arena;  // as far as it has been mapped
};

// Returns whether a CPU has the algorithm over this protocol.
constexpr bool direct_runs_over(Algorithm a, Protocol p) {
  return p == Protocol::simple || (p == Protocol::ll && a == Algorithm::one_shot);
}

// One rank's view of the mesh, and how far it has come.
class Mesh {
 public:
  // `offset`: of the mesh's memory in everybody's segment. `arenas` may be null.
  Mesh(const Segments& segments, int64_t offset, int rank, std::shared_ptr<const Arenas> arenas);

  // How many processors the ranks have between them. A rank that is pinned has one, and that says
  // nothing.
  int processors() const;

  // Throws TransportError where a rank names memory that it has not offered.
  Verdict run(const Task& task, const Reducer& reducer, Wait& wait, WaitReport& report);

 private:
  std::vector<MeshPeer> peers_;  // by rank, this one's among them
  const int rank_;
  const std::shared_ptr<const Arenas> arenas_;
  const RankNames names_;
  uint64_t rounds_ = 0, line_rounds_ = 0;  // of earlier calls
};

}  // namespace ringkern::cpu
