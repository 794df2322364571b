// The steps of the schedule, which goes from one to the next, against each step worked out by
// itself.
#include "core/schedule.h"

#include "check.h"
#include "core/trace.h"

using namespace ringkern;

namespace {

constexpr Collective kAll[] = {Collective::all_reduce, Collective::reduce_scatter,
                               Collective::all_gather, Collective::broadcast,
                               Collective::reduce,     Collective::send_recv};

// Follows the rows of the table in core/schedule.h.
Verb verb_in(Collective c, int k, int j) {
  const bool last_of_ring = j == (c == Collective::all_reduce ? 2 * k - 2 : k - 1);
  switch (c) {
    case Collective::all_gather:
    case Collective::broadcast:
      return j == 0 ? Verb::copy_send : last_of_ring ? Verb::recv : Verb::recv_copy_send;
    case Collective::send_recv: return j == 0 ? Verb::send : Verb::recv;
    default: break;
  }
  if (j == 0) return Verb::send;
  if (j < k - 1) return Verb::recv_reduce_send;
  if (c != Collective::all_reduce) return Verb::recv_reduce_copy;
  if (j == k - 1) return Verb::recv_reduce_copy_send;
  return last_of_ring ? Verb::recv : Verb::recv_copy_send;
}

int owner_in(Collective c, int position, int k, int j) {
  const int first = c == Collective::all_gather ? position : position - 1;
  return ((first - j) % k + k) % k;
}

void check_steps(const Plan& plan, int rank, int channel) {
  const Collective c = plan.collective;
  const int k = plan.ranks, position = plan.position(channel, rank);
  const int first = first_step(c, position, k, plan.position(channel, plan.root));
  const int each = is_chain(c) ? 1 : steps(c, k);
  const auto entries = trace(plan, rank, channel);
  if (c == Collective::send_recv && first > 1) {
    CHECK(entries.empty());
    return;
  }
  REQUIRE(int64_t(entries.size()) == plan.loops * each);
  for (size_t i = 0; i < entries.size(); ++i) {
    const int j = first + int(i) % each;
    const Chunk chunk = plan.chunk_of(channel, int64_t(i) / each, owner_in(c, position, k, j));
    CHECK(entries[i].verb == verb_in(c, k, j));
    CHECK_EQ(entries[i].chunk.in, chunk.in);
    CHECK_EQ(entries[i].chunk.out, chunk.out);
    CHECK_EQ(entries[i].chunk.count, chunk.count);
  }
}

TEST_CASE("the schedule takes every step of every rank, in any order of the ranks") {
  Geometry g;
  g.channels = 3, g.slots = 3;
  for (int64_t& bytes : g.slot_bytes) bytes = 128;
  for (const Collective c : kAll)
    for (int k = 2; k <= 9; ++k)
      for (const int64_t count : {int64_t(0), int64_t(1), int64_t(k) * 3 * 32 + 5, int64_t(2000)})
        for (const bool ordered : {false, true})
          for (int root = 0; root < k; root += 2) {
            Plan plan = Plan::make(c, Protocol::ll, k, count, 4, 32, g, 0, root);
            if (ordered) {
              int order[RingOrders::kMostRanks] = {};
              for (int p = 0; p < k; ++p) order[p] = (p * (k % 2 == 0 ? 1 : 2) + 1) % k;
              REQUIRE(plan.orders.add(order, k));
              for (int p = 0; p < k; ++p) order[p] = k - 1 - p;
              REQUIRE(plan.orders.add(order, k));
            }
            for (int channel = 0; channel < plan.channels; ++channel)
              for (int rank = 0; rank < k; ++rank) check_steps(plan, rank, channel);
          }
}

TEST_CASE("a verb does what its name says") {
  CHECK(!receives(Verb::send) && reads_input(Verb::send) && !copies(Verb::send));
  CHECK(!receives(Verb::copy_send) && copies(Verb::copy_send) && sends(Verb::copy_send));
  CHECK(receives(Verb::recv_reduce_send) && !copies(Verb::recv_reduce_send));
  CHECK(finishes(Verb::recv_reduce_copy_send) && sends(Verb::recv_reduce_copy_send));
  CHECK(finishes(Verb::recv_reduce_copy) && !sends(Verb::recv_reduce_copy));
  CHECK(!reads_input(Verb::recv_copy_send) && !finishes(Verb::recv_copy_send));
  CHECK(receives(Verb::recv) && copies(Verb::recv) && !sends(Verb::recv));
}

TEST_CASE("the next flag of LL is that of the next step") {
  for (const uint64_t step : {uint64_t(0), uint64_t(5), kLLFlagPeriod - 2, kLLFlagPeriod - 1,
                              kLLFlagPeriod, 3 * kLLFlagPeriod - 1})
    CHECK_EQ(ll_next_flag(ll_flag(step)), ll_flag(step + 1));
}

}  // namespace
