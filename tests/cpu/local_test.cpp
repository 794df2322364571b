// A ring of threads of its own: calls, the cause of a failure, abort and end.
#include "cpu/local.h"

#include "check.h"
#include "cuda/model.h"
#include "orders.h"

using namespace ringkern;
using cpu::LocalRing;

namespace {

constexpr Milliseconds kLong{60'000};

struct Calls {
  std::vector<std::vector<int32_t>> in, out;
  std::vector<Task> tasks;

  Calls(int ranks, Collective collective, Protocol protocol, int64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    Task task;
    task.collective = collective;
    task.protocol = protocol;
    task.reduction = Reduction::of(Op::sum, DType::i32, ranks);
    task.count = count;
    in.resize(size_t(ranks));
    out.resize(size_t(ranks));
    for (int r = 0; r < ranks; ++r) {
      auto &mine = in[size_t(r)], &result = out[size_t(r)];
      mine.resize(size_t(collective == Collective::reduce_scatter ? count * ranks : count));
      result.resize(size_t(collective == Collective::all_gather ? count * ranks : count));
      for (int32_t& x : mine) x = test::sample<int32_t>(random);
      task.in = mine.data();
      task.out = result.data();
      tasks.push_back(task);
    }
  }

  std::vector<std::vector<int32_t>> expected(const RingOrders& orders = {}) const {
    const Task& t = tasks.front();
    Plan plan = Plan::make(t.collective, t.protocol, int(tasks.size()), t.count, 4, 1,
                           cpu::default_geometry());
    plan.orders = orders;
    return test::model(plan, t.reduction, in);
  }
};

TEST_CASE("calls of all sizes are right") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    LocalRing ring(ranks, kLong);
    CHECK_EQ(ring.ranks(), ranks);
    uint64_t seed = 0;
    for (const int64_t count : {1, 40'000, 7, 1'000})
      for (int p = 0; p < kProtocols; ++p)
        for (int c = 0; c < kCollectives; ++c) {
          Calls calls(ranks, Collective(c), Protocol(p), count, ++seed);
          ring.run(calls.tasks);
          CHECK(calls.out == calls.expected());
        }
  }
}

TEST_CASE("calls are right in any order of the ranks") {
  std::mt19937_64 random(3);
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const RingOrders orders = test::drawn_orders(2, ranks, random);
    LocalRing ring(ranks, kLong, orders);
    for (int p = 0; p < kProtocols; ++p)
      for (int c = 0; c < kCollectives; ++c) {
        Calls calls(ranks, Collective(c), Protocol(p), 3'000, uint64_t(p * 100 + c));
        ring.run(calls.tasks);
        CHECK(calls.out == calls.expected(orders));
      }
  }
  CHECK_THROWS(UsageError, "these orders of 3 ranks are invalid",
               LocalRing(3, kLong, test::the_order({1, 0})));
}

// Takes the way of the tasks, whose order is that of the ranks; an integer sum does not depend on
// it.
TEST_CASE("calls by every algorithm are right") {
  for (const int ranks : {1, 2, 3, 5}) {
    LocalRing ring(ranks, kLong);
    uint64_t seed = 0;
    for (const int64_t count : {1, 100'000, 20, 1'000})
      for (const auto& [algorithm, protocol] : {std::pair{Algorithm::one_shot, Protocol::ll},
                                                std::pair{Algorithm::one_shot, Protocol::simple},
                                                std::pair{Algorithm::two_shot, Protocol::simple}}) {
        Calls calls(ranks, Collective::all_reduce, protocol, count, ++seed);
        for (Task& task : calls.tasks) task.algorithm = algorithm;
        ring.run(calls.tasks);
        CHECK(calls.out == calls.expected());
      }
    if (ranks == 1) continue;
    Calls calls(ranks, Collective::all_reduce, Protocol::ll128, 10, 1);
    for (Task& task : calls.tasks) task.algorithm = Algorithm::two_shot;
    CHECK_THROWS(UsageError, "a CPU has no two_shot all_reduce over ll128", ring.run(calls.tasks));
  }
}

// Rank 1 has more to do than the others, which leave: it waits for them, and reports that.
TEST_CASE("the first rank's failure is thrown") {
  LocalRing ring(3, Milliseconds(50));
  Calls calls(3, Collective::all_reduce, Protocol::simple, 100, 1);
  Calls more(3, Collective::all_reduce, Protocol::simple, 1'000'000, 1);
  calls.tasks[1] = more.tasks[1];
  CHECK_THROWS(TimeoutError, "rank 1 waited for", ring.run(calls.tasks));
  CHECK_THROWS(AbortedError, "aborted", ring.run(more.tasks));
  CHECK_THROWS(UsageError, "needs one task for each rank", ring.run({calls.tasks.data(), 2}));
}

TEST_CASE("another thread may abort a call") {
  for (int round = 0; round < 20; ++round) {
    LocalRing ring(4, kLong);
    Calls calls(4, Collective::all_reduce, Protocol(round % kProtocols), 30'000, 1);
    std::thread aborter([&] { ring.abort(); });
    try {
      for (;;) ring.run(calls.tasks);
    } catch (const AbortedError&) {
    }
    aborter.join();
  }
}

TEST_CASE("a ring that was never used ends") {
  for (int ranks = 1; ranks < 6; ++ranks) LocalRing ring(ranks, kLong);
  CHECK_THROWS(UsageError, "1 to 1024 ranks", LocalRing(0, kLong));
}

}  // namespace
