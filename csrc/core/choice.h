// Chooses the algorithm and protocol of a call that leaves them open, by the bytes of a rank's
// part. The lists come from ringkern/choose/tables.py. All ranks of a ring use the lists of rank 0,
// so that they choose alike.
#pragma once

#include "core/types.h"

namespace ringkern {

struct Way {
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;

  constexpr bool operator==(const Way&) const = default;
};

// The part of the choice that a call leaves open; it selects the list. `none`: nothing is open.
#define RK_CHOICES(X)                                                        \
  X(none)                                                                    \
  X(automatic)      /* an all-reduce without requirements */                 \
  X(in_rank_order)  /* one that combines from rank 0 up, on every rank */    \
  X(ring)           /* one by this algorithm, over any protocol */           \
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

// Returns true if a list may contain `way`: every way of a list must keep what its calls ask for.
constexpr bool may_list(Choice list, const Way& way) {
  switch (list) {
    case Choice::none: return false;
    case Choice::automatic: return true;
    case Choice::in_rank_order: return way.algorithm != Algorithm::ring;
    case Choice::others: return way.algorithm == Algorithm::ring;
    default: return list == choice_of(way.algorithm);
  }
}

// The lists for one kind of device. Sent between ranks as raw bytes.
struct WayTable {
  static constexpr int kRows = 8;
  struct Row {
    int64_t below = 0;  // bytes of a rank's part; the first matching row counts
    Way way;
    uint8_t unused[6] = {};
  };
  Row rows[kChoices][kRows];  // a list ends with the row whose `below` is kAnySize
  uint64_t whole_lines = 1;   // 0: LL128 is not available
  uint64_t in_place = 1;      // 0: two_shot over Simple is not available on CUDA

  static constexpr int64_t kAnySize = int64_t(1) << 62;  // more than the bytes of any tensor

  // Makes a table with one way for everything, the default until tables are set.
  constexpr WayTable() {
    for (int c = 0; c < kChoices; ++c) rows[c][0].below = kAnySize;
  }

  constexpr Way choose(Choice choice, int64_t bytes) const {
    const Row* row = rows[int(choice)];
    for (int last = kRows - 1; last > 0 && bytes >= row->below; --last) ++row;
    return row->way;
  }

  // Uses two_shot over Simple, which works on the tensors themselves, from the size on at which a
  // list leaves one_shot. A call that requests two_shot uses it from 64 KiB on: a guess, not
  // measured.
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

  // Sets the lists for CUDA ranks of which some have only host memory in common. Leaves out LL128
  // and the algorithms that use the tensors themselves. The sizes are measured for 2 ranks and
  // predicted for more: docs/design/choice.md.
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

  // Replaces LL128: a line of 128 bytes does not arrive whole over every link.
  constexpr void leave_out_lines() {
    whole_lines = 0;
    for (auto& list : rows)
      for (Row& row : list)
        if (row.way.protocol == Protocol::ll128) row.way.protocol = Protocol::simple;
  }

  // Returns true if the table is well-formed. A table from another process must be checked before
  // use.
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
