// In which order the ranks stand on the ring: each channel may have an order of its own, so that
// together they use more of a machine's links, and each in both directions.
#pragma once

#include "core/config.h"

namespace ringkern {

// Orders of all ranks, in the direction of travel; where one begins says nothing about the ring.
// Packed, 4 bits a rank, because they go along with every launch of a kernel.
struct RingOrders {
  static constexpr int kMostRanks = 16;
  static constexpr int kMost = 8;

  int count = 0;  // channel c has order c % count; 0: all have 0, 1, ..., k-1, for any k
  uint64_t ranks[kMost] = {};      // of an order, by position
  uint64_t positions[kMost] = {};  // of an order, by rank

  constexpr bool operator==(const RingOrders&) const = default;

  // Adds the order of k ranks; false, and nothing is added, where it is none or there is no room.
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

  // Whether k ranks can stand like this: to be asked of orders that came from elsewhere.
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
  // To whom a rank sends on this channel, and from whom it receives.
  RK_HD constexpr int next(int channel, int rank, int k) const {
    const int p = position_of(channel, rank) + 1;
    return rank_at(channel, p == k ? 0 : p);
  }
  RK_HD constexpr int prev(int channel, int rank, int k) const {
    const int p = position_of(channel, rank);
    return rank_at(channel, (p == 0 ? k : p) - 1);
  }

  // How many channels in a row differ: channel c is like channel c % period().
  RK_HD constexpr int period() const { return count == 0 ? 1 : count; }
  // Whether one of two ranks sends to the other, on any channel.
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
