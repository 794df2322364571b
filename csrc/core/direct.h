// All-reduce without the ring: every rank sees the memory of every other one, so a tensor needs no
// more than one exchange, or two, however many ranks there are. Written once, for every backend.
//
// The tensor is cut in rounds, a round in a chunk a channel, and, by two_shot, a chunk in a part a
// rank:
//
//   verb      one_shot                                   two_shot
//   stage     show my chunk to everybody                 show each rank its part of my chunk
//   reduce    combine everybody's chunks, in the order   combine everybody's versions of my part,
//             of the ranks: the same bits everywhere     in the order of the ranks, and give each
//                                                        the result
//   collect                                              copy the parts that the others reduced
//
// k ranks move (k-1) n bytes to each by one_shot, and 2 (k-1)/k n by two_shot, which is what a ring
// moves in 2 (k-1) hops. So one_shot is for small tensors, and for two ranks, where both move n.
//
// A round's verbs follow each other `ahead` rounds apart, so that a rank shows what comes next
// before it waits for what came last.
//
// REUSE      A slot needs no credit. A rank stages round i when it has reduced round i-1-ahead: all
//            had staged that one, and had reduced round i-2-2*ahead in the iteration before. So
//            that many slots are enough for what is staged; and for results, which lie where their
//            reader is. Rounds are counted over the life of the communicator.
#pragma once

#include "core/status.h"

namespace ringkern {

// Elements side by side.
struct Span {
  int64_t first = 0, count = 0;
};

struct DirectPlan {
  Algorithm algorithm = Algorithm::one_shot;
  int ranks = 1;
  int channels = 1;
  int ahead = 0;
  int64_t count = 0;  // elements of the tensor
  int64_t chunk = 0;  // of a whole chunk
  int64_t part = 0;   // of a whole part of a whole chunk
  int64_t grain = 1;  // chunks and parts start at a multiple of it
  int64_t rounds = 0;

  // That a rank must have for the reuse above to hold.
  static constexpr int slots(int ahead) { return 2 + 2 * ahead; }

  // `slot_bytes`: of user data, the most that a chunk has. The same on all ranks.
  static constexpr DirectPlan make(Algorithm algorithm, int ranks, int64_t count, int element_bytes,
                                   int64_t slot_bytes, int channels, int ahead) {
    DirectPlan p;
    p.algorithm = algorithm;
    p.ranks = ranks;
    p.channels = channels;
    p.ahead = ahead;
    p.count = count;
    p.grain = max64(1, kGrainBytes / element_bytes);
    const int64_t most = max64(1, slot_bytes / (kGrainBytes * p.parts())) * p.parts() * p.grain;
    p.rounds = div_up(count, most * channels);
    if (p.rounds == 0) return p;
    // Rounds of one size: a short last one would be waited for as long as a whole one.
    const int64_t even = div_up(count, p.rounds * channels * p.parts());
    p.part = align_up(even, p.grain);
    p.chunk = p.part * p.parts();
    p.rounds = div_up(count, p.chunk * channels);
    return p;
  }

  RK_HD constexpr int parts() const { return algorithm == Algorithm::two_shot ? ranks : 1; }
  // Iterations between the first verb of a round and its last.
  RK_HD constexpr int64_t tail() const {
    return (algorithm == Algorithm::two_shot ? 2 : 1) * int64_t(ahead);
  }

  // In the tensor. May be empty, at the end of it.
  RK_HD constexpr Span chunk_of(int channel, int64_t round) const {
    const int64_t first = (round * channels + channel) * chunk;
    return {first, max64(0, min64(chunk, count - first))};
  }
  // Of a chunk, counted from its start.
  RK_HD constexpr Span part_of(const Span& whole, int rank) const {
    const int64_t first = rank * part;
    return {first, max64(0, min64(part, whole.count - first))};
  }

  static constexpr int64_t kGrainBytes = 64;  // ranks that write side by side share no cache line
};

// The same of a tensor of rows, each of which one channel has to itself: for a mesh that does more
// with a row once it is there. A row takes one round, or several where it is longer than a slot.
struct RowPlan : DirectPlan {
  int64_t row = 0;     // elements
  int64_t pieces = 1;  // rounds of a row

  // `count`: of whole rows.
  static constexpr RowPlan make(Algorithm algorithm, int ranks, int64_t count, int64_t row,
                                int element_bytes, int64_t slot_bytes, int channels) {
    RowPlan p{DirectPlan::make(algorithm, ranks, row, element_bytes, slot_bytes, 1, /*ahead=*/0)};
    p.channels = channels;
    p.count = count;
    p.row = row;
    p.pieces = p.rounds;
    p.rounds *= div_up(count / row, channels);
    return p;
  }

  RK_HD constexpr Span chunk_of(int channel, int64_t round) const {
    const int64_t first = (round / pieces * channels + channel) * row, at = round % pieces * chunk;
    return {first + at, first < count ? min64(chunk, row - at) : 0};
  }
  // Tells if the chunk of this round is the last one of its row.
  RK_HD constexpr bool ends_row(int64_t round) const { return (round + 1) % pieces == 0; }
};

// Runs one channel over a mesh, whose verbs take the chunk and the round, counted from the start of
// this call, and return a Verdict; the first that is not `ok` ends the collective. A mesh may have
// `finish`, too, for a round that has come to its end.
template <class Plan, class Mesh>
RK_HD Verdict run_direct(const Plan& plan, int channel, Mesh& mesh) {
  for (int64_t i = 0; i < plan.rounds + plan.tail(); ++i) {
    const int64_t staged = i, reduced = i - plan.ahead, collected = i - 2 * plan.ahead;
    Verdict verdict = Verdict::ok;
    if (staged < plan.rounds) verdict = mesh.stage(plan, plan.chunk_of(channel, staged), staged);
    if (verdict == Verdict::ok && reduced >= 0 && reduced < plan.rounds)
      verdict = mesh.reduce(plan, plan.chunk_of(channel, reduced), reduced);
    if (verdict == Verdict::ok && plan.algorithm == Algorithm::two_shot && collected >= 0)
      verdict = mesh.collect(plan, plan.chunk_of(channel, collected), collected);
    if (verdict != Verdict::ok) return verdict;
    if constexpr (requires { mesh.finish(plan, Span{}, i); })
      if (const int64_t done = i - plan.tail(); done >= 0)
        mesh.finish(plan, plan.chunk_of(channel, done), done);
  }
  return Verdict::ok;
}

}  // namespace ringkern
