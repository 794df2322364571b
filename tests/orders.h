// Orders of the ranks, drawn.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "core/orders.h"

namespace ringkern::test {

// So many, of `ranks` ranks; in them, as in those that are searched for, a ring and its reverse may
// both be, and one that begins anywhere.
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

// One, for all channels; none, if it is no order.
inline RingOrders the_order(const std::vector<int>& order) {
  RingOrders orders;
  orders.add(order.data(), int(order.size()));
  return orders;
}

}  // namespace ringkern::test
