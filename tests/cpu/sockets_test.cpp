// The mesh on several sockets: which ranks take the chain, its results, tensors in place, and
// missing ranks.
#include "cpu/mesh_sockets.h"

#include "cpu/without_one.h"
#include "team.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr int64_t kKiB = 1 << 10, kLeast = 256 * kKiB;  // as cpu/mesh.cpp
using Sockets = std::vector<int>;

ThreadRing ring_on(const Sockets& sockets, int channels = 1,
                   std::chrono::nanoseconds timeout = std::chrono::seconds(60),
                   int64_t arena_bytes = 0) {
  return ThreadRing(
      int(sockets.size()), cpu::default_geometry(), timeout, arena_bytes, {}, channels,
      [](int) { return team(2); }, sockets);
}

Call sum_of(int64_t bytes, DType dtype = DType::f32, Algorithm algorithm = Algorithm::two_shot) {
  Call call{Collective::all_reduce, Protocol::simple, dtype, Op::sum, bytes / size_of(dtype)};
  call.algorithm = algorithm;
  return call;
}

Task task_of() {
  Task task;
  task.algorithm = Algorithm::two_shot;
  task.reduction = Reduction::of(Op::sum, DType::i8, 1);
  return task;
}

// Returns whether a call of the least size takes the chain, in which it has more rounds.
bool takes_the_chain(ThreadRing& ring) {
  const uint64_t before = ring.board(0).staged.rounds;
  run_calls(ring, {sum_of(kLeast)}, 1);
  const uint64_t rounds = ring.board(0).staged.rounds - before;
  for (int r = 1; r < ring.ranks(); ++r) CHECK_EQ(ring.board(r).staged.rounds, before + rounds);
  CHECK(rounds <= 2 || rounds >= 4);
  return rounds >= 4;
}

// Sizes around those at which the rounds change, among calls that do not take the chain.
void every_size(const Sockets& sockets, int channels, uint64_t seed) {
  ThreadRing ring = ring_on(sockets, channels);
  if (channels == 1) CHECK(takes_the_chain(ring));
  std::vector<Call> calls;
  for (const int64_t bytes : {kLeast + 4, 1024 * kKiB - 4, 1024 * kKiB + 4, 1600 * kKiB})
    for (const bool in_place : {true, false}) {
      calls.push_back(sum_of(bytes));
      calls.back().in_place = in_place;
      calls.push_back(sum_of(kLeast - 4));
      calls.push_back(sum_of(bytes, DType::f32, Algorithm::one_shot));
      calls.push_back(sum_of(4096, DType::i16, Algorithm::ring));
    }
  run_calls(ring, calls, seed);
}

TEST_CASE("the order of ranks and sockets decides") {
  const auto takes = [](const Sockets& sockets) {
    ThreadRing ring = ring_on(sockets);
    return takes_the_chain(ring);
  };
  for (const Sockets& sockets :
       {Sockets{0, 0, 1, 1}, {7, 7, 3, 3}, {0, 0, 0, 1, 1, 1}, {0, 0, 2, 2, 1, 1}})
    CHECK(takes(sockets));
  for (const Sockets& sockets : {Sockets{0, 0, 0, 0},
                                 {0, 1},
                                 {0, 1, 0, 1},
                                 {0, 0, 1},
                                 {0, 0, 0, 1},
                                 {0, 0, 1, 2},
                                 {0, 0, 1, 1, 0, 0},
                                 {-1, -1, 0, 0},
                                 {0, 0, -1, -1},
                                 {0, 0, 1, -1}})
    CHECK(!takes(sockets));
}

TEST_CASE("small calls, other ways, and sums kept in floats or by a tree do not take the chain") {
  ThreadRing ring = ring_on({0, 0, 1, 1});
  Call wide = sum_of(kLeast, DType::bf16);
  wide.wide = true;
  Call tree = sum_of(kLeast);
  tree.tree = true;
  const std::vector<Call> calls{sum_of(kLeast - 4), wide, tree,
                                sum_of(kLeast, DType::f32, Algorithm::one_shot)};
  run_calls(ring, calls, 1);
  CHECK_EQ(ring.board(0).staged.rounds, calls.size());  // a round each
}

TEST_CASE("every size is right, with one thread and with several") {
  for (const Sockets& sockets : {Sockets{0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 2, 2}})
    every_size(sockets, /*channels=*/1, sockets.size());
  every_size({0, 0, 1, 1}, /*channels=*/3, 1);
}

TEST_CASE("every dtype and operation is right") {
  for (const Sockets& sockets : {Sockets{0, 0, 1, 1}, {0, 0, 1, 1, 2, 2}}) {
    ThreadRing ring = ring_on(sockets);
    std::vector<Call> calls;
    for (int dtype = 0; dtype < kDTypes; ++dtype)
      for (int op = 0; op < kOps; ++op) {
        if (!accepts(Op(op), kind_of(DType(dtype)))) continue;
        if ((dtype + op) % int(sockets.size() / 2) != 0) continue;  // takes its time
        calls.push_back(sum_of(kLeast + 40 * (dtype + op), DType(dtype)));
        calls.back().op = Op(op);
        calls.back().in_place = op % 2 == 0;
        calls.back().misaligned = (dtype + op) % 16;
      }
    run_calls(ring, calls, 1);
    CHECK(takes_the_chain(ring));
  }
}

// A rank that lags lets the others run ahead as far as they can, within a call and from call to
// call.
TEST_CASE("random calls in a row are right") {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](int n) { return int(random() % uint64_t(n)); };
    const Sockets sockets = seed % 2 == 0 ? Sockets{0, 0, 1, 1} : Sockets{0, 0, 0, 1, 1, 1};
    std::vector<Call> calls;
    for (int i = 0; i < 24; ++i) {
      calls.push_back(sum_of(pick(4) > 0 ? kLeast + pick(1500) * kKiB : pick(3000) * 4, DType::f32,
                             Algorithm(pick(3))));
      calls.back().in_place = pick(2);
    }
    ThreadRing ring = ring_on(sockets);
    const int slow = pick(int(sockets.size()));
    run_calls(ring, calls, seed, [&](int rank, size_t call) {
      if (rank == slow && call % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    CHECK(takes_the_chain(ring));
  }
}

// A rank returns only when no other one still reads its tensor.
TEST_CASE("tensors are reduced in place") {
  for (const int channels : {1, 2}) {
    ThreadRing ring = ring_on({0, 0, 1, 1}, channels, std::chrono::seconds(60), 16 << 20);
    run_in_place(ring, 3 * kLeast / 4 + 17, 8);
    CHECK(ring.board(0).collected.value > 0);  // it took the chain
  }
}

TEST_CASE("a timeout names the rank that is missing, on any socket") {
  for (int absent = 0; absent < 4; ++absent) {
    ThreadRing ring = ring_on({0, 0, 1, 1}, 1, std::chrono::milliseconds(300));
    bool timed_out = false;
    const auto texts = without_one(ring, absent, task_of(), kLeast, timed_out, [] {});
    CHECK(timed_out);
    const std::string wanted = "waited for data from rank " + std::to_string(absent);
    CHECK(std::any_of(texts.begin(), texts.end(),
                      [&](const std::string& t) { return t.find(wanted) != std::string::npos; }));
  }
}

TEST_CASE("an abort ends every wait") {
  for (const int told : {0, 1, 2}) {
    ThreadRing ring = ring_on({0, 0, 1, 1});
    bool timed_out = false;
    const auto texts = without_one(ring, 3, task_of(), 8 * kLeast, timed_out, [&] {
      for (int r = 0; r < 3; ++r) until_asleep(ring, r);
      ring.engine(told).abort();
    });
    CHECK(!timed_out);
    for (int r = 0; r < 3; ++r) CHECK_CONTAINS(texts[size_t(r)], "aborted");
  }
}

// A rank, or a whole socket, makes another call of as many rounds.
TEST_CASE("calls that differ do not meet") {
  for (const std::vector<int>& others : {std::vector{0}, {1}, {2}, {3}, {0, 1}, {2, 3}}) {
    ThreadRing ring = ring_on({0, 0, 1, 1}, 1, std::chrono::milliseconds(300));
    const auto errors = ring.on_threads([&](int rank) {
      const bool other = std::find(others.begin(), others.end(), rank) != others.end();
      std::vector<int32_t> data(size_t(kLeast / 4), 1);
      Task task = task_of();
      task.in = task.out = data.data();
      task.reduction = Reduction::of(other ? Op::max : Op::sum, DType::i32, 4);
      task.count = kLeast / 4;
      ring.engine(rank).run(task);
    });
    for (const auto& error : errors) CHECK(error != nullptr);
  }
}

TEST_CASE("this thread's socket is known, or unknown") { CHECK(cpu::my_socket() >= -1); }

}  // namespace
