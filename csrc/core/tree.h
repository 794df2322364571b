// The order in which a program's shards are added (ringkern/shards.py): a fixed binary tree over
// them, whatever the number of ranks is.
//
// A node of level j adds up 2^j shards, from a multiple of 2^j on. The last one of a level may be
// shorter. Its operands are the two nodes of level j-1 below it, the lower shards first. With six:
//
//   level 3   0 1 2 3 4 5
//   level 2   0 1 2 3       4 5
//   level 1   0 1     2 3   4 5
//   level 0   0   1   2  3  4   5
//
// A rank has consecutive shards, and adds up the nodes that lie wholly among them. The nodes of all
// ranks, in rank order, are then added up by the same rule: a node waits until the one on its right
// has come. So each sum has the same two operands for any number of ranks.
#pragma once

#include "core/config.h"

namespace ringkern {

// The sum of consecutive shards.
struct ShardNode {
  int first = 0, count = 0;

  constexpr bool operator==(const ShardNode&) const = default;
  RK_HD constexpr int end() const { return first + count; }
};

struct ShardTree {
  static constexpr int kMostShards = 1024;

  int shards = 1;

  // Returns true if the order is that from shard 0 up: (0 + 1) + 2.
  RK_HD constexpr bool is_from_first_to_last() const { return shards <= 3; }

  // Returns the shards of a rank. The first ranks have one more where they cannot be equal.
  RK_HD constexpr ShardNode run_of(int rank, int ranks) const {
    const int each = shards / ranks, more = shards % ranks;
    return {rank * each + (rank < more ? rank : more), each + (rank < more ? 1 : 0)};
  }

  // Returns the sums that a shard completes where each is a rank's only one, as bits: bit j stands
  // for a sum with the node of level j on the left. The lowest one comes first.
  RK_HD constexpr unsigned completed_by(int shard) const {
    const auto at = unsigned(shard);
    return shard + 1 == shards ? at : at & ~(at + 1);
  }

  // Returns true if a node of the tree adds these two, which are nodes and neighbours.
  RK_HD constexpr bool adds(const ShardNode& left, const ShardNode& right) const {
    return left.first % (2 * left.count) == 0 &&
           (right.count == left.count || right.end() == shards);
  }
};

// The nodes whose sum with the next one on their right is not known yet, from left to right.
class OpenNodes {
 public:
  // Two nodes of each level but the highest, on the way from a first shard to a last one.
  static constexpr int kMost = 20;

  RK_HD constexpr explicit OpenNodes(ShardTree tree) : tree_(tree) {}

  // Takes the next node, and returns how many sums it completes. Each replaces the last two open
  // nodes.
  RK_HD constexpr int take(const ShardNode& next) {
    nodes_[count_] = next;
    ++count_;
    int sums = 0;
    while (count_ > 1 && tree_.adds(nodes_[count_ - 2], nodes_[count_ - 1])) {
      --count_;
      nodes_[count_ - 1].count += nodes_[count_].count;
      ++sums;
    }
    return sums;
  }

  RK_HD constexpr int count() const { return count_; }
  RK_HD constexpr const ShardNode& operator[](int i) const { return nodes_[i]; }

 private:
  ShardTree tree_;
  ShardNode nodes_[kMost];
  int count_ = 0;
};

}  // namespace ringkern
