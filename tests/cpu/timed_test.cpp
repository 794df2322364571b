// A timed schedule: its rows, for every protocol and collective, against the calls of a link that
// moves nothing.
#include <thread>

#include "core/trace.h"
#include "cpu/thread_ring.h"
#include "orders.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr Protocol kAllProtocols[] = {Protocol::simple, Protocol::ll, Protocol::ll128};

Geometry small() {
  Geometry g;
  g.slots = 4;
  g.slot_bytes[int(Protocol::simple)] = 64;
  g.slot_bytes[int(Protocol::ll)] = 64;
  g.slot_bytes[int(Protocol::ll128)] = 128;
  return g;
}

// One call of all ranks: their inputs, outputs and rows.
struct Traced {
  ThreadRing& ring;
  Plan plan;
  std::vector<std::vector<float>> in, out;
  std::vector<std::vector<TimedVerb>> rows;

  Traced(ThreadRing& ring, Collective collective, Protocol protocol, int64_t count,
         int64_t room = -1, int root = 0)
      : ring(ring), plan(Plan::make(collective, protocol, ring.ranks(), count, sizeof(float),
                                    /*workers=*/1, ring.geometry(), /*channels=*/1, root)) {
    plan.orders = ring.orders();
    const auto whole = size_t(count * ring.ranks());
    for (int r = 0; r < ring.ranks(); ++r) {
      in.emplace_back(whole, float(r + 1));
      out.emplace_back(whole, -1.0f);
      rows.emplace_back(size_t(room < 0 ? verbs_of(plan) : room));
    }
  }

  Task task(int rank, const Timeline* timeline) {
    const auto r = size_t(rank);
    Task task{plan.collective, plan.protocol, Reduction::of(Op::sum, DType::f32, ring.ranks()),
              in[r].data(),    out[r].data(), plan.count,
              plan.root};
    task.timeline = timeline;
    return task;
  }

  void run(const std::function<void(int)>& before = [](int) {}) {
    const auto body = [&](int rank) {
      const Timeline timeline{rows[size_t(rank)].data(), int64_t(rows[size_t(rank)].size())};
      before(rank);
      ring.engine(rank).run(task(rank, &timeline));
    };
    for (const std::exception_ptr& error : ring.on_threads(body))
      if (error) std::rethrow_exception(error);
  }

  void check() const {
    for (int r = 0; r < plan.ranks; ++r) {
      const std::vector<TraceEntry> verbs = trace(plan, r, /*channel=*/0);
      const std::vector<TimedVerb>& found = rows[size_t(r)];
      int64_t before = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        const TimedVerb& row = found[i];
        if (i >= verbs.size()) {  // ranks that a message skips
          CHECK_EQ(row.number, int64_t(0));
          continue;
        }
        CHECK_EQ(row.number, int64_t(i) + 1);
        CHECK(Verb(row.verb) == verbs[i].verb);
        CHECK_EQ(row.offset, verbs[i].chunk.out);
        CHECK_EQ(row.count, verbs[i].chunk.count);
        CHECK(row.start >= before && row.end >= row.start);
        CHECK(row.wait_prev >= 0 && row.wait_next >= 0);
        CHECK(row.wait_prev + row.wait_next <= row.end - row.start);
        CHECK(row.wait_prev == 0 || receives(verbs[i].verb));
        CHECK(row.wait_next == 0 || sends(verbs[i].verb));
        before = row.end;
      }
    }
  }
};

TEST_CASE("every verb has its row") {
  for (const int ranks : {1, 2, 3, 5})
    for (const bool turned : {false, true}) {
      std::vector<int> order;
      for (int p = 0; p < ranks; ++p) order.push_back(ranks - 1 - p);
      ThreadRing ring(ranks, small(), std::chrono::seconds(60), 0,
                      turned ? the_order(order) : RingOrders{});
      for (int c = 0; c < kCollectives; ++c)
        for (const Protocol protocol : kAllProtocols)
          for (const int64_t count : {0, 1, 7, 100, 333}) {
            Traced traced(ring, Collective(c), protocol, count, -1, (ranks - 1) / 2);
            traced.run();
            traced.check();
          }
    }
}

TEST_CASE("a traced call gives the right result") {
  ThreadRing ring(3, small());
  for (const Protocol protocol : kAllProtocols) {
    Traced traced(ring, Collective::all_reduce, protocol, 500);
    traced.run();
    for (const auto& out : traced.out)
      for (int64_t i = 0; i < 500; ++i) CHECK(out[size_t(i)] == 6.0f);
    // With rows or without, the links have the same state for the next call.
    run_calls(ring, {{Collective::all_reduce, protocol, DType::f32, Op::sum, 500}}, 1);
  }
}

// In all-reduces a verb receives the data that prev has sent in the step before.
TEST_CASE("nothing arrives before it was sent") {
  ThreadRing ring(3, small());
  for (const Protocol protocol : kAllProtocols) {
    Traced traced(ring, Collective::all_reduce, protocol, 2000);
    traced.run();
    for (int r = 0; r < 3; ++r) {
      const std::vector<TimedVerb>& mine = traced.rows[size_t(r)];
      const std::vector<TimedVerb>& prev = traced.rows[size_t(traced.plan.prev(0, r))];
      for (size_t i = 0; i < mine.size(); ++i)
        if (receives(Verb(mine[i].verb)) && mine[i].count > 0)
          CHECK(prev[i - 1].start <= mine[i].end);
    }
  }
}

// next waits for the data of a late rank, and prev for its slots.
TEST_CASE("rows say who waited for whom") {
  constexpr auto kLate = std::chrono::milliseconds(500);
  constexpr int64_t late = std::chrono::nanoseconds(kLate).count();
  for (const Protocol protocol : kAllProtocols) {
    ThreadRing ring(3, small());
    // A broadcast from 0, longer than the slots of a rank.
    Traced traced(ring, Collective::broadcast, protocol, 1000);
    traced.run([&](int rank) {
      if (rank == 1) std::this_thread::sleep_for(kLate);
    });
    traced.check();
    const auto sums = [&](int rank) {
      int64_t prev = 0, next = 0;
      for (const TimedVerb& row : traced.rows[size_t(rank)])
        prev += row.wait_prev, next += row.wait_next;
      return std::pair(prev, next);
    };
    // The others may come late, too: a fifth of the delay is enough.
    CHECK(sums(0).second > late / 5 && sums(0).first == 0);
    CHECK(sums(2).first > late / 5 && sums(2).second == 0);
  }
}

TEST_CASE("rows that have no room are left out") {
  ThreadRing ring(2, small());
  Traced traced(ring, Collective::all_reduce, Protocol::simple, 100, /*room=*/5);
  CHECK(verbs_of(traced.plan) > 5);
  for (auto& rows : traced.rows) rows.push_back({-1, -1, -1, -1, -1, -1, -1, -1});
  const auto body = [&](int rank) {
    const Timeline timeline{traced.rows[size_t(rank)].data(), 5};
    ring.engine(rank).run(traced.task(rank, &timeline));
  };
  for (const std::exception_ptr& error : ring.on_threads(body)) CHECK(!error);
  for (const auto& rows : traced.rows) CHECK(rows[4].number == 5 && rows[5].number == -1);
  for (const auto& out : traced.out) CHECK(out[99] == 3.0f);
}

}  // namespace
