// The direct all-reduces of core/direct.h on a CPU: a rank stages in its own memory, and the others
// read it there.
//
// Data is published in two ways. LL, for one line or a few: the flag is in the line, next to the
// data, so that both arrive in one transfer. Simple, otherwise: data, and then a counter.
//
// MAPPING    LL: 56 bytes of data a line of 64. Simple: a chunk a slot; by two_shot, a rank reduces
//            its part of every rank's slot and writes the result back in place. So each cache line
//            moves on a load, which the processor prefetches, and every store hits the cache.
//            Tensors that all ranks have in their arenas are not staged at all: each rank reduces
//            its part of every rank's tensor, in place.
//            On several sockets a large two_shot takes the chain of cpu/mesh_sockets.h.
// ORDERING   data first, then the flag or counter with release; a reader acquires it first.
// POLLING    the flag or counter of the writer.
// REUSE      as in core/direct.h; by two_shot a slot is free once its owner has copied the results.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/interfaces.h"
#include "core/direct.h"
#include "cpu/arena.h"
#include "cpu/simd.h"
#include "cpu/wait.h"

namespace ringkern::cpu {

// The flag: the call's word, and, above it, the round.
struct DirectLine {
  std::byte data[56];
  uint64_t flag;
};
static_assert(sizeof(DirectLine) == 64);

// The place of a call's tensor in a rank's arena.
struct alignas(kCacheLine) Arrival {
  int64_t place;
  uint64_t call;   // as in Staged
  uint64_t round;  // the first of the call, from 1; written last
};

// The rounds that a rank has staged in its life, and the call of each slot: data of another call is
// never taken. In one cache line, so that the check costs no transfer.
struct alignas(kCacheLine) Staged {
  uint64_t rounds;
  uint64_t calls[DirectPlan::slots(1)];
};
static_assert(sizeof(Staged) == kCacheLine);

// The board that a rank shows to all others. Each counter has one writer.
struct Board {
  Staged staged;
  StepCounter reduced;    // rounds whose part it has written to the others (two_shot)
  Arrival arrival;        // its last call with a tensor in its arena
  StepCounter collected;  // rounds that it has copied from tensors of others (mesh_sockets.h)
  // At connection; all ranks know them by the first call.
  Processors processors;
  int64_t socket;
};

// The layout of the mesh's memory, behind the FIFOs of a rank's segment.
struct MeshGeometry {
  static constexpr int kLineAhead = 0, kAhead = 1;  // Staged has as many slots
  static constexpr int64_t kLines = 64;             // per slot
  static constexpr int64_t kSlotBytes = 256 << 10;  // four fill a second-level cache

  static constexpr int64_t line_slot_data() { return kLines * int64_t(sizeof(DirectLine::data)); }
  static constexpr int64_t lines_bytes() {
    return DirectPlan::slots(kLineAhead) * kLines * int64_t(sizeof(DirectLine));
  }
  static constexpr int64_t bytes() {
    return int64_t(sizeof(Board)) + lines_bytes() + DirectPlan::slots(kAhead) * kSlotBytes;
  }
};

// A rank's view of another rank.
struct MeshPeer {
  Bell* bell;
  Board* board;
  DirectLine* lines;
  std::byte* slots;
  PeerArena::View arena;  // the mapped part
};

// Returns whether a CPU has the algorithm over this protocol.
constexpr bool direct_runs_over(Algorithm a, Protocol p) {
  return p == Protocol::simple || (p == Protocol::ll && a == Algorithm::one_shot);
}

struct MeshCall;

// One rank's view of the mesh, and its progress.
class Mesh {
 public:
  // `offset`: of the mesh's memory in each rank's segment. `arenas` may be null. `socket`: of this
  // rank, as my_socket().
  Mesh(const Segments& segments, int64_t offset, int rank, std::shared_ptr<const Arenas> arenas,
       int socket);

  // Returns the number of processors that the ranks have together: a pinned rank alone has one.
  int processors() const;

  // Runs an all-reduce. Throws TransportError if a rank names memory that it has not offered.
  Verdict run(const Task& task, const Reducer& reducer, Wait& wait, WaitReport& report);

 private:
  // Returns the number of ranks of each socket, if there are several of at least two, and the ranks
  // are numbered in their order; else 0.
  int near_ranks() const;
  // Not inlined, as in run_chain().
  [[gnu::noinline]] std::optional<Verdict> run_in_place(const DirectPlan& plan, MeshCall& call,
                                                        const Task& task, int64_t place,
                                                        bool chain);
  int near() { return near_ >= 0 ? near_ : near_ = near_ranks(); }

  std::vector<MeshPeer> peers_;  // by rank, this one's among them
  const int rank_;
  const std::shared_ptr<const Arenas> arenas_;
  const RankNames names_;
  uint64_t rounds_ = 0, line_rounds_ = 0;  // of earlier calls
  int near_ = -1;                          // near_ranks(); -1: unknown yet
};

}  // namespace ringkern::cpu
