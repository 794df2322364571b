// Collectives of the CPU backend between threads: every protocol, in every shape of slots.

#include "cpu/without_one.h"
#include "orders.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr Protocol kAllProtocols[] = {Protocol::simple, Protocol::ll, Protocol::ll128};
constexpr Collective kAllCollectives[] = {Collective::all_reduce, Collective::reduce_scatter,
                                          Collective::all_gather, Collective::broadcast,
                                          Collective::reduce,     Collective::send_recv};
static_assert(std::size(kAllCollectives) == kCollectives);

Geometry geometry(int slots, int64_t simple, int64_t ll, int64_t ll128) {
  Geometry g;
  g.slots = slots;
  g.slot_bytes[int(Protocol::simple)] = simple;
  g.slot_bytes[int(Protocol::ll)] = ll;
  g.slot_bytes[int(Protocol::ll128)] = ll128;
  CHECK(g.valid());
  return g;
}

// The smallest valid geometries, with and without slices; blocks of a link that end inside a slot;
// many slots.
std::vector<Geometry> geometries() {
  return {geometry(2, 16, 32, 128), geometry(3, 16, 32, 128), geometry(2, 48, 48, 256),
          geometry(8, 1024, 16 * 130, 128 * 17), geometry(kMaxSlots, 32, 64, 128)};
}

// The n-th operation, or the next that the type accepts; a collective that only moves data has
// none.
Op some_op(Collective collective, DType dtype, int n) {
  if (!reduces(collective)) return Op::sum;
  for (;; ++n)
    if (const Op op = Op(n % kOps); accepts(op, kind_of(dtype))) return op;
}

void every_shape(int ranks) {
  int n = 0;
  for (const Geometry& g : geometries()) {
    ThreadRing ring(ranks, g);
    std::vector<Call> calls;
    for (const Collective collective : kAllCollectives)
      for (const Protocol protocol : kAllProtocols) {
        const DType dtype = DType(n % kDTypes);
        const Plan plan = Plan::make(collective, protocol, ranks, 1, size_of(dtype), 1, g);
        const int64_t chunk = plan.chunk, loop = plan.loop_span();
        for (const int64_t count :
             {int64_t(0), int64_t(1), int64_t(2), int64_t(3), int64_t(7), chunk - 1, chunk,
              chunk + 1, loop - 1, loop, loop + 1, 3 * loop + loop / 2 + 1}) {
          const Op op = some_op(collective, dtype, n);
          Call call{collective, protocol, dtype, op, count, n % 2 == 1, n % 5 * 3};
          call.root = n / 2 % ranks;
          call.nulls = n / 4 % 2 == 1;
          calls.push_back(call);
          ++n;
        }
        ++n;  // not in step with the lists
      }
    run_calls(ring, calls, uint64_t(ranks));
  }
}

void every_type_and_operation() {
  for (const int ranks : {1, 3}) {
    ThreadRing ring(ranks, geometry(4, 64, 64, 128));
    std::vector<Call> calls;
    for (const Protocol protocol : kAllProtocols)
      for (int dtype = 0; dtype < kDTypes; ++dtype)
        for (int op = 0; op < kOps; ++op)
          for (const Collective collective : kAllCollectives)
            if (reduces(collective) && accepts(Op(op), kind_of(DType(dtype)))) {
              Call call{collective, protocol, DType(dtype), Op(op), 67, (dtype + op) % 2 == 0};
              call.root = dtype % ranks;
              calls.push_back(call);
            }
    run_calls(ring, calls, 1);
  }
}

// Links keep their counters from call to call; protocols have their own.
void any_calls_in_a_row(int ranks, uint64_t seed, const RingOrders& orders = {}) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int n) { return int(random() % uint64_t(n)); };
  const Geometry g =
      geometry(2 + pick(7), 16 * (1 + pick(20)), 16 * (2 + pick(40)), 128 * (1 + pick(6)));
  std::vector<Call> calls;
  for (int i = 0; i < 60; ++i) {
    Call call;
    call.collective = kAllCollectives[pick(kCollectives)];
    call.protocol = kAllProtocols[pick(3)];
    call.dtype = DType(pick(kDTypes));
    call.op = some_op(call.collective, call.dtype, pick(kOps));
    call.count = pick(2) ? pick(40) : pick(2000);
    call.in_place = pick(2);
    call.misaligned = pick(16);
    call.root = pick(ranks);
    call.nulls = pick(2);
    calls.push_back(call);
  }
  ThreadRing ring(ranks, g, std::chrono::seconds(60), 0, orders);
  // A lagging rank lets the others run as far ahead as their credit allows.
  const int slow = pick(ranks);
  run_calls(ring, calls, seed, [&](int rank, size_t call) {
    if (rank == slow && call % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
}

// A CPU has the ring of channel 0.
TEST_CASE("calls are right in any order of the ranks") {
  std::mt19937_64 random(7);
  for (uint64_t seed = 100; seed < 140; ++seed) {
    const int ranks = 1 + int(seed % 7);
    any_calls_in_a_row(ranks, seed, drawn_orders(1 + int(seed % 3), ranks, random));
  }
}

TEST_CASE("impossible orders are refused") {
  RingOrders orders = the_order({0, 2, 1});
  CHECK_THROWS(UsageError, "these orders of 4 ranks are invalid",
               ThreadRing(4, geometry(2, 16, 32, 128), std::chrono::seconds(1), 0, orders));
  orders.ranks[0] = 0;  // such as bits from another process
  CHECK_THROWS(UsageError, "these orders of 3 ranks are invalid",
               ThreadRing(3, geometry(2, 16, 32, 128), std::chrono::seconds(1), 0, orders));
}

TEST_CASE("large calls over the default slots are right") {
  ThreadRing ring(3, cpu::default_geometry());
  std::vector<Call> calls;
  for (const Protocol protocol : kAllProtocols)
    for (const Collective collective : kAllCollectives)
      for (const int root : {1, 0})
        calls.push_back({collective, protocol, DType::f32, Op::sum, 300'001, false, 0, 1, root});
  run_calls(ring, calls, 2);
}

// ---- waits that fail ----------------------------------------------------------------------------

Task task_over(Protocol protocol, Collective collective = Collective::all_reduce) {
  return {collective, protocol, Reduction::of(Op::sum, DType::i8, 1)};
}

// One rank is told, and tells all others: those that sleep, and those that come later.
TEST_CASE("an abort ends every wait") {
  for (const Protocol protocol : kAllProtocols)
    for (const bool sleeping : {false, true})
      for (const int told : {0, 2, 4}) {
        ThreadRing ring(5, geometry(3, 64, 64, 128));
        bool timed_out;
        const auto texts = without_one(ring, 4, task_over(protocol), 100'000, timed_out, [&] {
          for (int r = 0; sleeping && r < 4; ++r) until_asleep(ring, r);
          ring.engine(told).abort();
          ring.engine(told).abort();  // once more changes nothing
        });
        CHECK(!timed_out);
        for (int r = 0; r < 4; ++r) {
          CHECK_CONTAINS(texts[size_t(r)], "aborted");
          if (sleeping)
            CHECK_CONTAINS(texts[size_t(r)], "all_reduce sum int8[100000] over " +
                                                 std::string(name_of(protocol)) + ": rank " +
                                                 std::to_string(r) + " waited for ");
        }
      }
}

// Rank 2 tells ranks 0, which waits for rank 3, and 1, which makes its call afterwards.
TEST_CASE("a rank that joins an aborted ring is told") {
  ThreadRing ring(4, geometry(3, 64, 64, 128));
  const auto errors = ring.on_threads([&](int rank) {
    if (rank >= 2) return;
    if (rank == 1) {
      until_asleep(ring, 0);
      ring.engine(2).abort();
    }
    std::vector<char> data(100);
    ring.engine(rank).run({Collective::all_reduce, Protocol::simple,
                           Reduction::of(Op::sum, DType::i8, 4), data.data(), data.data(), 100});
  });
  bool timed_out = false;
  CHECK_CONTAINS(text_of(errors[0], timed_out), "rank 0 waited for data from rank 3");
  CHECK_CONTAINS(text_of(errors[1], timed_out), "aborted");
  CHECK(!timed_out);
}

TEST_CASE("a timeout names the peer") {
  for (const Protocol protocol : kAllProtocols) {
    // Enough slots are needed that rank 0 runs out of slots before it runs out of data.
    const Geometry g = geometry(protocol == Protocol::simple ? 3 : 2, 64, 64, 128);
    bool timed_out;
    ThreadRing two(2, g, std::chrono::milliseconds(200));
    auto texts = without_one(two, 1, task_over(protocol), 10, timed_out, [] {});
    CHECK(timed_out);
    CHECK_CONTAINS(texts[0],
                   "rank 0 waited for data from rank 1 (wants step 1, has seen 0) and "
                   "nothing came for 0.2 s (timed out).");

    for (const Collective collective : {Collective::all_reduce, Collective::broadcast}) {
      ThreadRing three(3, g, std::chrono::milliseconds(200));
      texts = without_one(three, 1, task_over(protocol, collective), 1000, timed_out, [] {});
      CHECK(timed_out);  // one of the two; it then aborts the other
      CHECK_CONTAINS(texts[0], collective == Collective::broadcast
                                   ? "broadcast int8[1000] root=0 over "
                                   : "all_reduce sum int8[1000] over ");
      CHECK_CONTAINS(texts[0],
                     "rank 0 waited for a free slot at rank 1 (wants step 1, has seen 0)");
      CHECK_CONTAINS(texts[2], "rank 2 waited for data from rank 1 (wants step 1, has seen 0)");
    }
  }
}

// On the ring 0 3 1 2.
TEST_CASE("a timeout names the neighbour on the ring") {
  bool timed_out;
  ThreadRing ring(4, geometry(3, 64, 64, 128), std::chrono::milliseconds(200), 0,
                  the_order({0, 3, 1, 2}));
  const auto texts = without_one(ring, 3, task_over(Protocol::simple), 1000, timed_out, [] {});
  CHECK(timed_out);
  CHECK_CONTAINS(texts[0], "rank 0 waited for a free slot at rank 3 (wants step 1, has seen 0)");
  CHECK_CONTAINS(texts[1], "rank 1 waited for data from rank 3 (wants step 1, has seen 0)");
}

// On the ring 0 2 1, rank 0 receives from rank 1: only if that one makes the same call.
TEST_CASE("another call of the previous rank is not taken") {
  for (const Protocol protocol : kAllProtocols)
    for (const int other : {1, 2}) {
      ThreadRing ring(3, geometry(3, 64, 64, 128), std::chrono::milliseconds(200), 0,
                      the_order({0, 2, 1}));
      std::vector<char> data(3 * 10, 1);
      Task task{Collective::broadcast,
                protocol,
                Reduction::of(Op::sum, DType::i8, 3),
                nullptr,
                nullptr,
                10,
                /*root=*/1};
      const CallWords words = words_of(task);
      for (int r = 0; r < 3; ++r)
        ring.line(r, 1) = {1, words.what ^ uint64_t(r == other), words.count, 0, 0, 0, 0, 0};
      const auto errors = ring.on_threads([&](int rank) {
        if (rank == 2) return;  // the last of the chain, which receives through rank 0
        Task mine = task;
        mine.in = mine.out = data.data() + 10 * rank;
        mine.seq = 1;
        mine.words = words;
        ring.engine(rank).run(mine);
      });
      CHECK(!errors[1]);
      bool timed_out = false;
      if (other == 1)
        CHECK_CONTAINS(text_of(errors[0], timed_out), "rank 0 waited for data from rank 1");
      CHECK_EQ(timed_out, other == 1);
      CHECK(other == 1 || !errors[0]);
    }
}

// A message from rank 1 that does not come: its receiver waits until its timeout, and the other
// ranks do not.
TEST_CASE("only the receiver of a message waits") {
  for (const Protocol protocol : kAllProtocols) {
    ThreadRing ring(4, geometry(3, 64, 64, 128));
    const auto errors = ring.on_threads([&](int rank) {
      if (rank == 1) return;
      std::vector<char> data(1000);
      Task task{Collective::send_recv,
                protocol,
                Reduction::of(Op::sum, DType::i8, 4),
                data.data(),
                data.data(),
                1000,
                /*root=*/1};
      task.timeout = Milliseconds(200);
      ring.engine(rank).run(task);
    });
    CHECK(!errors[0] && !errors[3]);
    bool timed_out = false;
    CHECK_CONTAINS(text_of(errors[2], timed_out),
                   "rank 2 waited for data from rank 1 (wants step 1, has seen 0) and nothing came "
                   "for 0.2 s");
    CHECK(timed_out);
  }
}

TEST_CASE("calls of every shape are right") {
  for (int ranks = 1; ranks <= 5; ++ranks) every_shape(ranks);
}

TEST_CASE("every dtype and operation is right") { every_type_and_operation(); }

TEST_CASE("random calls in a row are right") {
  for (uint64_t seed = 0; seed < 30; ++seed) any_calls_in_a_row(1 + int(seed % 5), seed);
}

}  // namespace
