// Tables of ways: what is chosen from them, and which are none.
#include "core/choice.h"

#include <cstring>

#include "check.h"

using namespace ringkern;

namespace {

constexpr Way kLL{Algorithm::ring, Protocol::ll};
constexpr Way kOneShot{Algorithm::one_shot, Protocol::simple};
constexpr Way kSimple{Algorithm::ring, Protocol::simple};

WayTable::Row row(int64_t below, Way way) { return {below, way}; }

TEST_CASE("a row of a table is for all sizes below it") {
  WayTable table;
  auto* list = table.rows[int(Choice::automatic)];
  list[0] = row(100, kLL);
  list[1] = row(1000, kOneShot);
  list[2] = row(WayTable::kAnySize, kSimple);
  CHECK(table.valid());
  for (const int64_t bytes : {0, 1, 99}) CHECK(table.choose(Choice::automatic, bytes) == kLL);
  for (const int64_t bytes : {100, 999}) CHECK(table.choose(Choice::automatic, bytes) == kOneShot);
  for (const int64_t bytes : {int64_t(1000), int64_t(1) << 50})
    CHECK(table.choose(Choice::automatic, bytes) == kSimple);
  for (const Choice other : {Choice::ring, Choice::others, Choice::in_rank_order})
    CHECK(table.choose(other, 5) == Way{});
}

TEST_CASE("a full list is valid if its last row is for any size") {
  WayTable table;
  auto* list = table.rows[int(Choice::others)];
  for (int r = 0; r < WayTable::kRows; ++r) list[r] = row(10 * (r + 1), r % 2 ? kLL : kSimple);
  CHECK(!table.valid());
  list[WayTable::kRows - 1].below = WayTable::kAnySize;
  CHECK(table.valid());
  CHECK(table.choose(Choice::others, 69) == kSimple);
  CHECK(table.choose(Choice::others, 70) == kLL);
}

// `choose` stays in range for any bytes from another process.
TEST_CASE("a table with a bad row is not valid") {
  const WayTable good;
  CHECK(good.valid());
  for (int list = 0; list < kChoices; ++list) {
    const auto bad = [&](auto&& change) {
      WayTable table;
      change(table.rows[list]);
      CHECK(!table.valid());
    };
    bad([](WayTable::Row* l) { l[0].below = 100; });  // and then 0
    bad([](WayTable::Row* l) { l[0].below = -1; });
    bad([](WayTable::Row* l) { l[0].below = WayTable::kAnySize + 1; });
    bad([](WayTable::Row* l) { l[0].way.algorithm = Algorithm(kAlgorithms); });
    bad([](WayTable::Row* l) { l[0].way.protocol = Protocol(kProtocols); });
    bad([](WayTable::Row* l) { l[0].below = l[1].below = 7; });
    bad([](WayTable::Row* l) { l[0].below = 9, l[1].below = 8, l[2].below = WayTable::kAnySize; });
  }
  WayTable anything;
  std::memset(static_cast<void*>(&anything), 0xff, sizeof anything);
  CHECK(!anything.valid());
  anything.choose(Choice::others, WayTable::kAnySize);
}

TEST_CASE("every algorithm has its list") {
  CHECK(choice_of(Algorithm::ring) == Choice::ring);
  CHECK(choice_of(Algorithm::one_shot) == Choice::one_shot);
  CHECK(choice_of(Algorithm::two_shot) == Choice::two_shot);
  static_assert(kAlgorithms == 3);
}

}  // namespace
