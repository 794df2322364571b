// The direct all-reduces without memory: how a tensor is cut, in which order the verbs come, and
// that no rank stages into a slot that another one has still to read.
#include "core/direct.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "check.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

// ---- the plan -----------------------------------------------------------------------------------

std::string shown(const DirectPlan& p, int element) {
  return std::string(name_of(p.algorithm)) + " of " + std::to_string(p.count) + " elements of " +
         std::to_string(element) + " bytes, " + std::to_string(p.ranks) + " ranks, " +
         std::to_string(p.channels) + " channels, chunks of " + std::to_string(p.chunk);
}

// Every element is in one chunk, and in one part of it; no chunk is more than a slot holds; two
// ranks never write to one cache line.
void check_cover(const DirectPlan& p, int element, int64_t slot_bytes) {
  const auto expect = [&](bool ok, const char* what) {
    if (!ok) FAIL(std::string(what) + ": " + shown(p, element));
  };
  expect(p.chunk * element <= slot_bytes, "a chunk is larger than a slot");
  expect(p.part * p.parts() == p.chunk, "parts do not make up a chunk");
  int64_t covered = 0;
  for (int64_t round = 0; round < p.rounds; ++round) {
    int64_t of_round = 0;
    for (int channel = 0; channel < p.channels; ++channel) {
      const Span chunk = p.chunk_of(channel, round);
      of_round += chunk.count;
      expect(chunk.count == 0 || chunk.first == covered, "a gap, or an overlap");
      expect(chunk.first * element % DirectPlan::kGrainBytes == 0, "a chunk is not aligned");
      expect(chunk.count >= 0 && chunk.count <= p.chunk, "the chunk's size");
      int64_t in_parts = 0;
      for (int rank = 0; rank < p.parts(); ++rank) {
        const Span part = p.part_of(chunk, rank);
        expect(part.count == 0 || part.first == in_parts, "a gap, or an overlap, in a chunk");
        expect(part.first * element % DirectPlan::kGrainBytes == 0, "a part is not aligned");
        expect(part.count >= 0, "a part of less than nothing");
        in_parts += part.count;
      }
      expect(in_parts == chunk.count, "parts do not cover the chunk");
      covered += chunk.count;
    }
    expect(of_round > 0, "an empty round");
  }
  expect(covered == p.count, "the tensor is not covered");
}

TEST_CASE("every element is in one chunk and in one part of it") {
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot})
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 16, 61, kMaxRanks})
      for (const int element : {1, 2, 4, 8})
        for (const int channels : {1, 2, 3, 8})
          for (const int64_t slot : {int64_t(1) << 16, int64_t(3584), int64_t(128) << 10}) {
            // A slot has a grain for each rank, or there is nothing to be had.
            if (algorithm == Algorithm::two_shot && slot < ranks * DirectPlan::kGrainBytes)
              continue;
            const int64_t whole = slot / element;
            for (const int64_t base :
                 {int64_t(0), int64_t(64), whole, channels * whole, 4 * channels * whole})
              for (int64_t off : {-65, -1, 0, 1, 7, 63, 65, 1000}) {
                const int64_t count = base + off;
                if (count < 0) continue;
                const auto p =
                    DirectPlan::make(algorithm, ranks, count, element, slot, channels, 1);
                check_cover(p, element, slot);
              }
          }
  const auto p = DirectPlan::make(Algorithm::two_shot, 4, 0, 4, 1 << 16, 1, 1);
  CHECK_EQ(p.rounds, 0);
}

// More rounds than slots would hold would only wait longer.
TEST_CASE("rounds are as few as possible and even") {
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot})
    for (const int64_t count : {1, 100, 32'768, 32'769, 65'537, 1'000'001}) {
      const auto p = DirectPlan::make(algorithm, 4, count, 4, 128 << 10, 1, 1);
      CHECK_EQ(p.rounds, div_up(count, 32'768));
      const int64_t last = p.chunk_of(0, p.rounds - 1).count;
      CHECK(p.chunk - last < p.rounds * p.parts() * p.grain);
    }
  // Offsets have 64 bits.
  const int64_t many = int64_t(5) << 40;
  const auto p = DirectPlan::make(Algorithm::two_shot, 3, many, 8, 128 << 10, 2, 1);
  const Span last = p.chunk_of(1, p.rounds - 1), before = p.chunk_of(0, p.rounds - 1);
  CHECK(before.first + before.count == many || last.first + last.count == many);
}

TEST_CASE("each row has its channel, and pieces that a slot holds") {
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot})
    for (const int ranks : {2, 3, 8})
      for (const int channels : {1, 3, 8})
        for (const int64_t rows : {1, 2, 3, 7, 17})
          for (const int64_t row : {1, 31, 256, 4097}) {
            const int64_t slot = 3584;
            const auto p = RowPlan::make(algorithm, ranks, rows * row, row, 4, slot, channels);
            CHECK(p.chunk * 4 <= slot && p.part * p.parts() == p.chunk);
            std::vector<int> seen(size_t(rows * row));
            for (int channel = 0; channel < channels; ++channel) {
              int64_t in_row = 0;
              for (int64_t round = 0; round < p.rounds; ++round) {
                const Span chunk = p.chunk_of(channel, round);
                for (int64_t i = 0; i < chunk.count; ++i) ++seen[size_t(chunk.first + i)];
                in_row += chunk.count;
                if (!p.ends_row(round)) continue;
                CHECK(in_row == row || in_row == 0);
                CHECK(chunk.count == 0 || (chunk.first + chunk.count) % row == 0);
                in_row = 0;
              }
              CHECK_EQ(in_row, int64_t(0));
            }
            CHECK(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
          }
}

// ---- the order of verbs -------------------------------------------------------------------------

// Writes down what it is asked to do: "S0" stage round 0, "R" reduce, "C" collect. Fails once.
struct Notes {
  size_t fails_at = 1000;
  std::vector<std::string> done = {};

  Verdict note(const char* verb, const DirectPlan& p, const Span& chunk, int64_t round) {
    CHECK_EQ(chunk.first, p.chunk_of(channel, round).first);
    CHECK_EQ(chunk.count, p.chunk_of(channel, round).count);
    done.push_back(verb + std::to_string(round));
    return done.size() == fails_at ? Verdict::timed_out : Verdict::ok;
  }
  Verdict stage(const DirectPlan& p, const Span& c, int64_t i) { return note("S", p, c, i); }
  Verdict reduce(const DirectPlan& p, const Span& c, int64_t i) { return note("R", p, c, i); }
  Verdict collect(const DirectPlan& p, const Span& c, int64_t i) { return note("C", p, c, i); }
  std::string text() const {
    std::string all;
    for (const std::string& verb : done) all += (all.empty() ? "" : " ") + verb;
    return all;
  }
  int channel = 0;
};

DirectPlan of_rounds(Algorithm algorithm, int ahead, int64_t rounds, int channels = 1) {
  const int64_t slot_bytes = 512, count = rounds * channels * slot_bytes / 8;
  const auto p = DirectPlan::make(algorithm, 2, count, 8, slot_bytes, channels, ahead);
  CHECK_EQ(p.rounds, rounds);
  return p;
}

TEST_CASE("the verbs of all rounds come in order") {
  const auto order = [](Algorithm algorithm, int ahead, int64_t rounds) {
    Notes notes;
    CHECK(run_direct(of_rounds(algorithm, ahead, rounds), 0, notes) == Verdict::ok);
    return notes.text();
  };
  constexpr Algorithm one = Algorithm::one_shot, two = Algorithm::two_shot;
  CHECK_EQ(order(one, 0, 0), "");
  CHECK_EQ(order(one, 0, 3), "S0 R0 S1 R1 S2 R2");
  CHECK_EQ(order(one, 1, 1), "S0 R0");
  CHECK_EQ(order(one, 1, 3), "S0 S1 R0 S2 R1 R2");
  CHECK_EQ(order(one, 2, 2), "S0 S1 R0 R1");
  CHECK_EQ(order(two, 0, 2), "S0 R0 C0 S1 R1 C1");
  CHECK_EQ(order(two, 1, 0), "");
  CHECK_EQ(order(two, 1, 1), "S0 R0 C0");
  CHECK_EQ(order(two, 1, 4), "S0 S1 R0 S2 R1 C0 S3 R2 C1 R3 C2 C3");
}

TEST_CASE("a verb that fails ends the call") {
  const auto plan = of_rounds(Algorithm::two_shot, 1, 3);
  for (size_t at = 1; at <= 9; ++at) {
    Notes notes{at};
    CHECK(run_direct(plan, 0, notes) == Verdict::timed_out);
    CHECK_EQ(notes.done.size(), at);
  }
  Notes all{10};
  CHECK(run_direct(plan, 0, all) == Verdict::ok);
}

TEST_CASE("a channel runs its own chunks") {
  const auto plan = of_rounds(Algorithm::one_shot, 1, 3, /*channels=*/2);
  for (const int channel : {0, 1}) {
    Notes notes;
    notes.channel = channel;
    CHECK(run_direct(plan, channel, notes) == Verdict::ok);
    CHECK_EQ(notes.text(), "S0 S1 R0 S2 R1 R2");
  }
}

// ---- reuse --------------------------------------------------------------------------------------

enum class Verb { stage, reduce, collect };

struct Step {
  Verb verb;
  uint64_t round;  // over the life of the communicator
  bool gives;      // writes its result to where the others will collect it
};

// The calls of a rank, one after another. `rounds[i]`: rounds of the i-th.
struct Program {
  std::vector<Step> steps;
  uint64_t base = 0;
  bool two_shot = false;

  Verdict add(Verb verb, int64_t i) {
    steps.push_back({verb, base + uint64_t(i), two_shot});
    return Verdict::ok;
  }
  Verdict stage(const DirectPlan&, const Span&, int64_t i) { return add(Verb::stage, i); }
  Verdict reduce(const DirectPlan&, const Span&, int64_t i) { return add(Verb::reduce, i); }
  Verdict collect(const DirectPlan&, const Span&, int64_t i) { return add(Verb::collect, i); }
  void call(Algorithm algorithm, int ahead, int64_t rounds) {
    two_shot = algorithm == Algorithm::two_shot;
    CHECK(run_direct(of_rounds(algorithm, ahead, rounds), 0, *this) == Verdict::ok);
    base += uint64_t(rounds);
  }
};

// Ranks that run the same program, each at any speed: a step waits only for the conditions of a
// mesh. A step begins and ends, and other ranks may move in between.
class Ranks {
 public:
  Ranks(const Program& program, int ranks, int slots)
      : steps_(program.steps), slots_(uint64_t(slots)), ranks_(static_cast<size_t>(ranks)) {}

  bool over() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [this](const Rank& r) { return r.at == steps_.size(); });
  }
  bool can_move(int rank) const {
    const Rank& r = ranks_[size_t(rank)];
    if (r.at == steps_.size()) return false;
    const Step& s = steps_[r.at];
    if (r.inside || s.verb == Verb::stage) return true;
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& peer) {
      return s.round < (s.verb == Verb::reduce ? peer.staged : peer.reduced);
    });
  }
  // Returns false if a slot is written that some rank has still to read.
  bool move(int rank) {
    Rank& r = ranks_[size_t(rank)];
    const Step& s = steps_[r.at];
    if (!r.inside) {
      r.inside = true;
      return s.verb != Verb::stage || is_free(rank, s.round);
    }
    r.inside = false;
    ++r.at;
    if (s.verb == Verb::stage) r.staged = s.round + 1;
    if (s.verb == Verb::reduce && s.gives) r.reduced = s.round + 1;
    return true;
  }

 private:
  struct Rank {
    size_t at = 0;
    bool inside = false;
    uint64_t staged = 0, reduced = 0;  // what the others see
  };

  // Nobody has still to read, or to fill with a result, what was in the slot of this round.
  bool is_free(int rank, uint64_t round) const {
    if (round < slots_) return true;
    const uint64_t before = round - slots_;
    for (size_t p = 0; p < ranks_.size(); ++p)
      for (size_t i = ranks_[p].at; i < steps_.size(); ++i) {
        const Step& s = steps_[i];
        const bool reads = s.verb == Verb::reduce ? p != size_t(rank)
                                                  : s.verb == Verb::collect && p == size_t(rank);
        if (reads && s.round <= before) return false;
      }
    return true;
  }

  const std::vector<Step>& steps_;
  const uint64_t slots_;
  std::vector<Rank> ranks_;
};

// `pick` chooses the next rank among those that can move. Returns true if nothing was overwritten.
template <class Pick>
bool safe(const Program& program, int ranks, int slots, Pick&& pick) {
  Ranks model(program, ranks, slots);
  while (!model.over()) {
    std::vector<int> able;
    for (int r = 0; r < ranks; ++r)
      if (model.can_move(r)) able.push_back(r);
    CHECK(!able.empty());  // or they wait for each other for ever
    if (!model.move(pick(able))) return false;
  }
  return true;
}

// Each rank in turn moves only when no other can; then any rank may be next.
bool always_safe(const Program& program, int ranks, int slots, uint64_t seed) {
  for (int slow = 0; slow < ranks; ++slow)
    if (!safe(program, ranks, slots, [slow](const std::vector<int>& able) {
          return able[0] == slow ? able.back() : able[0];
        }))
      return false;
  std::mt19937_64 random(seed);
  for (int n = 0; n < 40; ++n) {
    // With ranks that are quicker than others.
    std::vector<uint64_t> weight(static_cast<size_t>(ranks));
    for (uint64_t& w : weight) w = 1 + random() % (n % 2 ? 100 : 2);
    if (!safe(program, ranks, slots, [&](const std::vector<int>& able) {
          uint64_t sum = 0;
          for (const int r : able) sum += weight[size_t(r)];
          uint64_t left = random() % sum;
          for (const int r : able) {
            if (left < weight[size_t(r)]) return r;
            left -= weight[size_t(r)];
          }
          return able.back();
        }))
      return false;
  }
  return true;
}

TEST_CASE("no slot is overwritten before all have read it") {
  std::mt19937_64 random(1);
  for (const int ahead : {0, 1, 2})
    for (const int ranks : {2, 3, 5}) {
      const int slots = DirectPlan::slots(ahead);
      for (int kind = 0; kind < 3; ++kind)
        for (int n = 0; n < 8; ++n) {
          Program program;
          // Short calls, long ones and empty ones, of one algorithm or of both in turn.
          for (int call = 0; call < 8; ++call) {
            const bool two = kind == 1 || (kind == 2 && random() % 2);
            program.call(two ? Algorithm::two_shot : Algorithm::one_shot, ahead,
                         int64_t(random() % (n % 2 ? 3 : 9)));
          }
          CHECK(always_safe(program, ranks, slots, random()));
          // With one slot less, one_shot would be wrong, and this would notice.
          if (kind == 0 && program.base > 4 * uint64_t(slots))
            CHECK(!always_safe(program, ranks, slots - 1, random()));
        }
    }
}

}  // namespace
