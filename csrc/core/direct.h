// All-reduce without the ring. Every rank maps the memory of every other rank, so a tensor needs
// one exchange (one_shot) or two (two_shot), for any number of ranks. Written once for every
// backend.
//
// The tensor is cut into rounds, each round into one chunk per channel, and with two_shot each
// chunk into one part per rank:
//
//   verb      one_shot                                   two_shot
//   stage     show my chunk to everybody                 show each rank its part of my chunk
//   reduce    combine everybody's chunks, in the order   combine everybody's versions of my part,
//             of the ranks: the same bits everywhere     in the order of the ranks, and give each
//                                                        the result
//   collect                                              copy the parts that the others reduced
//
// With one_shot each of k ranks moves (k-1) n bytes. With two_shot it moves 2 (k-1)/k n bytes, as
// much as a ring in its 2 (k-1) hops. one_shot is for small tensors, and for two ranks, where both
// move n.
//
// The verbs of a round are `ahead` rounds apart, so that a rank stages the next rounds before it
// waits for the last one.
//
// Slots are reused without credit. A rank stages round i after it has reduced round i-1-ahead. At
// that point every rank has staged round i-1-ahead, and one iteration earlier had reduced round
// i-2-2*ahead. So 2+2*ahead slots are enough for staged data, and for results, which are written to
// the memory of their reader. Rounds are counted over the life of the communicator.
#pragma once

#include "core/status.h"

namespace ringkern {

// A range of elements.
struct Span {
  int64_t first = 0, count = 0;
};

struct DirectPlan {
  Algorithm algorithm = Algorithm::one_shot;
  int ranks = 1;
  int channels = 1;
  int ahead = 0;
  int64_t count = 0;  // elements of the tensor
  int64_t chunk = 0;  // elements of a whole chunk
  int64_t part = 0;   // elements of a part of a whole chunk
  int64_t grain = 1;  // chunks and parts start at a multiple of this
  int64_t rounds = 0;

  // Returns the number of slots that the reuse above needs.
  static constexpr int slots(int ahead) { return 2 + 2 * ahead; }

  // `slot_bytes` is the maximum user data of a chunk. The result is the same on all ranks.
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
    // Makes the rounds equal: waiting for a short last round takes as long as for a whole one.
    const int64_t even = div_up(count, p.rounds * channels * p.parts());
    p.part = align_up(even, p.grain);
    p.chunk = p.part * p.parts();
    p.rounds = div_up(count, p.chunk * channels);
    return p;
  }

  RK_HD constexpr int parts() const { return algorithm == Algorithm::two_shot ? ranks : 1; }
  // Returns the iterations between the first and the last verb of a round.
  RK_HD constexpr int64_t tail() const {
    return (algorithm == Algorithm::two_shot ? 2 : 1) * int64_t(ahead);
  }

  // Returns a range of the tensor, which may be empty at its end.
  RK_HD constexpr Span chunk_of(int channel, int64_t round) const {
    const int64_t first = (round * channels + channel) * chunk;
    return {first, max64(0, min64(chunk, count - first))};
  }
  // Returns a range that counts from the start of the chunk.
  RK_HD constexpr Span part_of(const Span& whole, int rank) const {
    const int64_t first = rank * part;
    return {first, max64(0, min64(part, whole.count - first))};
  }

  static constexpr int64_t kGrainBytes = 64;  // no two ranks write to the same cache line
};

// The plan of a tensor of rows. A channel owns its rows whole, for a mesh that processes a row
// after its reduction. A row takes one round, or several if it is longer than a slot.
struct RowPlan : DirectPlan {
  int64_t row = 0;     // elements
  int64_t pieces = 1;  // rounds per row

  // `count`: the elements of whole rows.
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
  // Returns true if the chunk of this round is the last one of its row.
  RK_HD constexpr bool ends_row(int64_t round) const { return (round + 1) % pieces == 0; }
};

// Runs one channel over a mesh. The verbs of a mesh take the chunk and the round, counted from the
// start of this call, and return a Verdict. The first verdict other than `ok` ends the collective.
// A mesh may have `finish`, which is called after the last verb of a round.
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
