// How an all-reduce over several hosts is cut: whatever the sizes, each element is in one stage,
// and in one shard of it.
#include "hosts/stages.h"

#include <random>

#include "check.h"

using namespace ringkern;

namespace {

void check(const Stages& p, int element_bytes, int most_rails, bool inside) {
  CHECK(p.rails == 1 || p.rails == most_rails);
  CHECK(p.number() <= Stages::kMost + 1);
  if (!inside) CHECK(p.long_stages <= 1);
  CHECK_EQ(p.number() == 0, p.count == 0);
  int64_t next = 0;
  for (int64_t i = 0; i < p.number(); ++i) {
    const Stage stage = p.at(i);
    CHECK(stage.shard > 0);
    if (p.has_rest() && i == 0) {
      // Fewer elements than rails are left over, at the end of the tensor.
      CHECK_EQ(stage.rails, 1);
      CHECK(stage.count() < p.rails);
      CHECK_EQ(stage.offset, p.whole);
      CHECK_EQ(stage.offset + stage.count(), p.count);
      continue;
    }
    CHECK_EQ(stage.rails, p.rails);
    CHECK_EQ(stage.offset, next);
    next += stage.count();
    CHECK_EQ(stage.offset * element_bytes % Stages::kGrainBytes, 0);
    if (i + 1 < p.number()) {  // and so does each of its shards
      CHECK_EQ(stage.shard, p.shard);
      CHECK_EQ(stage.shard * element_bytes % Stages::kGrainBytes, 0);
    } else {
      CHECK(stage.shard <= p.shard);
    }
  }
  CHECK_EQ(next, p.whole);
}

TEST_CASE("each element is in one stage") {
  std::mt19937_64 random(1);
  const auto upto = [&](int64_t most) { return int64_t(random() % uint64_t(most + 1)); };
  int with_rest = 0, cut = 0, over_all = 0;
  for (int i = 0; i < 200'000; ++i) {
    const int bytes = 1 << upto(3), rails = int(1 + upto(16)), hosts = int(2 + upto(30));
    const int64_t count = upto(int64_t(1) << upto(40));
    const InterHostCost cost{upto(int64_t(1) << upto(20)), 1 + upto(int64_t(1) << upto(24)),
                             upto(1) == 1};
    const bool inside = rails > 1 || upto(1) == 1;
    const Stages p = Stages::make(count, bytes, rails, hosts, inside, cost);
    CHECK_EQ(p.count, count);
    check(p, bytes, rails, inside);
    with_rest += p.has_rest(), cut += p.long_stages > 1, over_all += p.rails > 1;
  }
  CHECK(with_rest > 1000 && cut > 1000 && over_all > 1000);
}

// All small sizes, where remainders and rounding matter most.
TEST_CASE("each element is in one stage of any small tensor") {
  for (int64_t count = 0; count < 600; ++count)
    for (const int bytes : {1, 2, 4, 8})
      for (const int rails : {1, 2, 3, 7})
        for (const int64_t stage_bytes : {1, 100, 1 << 20})
          check(Stages::make(count, bytes, rails, 2, true, {0, stage_bytes, false}), bytes, rails,
                true);
  CHECK_EQ(Stages::make(0, 4, 2, 2, true, {}).number(), 0);
  const Stages two = Stages::make(2, 4, 3, 2, true, {0, 1, false});  // fewer than rails
  CHECK_EQ(two.number(), 1);
  CHECK_EQ(two.at(0).offset, 0);
  CHECK_EQ(two.at(0).count(), 2);
}

constexpr int64_t K = 1 << 10, M = 1 << 20;

//  bytes, hosts, ranks of the smallest host, and of the largest, the inter-host cost: rails, stages
struct Row {
  int64_t bytes;
  int hosts, ranks, most_ranks;
  InterHostCost cost;
  int rails, stages;
};
// clang-format off
constexpr Row kRows[] = {
    {4 * M - 8,     2, 2, 2, {M, 2 * M, false}, 1, 1},
    {4 * M,         2, 2, 2, {M, 2 * M, false}, 2, 1},
    {16 * M - 8,    2, 2, 2, {M, 2 * M, false}, 2, 1},
    {16 * M,        2, 2, 2, {M, 2 * M, false}, 2, 2},
    {36 * M - 8,    2, 2, 2, {M, 2 * M, false}, 2, 2},
    {36 * M,        2, 2, 2, {M, 2 * M, false}, 2, 3},
    {64 * M,        2, 2, 2, {M, 2 * M, false}, 2, 4},
    {1024 * M - 8,  2, 2, 2, {M, 2 * M, false}, 2, 15},
    {1024 * M,      2, 2, 2, {M, 2 * M, false}, 2, 16},
    {4096 * M,      2, 2, 2, {M, 2 * M, false}, 2, 16},
    {6 * M - 8,     3, 2, 2, {M, 2 * M, false}, 1, 1},
    {6 * M,         3, 2, 2, {M, 2 * M, false}, 2, 1},
    {64 * K - 8,    2, 2, 4, {16 * K, 512 * K, false}, 1, 1},
    {64 * K,        2, 2, 4, {16 * K, 512 * K, false}, 2, 1},
    {16 * M,        2, 2, 4, {16 * K, 512 * K, false}, 2, 4},
    {16 * M,        8, 8, 8, {16 * K, 512 * K, false}, 8, 2},
    {16 * M,        2, 1, 2, {16 * K, 512 * K, false}, 1, 4},
    {16 * M,        2, 1, 1, {16 * K, 512 * K, false}, 1, 1},
    {K,             2, 8, 8, {0, 3 * M, true}, 8, 1},
    {24 * M,        2, 8, 8, {0, 3 * M, true}, 8, 2},
    {24 * M,        3, 8, 8, {0, 3 * M, true}, 8, 2},
    {24 * M,        4, 8, 8, {0, 3 * M, true}, 8, 1},
    {36 * M,        4, 8, 8, {0, 3 * M, true}, 8, 2},
    {120 * M - 8, 1000, 8, 8, {0, 3 * M, true}, 8, 1},
    {120 * M,     1000, 8, 8, {0, 3 * M, true}, 8, 2},
    {4000 * M,    1000, 8, 8, {16 * K, 512 * K, false}, 8, 2},
};
// clang-format on

TEST_CASE("a tensor is cut as worked out by hand") {
  for (const Row& row : kRows) {
    const bool inside = row.most_ranks > 1;
    const Stages p = Stages::make(row.bytes / 8, 8, row.ranks, row.hosts, inside, row.cost);
    CHECK_EQ(p.rails, row.rails);
    CHECK_EQ(p.long_stages, row.stages);
  }
}

// All values must agree, because every rank computes them by itself.
static_assert(Stages::make(10, 4, 2, 2, true, {0, 16, false}).number() == 1);
static_assert(Stages::make(11, 4, 2, 2, true, {0, 16, false}).number() == 2);
static_assert(Stages::make(11, 4, 2, 2, true, {0, 16, false}).at(1).count() == 10);

}  // namespace
