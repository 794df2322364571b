// The tree over shards: each of any number of ranks adds up its nodes, then the nodes of all ranks
// are added up, and every sum has the operands of the tree's definition.
#include "core/tree.h"

#include <bit>
#include <string>
#include <vector>

#include "check.h"

using namespace ringkern;

namespace {

// Returns the tree over shards as a text, by its other definition, from the top: the left operand
// has the largest power of two that is less than all.
std::string expected(int first, int count) {
  if (count == 1) return std::to_string(first);
  const int left = int(std::bit_floor(unsigned(count - 1)));
  return "(" + expected(first, left) + "+" + expected(first + left, count - left) + ")";
}

// A rank that adds up texts. `kept` is checked against the open nodes.
struct Adder {
  OpenNodes open;
  std::vector<std::string> kept;

  explicit Adder(ShardTree tree) : open(tree) {}

  void take(const ShardNode& node, const std::string& text) {
    kept.push_back(text);
    for (int sums = open.take(node); sums > 0; --sums) {
      const std::string right = kept.back();
      kept.pop_back();
      kept.back() = "(" + kept.back() + "+" + right + ")";
    }
    CHECK_EQ(int(kept.size()), open.count());
  }
};

std::string over_ranks(ShardTree tree, int ranks, int& nodes) {
  Adder all(tree);
  int next = 0;
  nodes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const ShardNode run = tree.run_of(rank, ranks);
    CHECK_EQ(run.first, next);
    CHECK(run.count > 0);
    next = run.end();
    Adder mine(tree);
    for (int shard = run.first; shard < run.end(); ++shard)
      mine.take({shard, 1}, std::to_string(shard));
    for (int i = 0; i < mine.open.count(); ++i)
      all.take(mine.open[i], mine.kept[size_t(i)]), ++nodes;
  }
  CHECK_EQ(next, tree.shards);
  REQUIRE(all.kept.size() == 1);
  return all.kept[0];
}

TEST_CASE("the sums that a shard completes, if each rank has one, are those of the open nodes") {
  for (int shards = 1; shards <= ShardTree::kMostShards; shards += shards < 70 ? 1 : 53) {
    const ShardTree tree{shards};
    OpenNodes open(tree);
    bool in_order = true;
    for (int shard = 0; shard < shards; ++shard) {
      const unsigned before = unsigned(open.count()), completed = tree.completed_by(shard);
      const int sums = open.take({shard, 1});
      CHECK_EQ(std::popcount(completed), sums);
      in_order = in_order && sums == (shard > 0);
      // The open nodes are those of the bits of a shard's number.
      CHECK_EQ(unsigned(std::popcount(unsigned(shard))), before);
      CHECK_EQ(completed & unsigned(shard), completed);
    }
    CHECK_EQ(tree.is_from_first_to_last(), in_order);
  }
}

TEST_CASE("up to 64 shards on up to 16 ranks are added in one order") {
  for (int shards = 1; shards <= 64; ++shards)
    for (int ranks = 1; ranks <= 16 && ranks <= shards; ++ranks) {
      int nodes = 0;
      const std::string sum = over_ranks({shards}, ranks, nodes);
      if (sum != expected(0, shards))
        FAIL_CHECK(std::to_string(shards) + " shards on " + std::to_string(ranks) +
                   " ranks: " + sum);
      if (std::has_single_bit(unsigned(shards)) && std::has_single_bit(unsigned(ranks)))
        CHECK_EQ(nodes, ranks);
    }
}

TEST_CASE("the most shards on any number of ranks are added in one order") {
  constexpr int kMost = ShardTree::kMostShards;
  for (const int ranks : {1, 2, 3, 5, 7, 48, 61, 341, 1000, kMost}) {
    int nodes = 0;
    CHECK(over_ranks({kMost}, ranks, nodes) == expected(0, kMost));
    CHECK(over_ranks({kMost - 1}, ranks < kMost ? ranks : ranks - 1, nodes) ==
          expected(0, kMost - 1));
  }
}

TEST_CASE("the open nodes of a whole tree are of different levels") {
  for (int shards = 1; shards <= ShardTree::kMostShards; ++shards) {
    OpenNodes open{ShardTree{shards}};
    for (int shard = 0; shard < shards; ++shard) {
      CHECK(open.count() < std::bit_width(unsigned(shards)));
      open.take({shard, 1});
    }
  }
}

TEST_CASE("the shares of the ranks differ by one shard at most, and the first ranks have more") {
  const ShardTree eight{8};
  CHECK(eight.run_of(0, 3) == ShardNode{0, 3});
  CHECK(eight.run_of(1, 3) == ShardNode{3, 3});
  CHECK(eight.run_of(2, 3) == ShardNode{6, 2});
}

}  // namespace
