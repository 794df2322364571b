// Calls of ranks with several threads each: results, ranks with unlike numbers of threads,
// calls that differ, missing ranks, and signals.
#include "cpu/threads.h"

#include <array>
#include <atomic>

#include "core/lookout.h"
#include "cpu/without_one.h"
#include "team.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr int64_t kMiB = 1 << 20;

// Ranks with this many channels and threads; rank r has `threads[r]`, or the last of them.
ThreadRing ring_of(int ranks, int channels, std::vector<int> threads,
                   std::chrono::nanoseconds timeout = std::chrono::seconds(60),
                   int64_t arena_bytes = 0) {
  return ThreadRing(
      ranks, cpu::default_geometry(), timeout, arena_bytes, {}, channels,
      [threads](int r) { return team(threads[std::min(size_t(r), threads.size() - 1)]); });
}

Call sum_of(int64_t bytes, Algorithm algorithm, DType dtype, bool in_place) {
  Call call{Collective::all_reduce, Protocol::simple, dtype, Op::sum, bytes / size_of(dtype)};
  call.algorithm = algorithm;
  call.in_place = in_place;
  return call;
}

Task task_of(Algorithm algorithm = Algorithm::two_shot) {
  Task task;
  task.algorithm = algorithm;
  task.reduction = Reduction::of(Op::sum, DType::i8, 1);
  return task;
}

// Sizes on both sides of those from which a call has parts, and one more part, among small calls.
void every_size(ThreadRing& ring, uint64_t seed) {
  std::vector<Call> calls;
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot})
    for (const int64_t bytes :
         {int64_t(8), kMiB / 4 - 4, kMiB / 4, kMiB / 4 + 4, kMiB * 5 / 16, kMiB, 3 * kMiB + 52})
      for (const bool in_place : {true, false}) {
        calls.push_back(sum_of(bytes, algorithm, DType::f32, in_place));
        calls.push_back(sum_of(4096, Algorithm::ring, DType::i16, in_place));
      }
  calls.push_back(sum_of(2 * kMiB, Algorithm::two_shot, DType::bf16, true));
  calls.back().op = Op::avg;
  calls.push_back(sum_of(2 * kMiB, Algorithm::two_shot, DType::f64, false));
  calls.back().op = Op::premul_sum;
  calls.back().misaligned = 3;
  // On the calling thread alone, whatever its size.
  calls.push_back(sum_of(kMiB, Algorithm::ring, DType::f32, true));
  for (const Collective c : {Collective::reduce_scatter, Collective::all_gather,
                             Collective::broadcast, Collective::reduce, Collective::send_recv})
    for (const int64_t bytes : {int64_t(64), kMiB / 4 - 4, kMiB / 2 + 12, 3 * kMiB + 52}) {
      Call call = sum_of(bytes, Algorithm::ring, DType::f32, bytes > kMiB);
      call.collective = c;
      call.root = int(bytes / 4) % ring.ranks();
      call.nulls = !call.in_place;
      calls.push_back(call);
    }
  calls.push_back(sum_of(kMiB, Algorithm::ring, DType::f32, true));  // multiplied only once
  calls.back().collective = Collective::reduce_scatter;
  calls.back().op = Op::premul_sum;
  run_calls(ring, calls, seed);
}

TEST_CASE("ranks with several threads reduce exactly") {
  for (const int ranks : {1, 2, 3})
    for (const int channels : {2, 6}) {
      ThreadRing ring = ring_of(ranks, channels, {channels});
      every_size(ring, uint64_t(ranks * 10 + channels));
    }
}

TEST_CASE("ranks may differ in threads") {
  ThreadRing two = ring_of(2, 4, {4, 1}), three = ring_of(3, 3, {2, 3, 1});
  every_size(two, 1);
  every_size(three, 2);
}

TEST_CASE("each channel has its own order of the ranks") {
  RingOrders orders;
  for (const auto& order : {std::array{0, 1, 2}, std::array{0, 2, 1}}) orders.add(order.data(), 3);
  ThreadRing ring(3, cpu::default_geometry(), std::chrono::seconds(60), 0, orders, 3,
                  [](int) { return team(3); });
  std::vector<Call> calls;
  for (const Collective c : {Collective::all_gather, Collective::broadcast}) {
    calls.push_back(sum_of(kMiB, Algorithm::ring, DType::f32, false));
    calls.back().collective = c;
  }
  run_calls(ring, calls, 7);
}

TEST_CASE("a call has as many parts as it has bytes for, in all ranks' tensors") {
  std::array<std::vector<int>, 2> parts;
  ThreadRing ring(2, cpu::default_geometry(), std::chrono::seconds(60), 0, {}, 6, [&](int r) {
    return [&, r](int n, const std::function<void(int, int)>& body) {
      parts[size_t(r)].push_back(n);
      body(0, n);
    };
  });
  Call call = sum_of(kMiB / 4, Algorithm::two_shot, DType::f32, false);
  std::vector<Call> calls{call};
  call.algorithm = Algorithm::ring;
  for (const Collective c : {Collective::broadcast, Collective::reduce}) {
    call.collective = c;
    calls.push_back(call);
  }
  call.count /= 2;  // of a shard
  for (const Collective c : {Collective::all_gather, Collective::reduce_scatter}) {
    call.collective = c;
    calls.push_back(call);
  }
  --call.count;  // on the calling thread
  calls.push_back(call);
  run_calls(ring, calls, 8);
  for (const auto& of_rank : parts) CHECK(of_rank == std::vector<int>(5, 4));
}

TEST_CASE("several threads reduce tensors in place") {
  ThreadRing ring = ring_of(2, 3, {3, 2}, std::chrono::seconds(60), 64 * kMiB);
  run_in_place(ring, 3 * kMiB / 4 + 17, 3);
}

TEST_CASE("a smaller call is not taken for a part of a larger one") {
  ThreadRing ring = ring_of(2, 6, {6}, std::chrono::milliseconds(300));
  const auto errors = ring.on_threads([&](int rank) {
    std::vector<char> data(size_t(rank == 0 ? 6 * kMiB / 16 : kMiB / 16), 1);
    Task task = task_of();
    task.in = task.out = data.data();
    task.count = int64_t(data.size());
    ring.engine(rank).run(task);
  });
  CHECK(errors[0] != nullptr);
  CHECK(errors[1] != nullptr);
}

TEST_CASE("without a rank all parts end, with the error of the whole call") {
  ThreadRing ring = ring_of(3, 3, {3}, std::chrono::milliseconds(300));
  bool timed_out = false;
  const auto texts = without_one(ring, 1, task_of(), kMiB, timed_out, [] {});
  CHECK(timed_out);
  CHECK((texts[0] + texts[2]).find("int8[1048576]") != std::string::npos);
}

// Counts the looks of a waiting thread once the first part has failed.
struct LateLooks {
  const cpu::Bell& bell;
  int count = 0;

  static void look(void* with) {
    auto& self = *static_cast<LateLooks*>(with);
    if (cpu::aborted(self.bell)) ++self.count;
  }
};

TEST_CASE("a thread with several parts makes no other one after a failure") {
  ThreadRing ring = ring_of(2, 3, {1}, std::chrono::milliseconds(300));
  LateLooks looks{ring.bell(0)};
  const auto errors = ring.on_threads([&](int rank) {
    if (rank == 1) return;
    const Lookout here{&LateLooks::look, &looks};
    lookout = &here;
    std::vector<char> data(size_t(kMiB), 1);
    Task task = task_of();
    task.in = task.out = data.data();
    task.count = kMiB;
    ring.engine(0).run(task);
  });
  bool timed_out = false;
  text_of(errors[0], timed_out);
  CHECK(timed_out);
  CHECK_EQ(looks.count, 0);
}

TEST_CASE("the calling thread says once that it rests") {
  ThreadRing ring = ring_of(2, 3, {3});
  const auto errors = ring.on_threads([&](int rank) {
    std::vector<std::thread::id> rested;
    std::vector<char> data(size_t(kMiB), 1);
    Task task = task_of();
    task.in = task.out = data.data();
    task.count = kMiB;
    task.rests = [](void* with) {
      static_cast<std::vector<std::thread::id>*>(with)->push_back(std::this_thread::get_id());
    };
    task.with = &rested;
    ring.engine(rank).run(task);
    REQUIRE(rested.size() == 1);
    CHECK(rested[0] == std::this_thread::get_id());
  });
  for (const auto& error : errors) CHECK(error == nullptr);
}

TEST_CASE("an abort ends all parts") {
  ThreadRing ring = ring_of(2, 3, {3});
  bool timed_out = false;
  const auto texts = without_one(ring, 1, task_of(), kMiB, timed_out, [&] {
    until_asleep(ring, 0);
    ring.engine(1).abort();
  });
  CHECK(!timed_out);
  CHECK(!texts[0].empty());
}

// The call of rank 0, of which the second part does not end until the lookout of its thread aborts.
struct Interrupted {
  Executor& engine;
  const char* last_of_first_part;

  static void look(void* with) {
    const auto& self = *static_cast<Interrupted*>(with);
    if (*self.last_of_first_part == 2) self.engine.abort();
  }
};

TEST_CASE("a thread that has finished its part still looks out for the others") {
  std::atomic<bool> released{false};
  const auto late = [&](int n, const std::function<void(int, int)>& body) {
    std::thread other([&] {
      while (!released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      body(1, n);
    });
    body(0, 1);
    other.join();
  };
  ThreadRing ring(2, cpu::default_geometry(), std::chrono::seconds(60), 0, {}, 2,
                  [&](int r) { return r == 0 ? team(2) : cpu::ParallelFor(late); });
  const auto errors = ring.on_threads([&](int rank) {
    std::vector<char> data(size_t(kMiB), 1);
    Interrupted call{ring.engine(rank), &data[size_t(kMiB / 2 - 1)]};
    const Lookout looks{&Interrupted::look, &call};
    if (rank == 0) lookout = &looks;
    Task task = task_of();
    task.in = task.out = data.data();
    task.count = kMiB;
    try {
      ring.engine(rank).run(task);
    } catch (...) {
      released = true;
      throw;
    }
  });
  for (const auto& error : errors) {
    bool timed_out = false;
    text_of(error, timed_out);
    CHECK(!timed_out);
  }
}

TEST_CASE("a large call by a way that does not exist leaves the ring intact") {
  ThreadRing ring = ring_of(2, 2, {2});
  const auto errors = ring.on_threads([&](int rank) {
    std::vector<char> data(size_t(kMiB), 1);
    Task task = task_of();
    task.in = task.out = data.data();
    task.count = kMiB;
    task.protocol = Protocol::ll;
    CHECK_THROWS(UsageError, "a CPU has no two_shot all_reduce over ll",
                 ring.engine(rank).run(task));
    task.protocol = Protocol::simple;
    task.collective = Collective::all_gather;
    CHECK_THROWS(UsageError, "a CPU has no two_shot all_gather over simple",
                 ring.engine(rank).run(task));
    task.collective = Collective::all_reduce;
    ring.engine(rank).run(task);
    CHECK_EQ(int(data.back()), 2);
  });
  for (const auto& error : errors) CHECK(error == nullptr);
}

}  // namespace
