// Chooses how a collective goes where its caller leaves that open: by the bytes of a rank's part,
// from lists of ringkern/choose/tables.py. A ring takes rank 0's lists, so that all ranks choose
// alike whatever each of them was told.
#pragma once

#include "core/types.h"

namespace ringkern {

struct Way {
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;

  constexpr bool operator==(const Way&) const = default;
};

// What is left open, and so which list it is chosen from; `none`: nothing is.
#define RK_CHOICES(X)                                                        \
  X(none)                                                                    \
  X(automatic)      /* an all-reduce of which nothing is asked */            \
  X(in_rank_order)  /* one whose every element is combined from rank 0 up */ \
  X(ring)           /* one by this algorithm, over whichever protocol */     \
  X(one_shot)                                                                \
  X(two_shot)                                                                \
  X(others)         /* every other collective */

enum class Choice : uint8_t { RK_CHOICES(RK_ENUMERATOR) };
inline constexpr int kChoices = 0 RK_CHOICES(RK_ONE);

constexpr const char* name_of(Choice v) {
  switch (v) {
#define RK_CASE(e) case Choice::e: return #e;
    RK_CHOICES(RK_CASE)
#undef RK_CASE
  }
  return "?";
}

constexpr Choice choice_of(Algorithm a) {
  return a == Algorithm::ring       ? Choice::ring
         : a == Algorithm::one_shot ? Choice::one_shot
                                    : Choice::two_shot;
}

// Tells if a list may have a way: each has only ways that keep what its calls ask for.
constexpr bool may_list(Choice list, const Way& way) {
  switch (list) {
    case Choice::none: return false;
    case Choice::automatic: return true;
    case Choice::in_rank_order: return way.algorithm != Algorithm::ring;
    case Choice::others: return way.algorithm == Algorithm::ring;
    default: return list == choice_of(way.algorithm);
  }
}

// The lists of one kind of device. Goes from rank to rank as it is.
struct WayTable {
  static constexpr int kRows = 8;
  struct Row {
    int64_t below = 0;  // bytes of a rank's part; the first row that fits counts
    Way way;
    uint8_t unused[6] = {};
  };
  Row rows[kChoices][kRows];  // a list ends with the row whose `below` is kAnySize
  uint64_t whole_lines = 1;   // 0: LL128 is not there
  uint64_t in_place = 1;      // 0: nor, on CUDA, two_shot over Simple

  static constexpr int64_t kAnySize = int64_t(1) << 62;  // more than any tensor has

  // A table of one way for everything: what is there before anybody has chosen.
  constexpr WayTable() {
    for (int c = 0; c < kChoices; ++c) rows[c][0].below = kAnySize;
  }

  constexpr Way choose(Choice choice, int64_t bytes) const {
    const Row* row = rows[int(choice)];
    for (int last = kRows - 1; last > 0 && bytes >= row->below; --last) ++row;
    return row->way;
  }

  // Lets all-reduces take the tensors themselves (two_shot over Simple) wherever they would not go
  // by one_shot, and those that ask for two_shot from some size on. Between GPUs nothing was
  // measured: the size is a guess.
  constexpr void take_tensors() {
    constexpr Way kTensors{Algorithm::two_shot, Protocol::simple};
    for (const Choice list : {Choice::automatic, Choice::in_rank_order}) {
      Row* row = rows[int(list)];
      while (row->way.algorithm == Algorithm::one_shot && row->below != kAnySize) ++row;
      *row = {kAnySize, kTensors};
    }
    Row* two_shot = rows[int(Choice::two_shot)];
    two_shot[0].below = 64 << 10;
    two_shot[1] = {kAnySize, kTensors};
  }

  // Where, on CUDA, some ranks have only host memory in common: leaves out what takes the tensors,
  // and LL128. The sizes are measured for 2 ranks and predicted for more: docs/design/choice.md.
  constexpr void go_over_host(int ranks) {
    constexpr Way kOne{Algorithm::one_shot, Protocol::ll}, kTwo{Algorithm::two_shot, Protocol::ll};
    constexpr Way kLines{Algorithm::ring, Protocol::ll}, kSimple{Algorithm::ring, Protocol::simple};
    const int64_t once = (512 << 10) / (ranks * ranks), lines = int64_t(ranks) * (64 << 10);
    const auto set = [&](Choice list, Row first, Row second, Row third = {}) {
      rows[int(list)][0] = first, rows[int(list)][1] = second, rows[int(list)][2] = third;
    };
    const Row last{kAnySize, kSimple};
    set(Choice::automatic, {lines, kLines}, last);
    set(Choice::ring, {lines, kLines}, last);
    set(Choice::others, {lines, kLines}, last);
    if (ranks > 2) set(Choice::automatic, {once, kOne}, {lines, kTwo}, last);
    set(Choice::in_rank_order, {once, kOne}, {kAnySize, kTwo});
    set(Choice::two_shot, {kAnySize, kTwo}, {});
    in_place = 0;
    leave_out_lines();
  }

  // Leaves LL128 out: a line of 128 bytes does not arrive whole over every link.
  constexpr void leave_out_lines() {
    whole_lines = 0;
    for (auto& list : rows)
      for (Row& row : list)
        if (row.way.protocol == Protocol::ll128) row.way.protocol = Protocol::simple;
  }

  // What comes from another process is looked at before it is used.
  constexpr bool valid() const {
    for (const auto& list : rows) {
      int64_t below = 0;
      for (int r = 0; below != kAnySize; ++r) {
        if (r == kRows || list[r].below <= below || list[r].below > kAnySize ||
            int(list[r].way.algorithm) >= kAlgorithms || int(list[r].way.protocol) >= kProtocols)
          return false;
        below = list[r].below;
      }
    }
    return true;
  }
};
static_assert(sizeof(WayTable::Row) == 16);

}  // namespace ringkern
