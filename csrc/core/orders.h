// The order of the ranks on the ring. Each channel may have its own order, so that the channels
// together use more links of a machine, and each link in both directions.
#pragma once

#include "core/config.h"

namespace ringkern {

// The orders of all channels, in the direction of travel. The starting rank of an order is
// arbitrary. Packed, 4 bits per rank, because every kernel launch carries them.
struct RingOrders {
  static constexpr int kMostRanks = 16;
  static constexpr int kMost = 8;

  int count = 0;  // channel c has order c % count; 0: every channel has 0, 1, ..., k-1, for any k
  uint64_t ranks[kMost] = {};      // for each order: rank by position
  uint64_t positions[kMost] = {};  // for each order: position by rank

  constexpr bool operator==(const RingOrders&) const = default;

  // Adds the order of k ranks. Returns false and adds nothing if it is not a permutation or there
  // is no room.
  constexpr bool add(const int* order, int k) {
    if (k < 1 || k > kMostRanks || count < 0 || count >= kMost) return false;
    uint64_t by_position = 0, by_rank = 0;
    uint32_t seen = 0;
    for (int p = 0; p < k; ++p) {
      const int rank = order[p];
      if (rank < 0 || rank >= k || (seen >> rank & 1) != 0) return false;
      seen |= uint32_t(1) << rank;
      by_position |= uint64_t(rank) << 4 * p;
      by_rank |= uint64_t(p) << 4 * rank;
    }
    ranks[count] = by_position;
    positions[count] = by_rank;
    ++count;
    return true;
  }

  // Returns true if these are orders of k ranks. Checks orders that another process has sent.
  constexpr bool valid(int k) const {
    if (count < 0 || count > kMost || (count > 0 && (k < 1 || k > kMostRanks))) return false;
    RingOrders same;
    for (int i = 0; i < count; ++i) {
      int order[kMostRanks] = {};
      for (int p = 0; p < k; ++p) order[p] = nibble(ranks[i], p);
      if (!same.add(order, k)) return false;
    }
    return same == *this;
  }

  RK_HD constexpr int rank_at(int channel, int position) const {
    return count == 0 ? position : nibble(ranks[index(channel)], position);
  }
  RK_HD constexpr int position_of(int channel, int rank) const {
    return count == 0 ? rank : nibble(positions[index(channel)], rank);
  }
  // Returns the rank that `rank` sends to (next) or receives from (prev) on this channel.
  RK_HD constexpr int next(int channel, int rank, int k) const {
    const int p = position_of(channel, rank) + 1;
    return rank_at(channel, p == k ? 0 : p);
  }
  RK_HD constexpr int prev(int channel, int rank, int k) const {
    const int p = position_of(channel, rank);
    return rank_at(channel, (p == 0 ? k : p) - 1);
  }

  // Returns the number of distinct orders: channel c has the order of channel c % period().
  RK_HD constexpr int period() const { return count == 0 ? 1 : count; }
  // Returns true if one of two ranks sends to the other on any channel.
  constexpr bool are_neighbours(int a, int b, int k) const {
    for (int i = 0; i < period(); ++i)
      if (next(i, a, k) == b || prev(i, a, k) == b) return true;
    return false;
  }

 private:
  RK_HD constexpr unsigned index(int channel) const { return unsigned(channel) % unsigned(count); }
  RK_HD static constexpr int nibble(uint64_t packed, int at) { return int(packed >> 4 * at & 15); }
};

}  // namespace ringkern
