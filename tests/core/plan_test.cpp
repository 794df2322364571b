// Properties of a plan that Python does not see: the slices of a chunk and the layout of a segment.
#include "core/plan.h"

#include <cstdint>
#include <vector>

#include "check.h"
#include "core/trace.h"
#include "orders.h"

namespace ringkern {
namespace {

constexpr Geometry geometry(int channels, int slots, int64_t simple, int64_t ll, int64_t ll128) {
  Geometry g;
  g.channels = channels, g.slots = slots;
  g.slot_bytes[int(Protocol::simple)] = simple;
  g.slot_bytes[int(Protocol::ll)] = ll;
  g.slot_bytes[int(Protocol::ll128)] = ll128;
  return g;
}

const std::vector<Geometry>& geometries() {
  static const std::vector<Geometry> all = {
      geometry(1, 2, 16, 32, 128), geometry(1, 3, 48, 112, 384),
      geometry(3, 8, 64 << 10, 16 << 10, 64 << 10), geometry(2, 64, 80, 48, 4800 * 128),
      geometry(64, 8, 512 << 10, 64 << 10, 614400)};
  return all;
}

// Calls f with every protocol and element size, some worker counts and every geometry.
template <class F>
void for_each_plan(F&& f) {
  for (const Geometry& g : geometries())
    for (int p = 0; p < kProtocols; ++p)
      for (const int element_bytes : {1, 2, 4, 8})
        for (const int workers : {1, 32, 512, 640})
          f(g,
            Plan::make(Collective::all_reduce, Protocol(p), 4, int64_t(1) << 40, element_bytes,
                       workers, g),
            element_bytes);
}

// All lengths of short chunks, and of long ones those at the edges and some between.
std::vector<int64_t> lengths(const Plan& plan) {
  std::vector<int64_t> all;
  for (int64_t n = 0; n <= min64(plan.chunk, 70); ++n) all.push_back(n);
  for (const int64_t edge : {plan.slice_least, plan.slice_most, plan.chunk / 2, plan.chunk})
    for (int64_t n = edge - 3; n <= edge + 3; ++n)
      if (n >= 0 && n <= plan.chunk) all.push_back(n);
  for (int64_t n = 71; n < plan.chunk; n = n * 3 / 2 + 1) all.push_back(n);
  return all;
}

TEST_CASE("slices tile a chunk") {
  for_each_plan([](const Geometry& g, const Plan& plan, int element_bytes) {
    for (const int64_t n : lengths(plan)) {
      const int slices = plan.slices(n);
      CHECK(slices >= 1 && slices <= g.slices(plan.protocol));  // an empty chunk takes its step
      int64_t at = 0;
      for (int i = 0; i < slices; ++i) {
        const Slice s = plan.slice(n, i);
        CHECK_EQ(s.first, at);
        CHECK(s.count > 0 || n == 0);
        CHECK(s.count * element_bytes <= g.slot_data_bytes(plan.protocol));
        CHECK(s.first * element_bytes % 16 == 0);  // as well aligned as its chunk
        at += s.count;
      }
      CHECK_EQ(at, n);
    }
  });
}

TEST_CASE("a trace counts the slices of every step") {
  for_each_plan([](const Geometry&, Plan plan, int) {
    plan.count = 3 * plan.loop_span() / 2 + 1;
    plan.loops = div_up(plan.count, plan.loop_span());
    CHECK_EQ(plan.loops, int64_t(2));
    for (const TraceEntry& e : trace(plan, 1, plan.channels - 1))
      CHECK_EQ(e.slices, plan.slices(e.chunk.count));
  });
}

// The next rank receives exactly the slots that a rank sends, in every loop.
TEST_CASE("both ends of a link agree on its slots") {
  std::mt19937_64 random(1);
  const Geometry g = geometry(2, 8, 64, 64, 128);
  for (int c = 0; c < kCollectives; ++c)
    for (int p = 0; p < kProtocols; ++p)
      for (int ranks = 2; ranks <= 6; ++ranks)
        for (int root = 0; root < (is_chain(Collective(c)) ? ranks : 1); ++root)
          for (const int orders : {0, 1, Collective(c) == Collective::send_recv ? 1 : 3}) {
            Plan plan = Plan::make(Collective(c), Protocol(p), ranks, 1000, 4, 1, g, 0, root);
            plan.orders = test::drawn_orders(orders, ranks, random);
            const auto slots = [&](int rank, bool (*of)(Verb)) {
              std::vector<int> all;
              for (const TraceEntry& e : trace(plan, rank, 1))
                if (of(e.verb)) all.push_back(e.slices);
              return all;
            };
            int links = 0;
            for (int rank = 0; rank < ranks; ++rank) {
              const std::vector<int> sent = slots(rank, &sends);
              CHECK(sent == slots(plan.next(1, rank), &receives));
              CHECK(sent.empty() || int64_t(sent.size()) >= plan.loops);
              links += !sent.empty();
            }
            const int hops = Collective(c) == Collective::send_recv ? 1
                             : is_chain(Collective(c))              ? ranks - 1
                                                                    : ranks;
            CHECK_EQ(links, hops);
          }
}

// The smallest and the largest possible numbers.
TEST_CASE("an order of the ranks is a ring") {
  std::mt19937_64 random(2);
  for (int k = 1; k <= RingOrders::kMostRanks; ++k)
    for (int n = 0; n <= RingOrders::kMost; ++n) {
      const RingOrders orders = test::drawn_orders(n, k, random);
      CHECK_EQ(orders.count, n);
      CHECK(orders.valid(k) && (n == 0 || !orders.valid(k + 1)));
      for (int channel = 0; channel < kMaxChannels; ++channel) {
        int rank = orders.rank_at(channel, 0);
        for (int hop = 0; hop < k; ++hop) {
          CHECK_EQ(orders.position_of(channel, rank), hop);
          CHECK_EQ(orders.rank_at(channel, hop), rank);
          const int next = orders.next(channel, rank, k);
          CHECK_EQ(orders.prev(channel, next, k), rank);
          CHECK(orders.are_neighbours(rank, next, k) && orders.are_neighbours(next, rank, k));
          const int like = channel % orders.period();
          CHECK_EQ(orders.next(like, rank, k), next);
          rank = next;
        }
        CHECK_EQ(rank, orders.rank_at(channel, 0));
      }
    }
}

TEST_CASE("impossible orders are refused") {
  const int order[] = {2, 0, 3, 1}, twice[] = {2, 0, 2, 1}, beyond[] = {2, 0, 4, 1},
            less[] = {2, -1, 3, 1}, many[17] = {};
  RingOrders orders;
  CHECK(!orders.add(twice, 4) && !orders.add(beyond, 4) && !orders.add(less, 4));
  CHECK(!orders.add(order, 0) && !orders.add(many, 17));
  CHECK(orders == RingOrders() && orders.valid(kMaxRanks));
  for (int i = 0; i < RingOrders::kMost; ++i) CHECK(orders.add(order, 4));
  CHECK(!orders.add(order, 4));  // one too many
  // Bits that came from elsewhere.
  CHECK(orders.valid(4) && !orders.valid(3) && !orders.valid(5));
  const auto broken = [&](auto&& change) {
    RingOrders bad = orders;
    change(bad);
    return !bad.valid(4);
  };
  CHECK(broken([](RingOrders& o) { o.count = 9; }) && broken([](RingOrders& o) { o.count = -1; }));
  CHECK(broken([](RingOrders& o) { o.count = 7; }));  // of one that is not there
  CHECK(broken([](RingOrders& o) { o.ranks[7] ^= 1; }));
  CHECK(broken([](RingOrders& o) { o.positions[7] ^= 1; }));
  CHECK(broken([](RingOrders& o) { o.ranks[0] |= uint64_t(4) << 16; }));
}

TEST_CASE("neighbours are found on a ring of any order") {
  RingOrders orders = test::the_order({0, 2, 1, 3});
  CHECK(orders.are_neighbours(0, 2, 4) && orders.are_neighbours(2, 0, 4));
  CHECK(orders.are_neighbours(3, 0, 4) && !orders.are_neighbours(0, 1, 4));
  const int second[] = {0, 1, 2, 3};
  CHECK(orders.add(second, 4));
  CHECK(orders.are_neighbours(0, 1, 4) && orders.are_neighbours(1, 0, 4));
  CHECK(!RingOrders().are_neighbours(0, 2, 4) && RingOrders().are_neighbours(3, 0, 4));
}

// FIFOs and counters lie side by side, each at the alignment that its lines need.
TEST_CASE("the parts of a segment do not overlap") {
  for (const Geometry& g : geometries()) {
    int64_t at = 0;
    for (int channel = 0; channel < g.channels; ++channel) {
      for (int p = 0; p < kProtocols; ++p) {
        CHECK_EQ(g.counters_offset(channel, Protocol(p)), at);
        CHECK(at % kCacheLine == 0);
        at += int64_t(sizeof(LinkCounters));
      }
      for (int p = 0; p < kProtocols; ++p) {
        CHECK_EQ(g.fifo_offset(channel, Protocol(p)), at);
        CHECK(at % kCacheLine == 0);
        CHECK(g.fifo_bytes(Protocol(p)) >= g.slots * g.slot_bytes[p]);
        at += g.fifo_bytes(Protocol(p));
      }
    }
    CHECK_EQ(g.bytes(), at);
  }
}

TEST_CASE("impossible geometries are not valid") {
  constexpr Geometry good = geometry(1, 2, 16, 32, 128);
  static_assert(good.valid());
  // With one slot, ranks that all hold a full one wait for each other for ever.
  static_assert(!geometry(1, 1, 16, 32, 128).valid());
  static_assert(!geometry(1, 0, 16, 32, 128).valid());
  static_assert(!geometry(1, kMaxSlots + 1, 16, 32, 128).valid());
  static_assert(!geometry(0, 2, 16, 32, 128).valid());
  static_assert(!geometry(kMaxChannels + 1, 2, 16, 32, 128).valid());
  static_assert(!geometry(1, 2, 0, 32, 128).valid());
  static_assert(!geometry(1, 2, 24, 32, 128).valid());
  static_assert(!geometry(1, 2, 16, 16, 128).valid());  // 8 bytes of data
  static_assert(!geometry(1, 2, 16, 40, 128).valid());
  static_assert(!geometry(1, 2, 16, 32, 192).valid());
}

// A whole chunk and one slice more fit in a FIFO: the bound that the schedule lives by.
TEST_CASE("a chunk and one slice more fit in a FIFO") {
  for (int slots = 2; slots <= kMaxSlots; ++slots)
    for (int p = 0; p < kProtocols; ++p)
      CHECK(geometry(1, slots, 16, 32, 128).slices(Protocol(p)) + 1 <= slots);
}

TEST_CASE("a flag of LL comes again only after its slot was rewritten") {
  for (const uint64_t step : {uint64_t(0), kLLFlagPeriod - 1, 7 * kLLFlagPeriod + 3}) {
    CHECK(ll_flag(step) != 0);  // fresh memory
    CHECK_EQ(ll_flag(step), ll_flag(step + kLLFlagPeriod));
    CHECK(ll_flag(step) != ll_flag(step + kLLFlagPeriod - 1));
  }
  // Every slot is written whole at least once between two steps that share a flag.
  for (const int slots : {2, 3, 8, kMaxSlots}) {
    const uint64_t last = kLLRewriteEvery - 1;
    for (int slot = 0; slot < slots; ++slot) {
      int rewritten = 0;
      for (uint64_t step = last - 2 * uint64_t(slots); step <= last; ++step)
        rewritten += int(step % uint64_t(slots)) == slot && ll_rewrites_slot(step, slots);
      CHECK(rewritten >= 1);
    }
    CHECK(!ll_rewrites_slot(0, slots) && !ll_rewrites_slot(kLLRewriteEvery, slots));
  }
}

// Shards lie by rank: that of position 1 is rank 2's.
constexpr RingOrders two_ways = [] {
  const int there[] = {0, 2, 1}, back[] = {1, 2, 0};
  RingOrders orders;
  orders.add(there, 3), orders.add(back, 3);
  return orders;
}();
static_assert(!two_ways.valid(17));  // more than are looked at
static_assert(two_ways.valid(3) && two_ways.next(0, 2, 3) == 1 && two_ways.next(1, 2, 3) == 0);
constexpr int64_t shard_at(Collective collective, int channel, int owner) {
  Plan plan =
      Plan::make(collective, Protocol::simple, 3, 100, 4, 1, geometry(2, 8, 1 << 20, 32, 128));
  plan.orders = two_ways;
  const Chunk c = plan.chunk_of(channel, 0, owner);
  return (collective == Collective::all_gather ? c.out : c.in) / 100;
}
static_assert(shard_at(Collective::reduce_scatter, 0, 1) == 2);
static_assert(shard_at(Collective::all_gather, 0, 2) == 1);
static_assert(shard_at(Collective::reduce_scatter, 1, 0) == 1);
static_assert(shard_at(Collective::all_gather, 1, 2) == 0);

// The compiler can run it all.
constexpr Plan constant = Plan::make(Collective::all_reduce, Protocol::simple, 4, 1000, 4, 1,
                                     geometry(1, 8, 256, 32, 128));
static_assert(constant.chunk == 128 && constant.loops == 2);
static_assert(constant.chunk_of(0, 0, 3).in == 384 && constant.chunk_of(0, 0, 3).count == 128);
static_assert(constant.slices(128) == 2 && constant.slice(128, 1).first == 64);
static_assert(steps_of(Collective::all_reduce, 4).at(3) == Verb::recv_reduce_copy_send);
static_assert(constant.root == 0);
constexpr Plan chain = Plan::make(Collective::reduce, Protocol::simple, 4, 1000, 4, 1,
                                  geometry(2, 8, 256, 32, 128), /*channels=*/1, /*root=*/2);
static_assert(chain.root == 2 && chain.channels == 1 && chain.chunk == 128 && chain.loops == 8);
// The one chunk of a loop, whoever asks.
static_assert(chain.chunk_of(0, 7, 3).in == 896 && chain.chunk_of(0, 7, 0).in == 896);
static_assert(chain.chunk_of(0, 7, 1).out == 896 && chain.chunk_of(0, 7, 1).count == 104);
static_assert(first_step(Collective::reduce, 3, 4, 2) == 0);
static_assert(first_step(Collective::reduce, 2, 4, 2) == 3);
static_assert(first_step(Collective::broadcast, 2, 4, 2) == 0);
static_assert(first_step(Collective::broadcast, 1, 4, 2) == 3);
static_assert(first_step(Collective::all_gather, 1, 4, 2) == 0);

}  // namespace
}  // namespace ringkern
