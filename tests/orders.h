// Random orders of the ranks.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "core/orders.h"

namespace ringkern::test {

// Returns this many orders of `ranks` ranks. Like searched orders, they may contain a ring and its
// reverse, and a ring may begin at any rank.
inline RingOrders drawn_orders(int count, int ranks, std::mt19937_64& random) {
  RingOrders orders;
  std::vector<int> order(static_cast<size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  while (orders.count < count) {
    if (orders.count > 0 && random() % 3 == 0) std::reverse(order.begin(), order.end());
    else
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    if (!orders.add(order.data(), ranks)) break;
  }
  return orders;
}

// Returns one order for all channels; none if it is not an order.
inline RingOrders the_order(const std::vector<int>& order) {
  RingOrders orders;
  orders.add(order.data(), int(order.size()));
  return orders;
}

}  // namespace ringkern::test
