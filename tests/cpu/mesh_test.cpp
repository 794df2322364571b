// The direct all-reduces of the CPU backend between threads: every way, around every edge of lines,
// slots and parts, among calls of the ring; and missing ranks.
#include <algorithm>

#include "cpu/rest.h"
#include "cpu/without_one.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr Way kWays[] = {{Algorithm::one_shot, Protocol::ll},
                         {Algorithm::one_shot, Protocol::simple},
                         {Algorithm::two_shot, Protocol::simple}};

bool exists(Algorithm algorithm, Protocol protocol) {
  return std::any_of(std::begin(kWays), std::end(kWays), [&](const Way& way) {
    return way.algorithm == algorithm && way.protocol == protocol;
  });
}

Geometry small() {
  Geometry g;
  for (int p = 0; p < kProtocols; ++p) g.slot_bytes[p] = 256;
  return g;
}

Call call_by(const Way& way, DType dtype, Op op, int64_t count) {
  Call call{Collective::all_reduce, way.protocol, dtype, op, count};
  call.algorithm = way.algorithm;
  return call;
}

Task task_by(const Way& way) {
  Task task;
  task.protocol = way.protocol;
  task.algorithm = way.algorithm;
  task.reduction = Reduction::of(Op::sum, DType::i8, 1);
  return task;
}

// ---- results ------------------------------------------------------------------------------------

// Element counts around which calls may go wrong.
std::vector<int64_t> edges(const Way& way, int ranks, int element) {
  const bool lines = way.protocol == Protocol::ll;
  const int64_t slot =
      (lines ? cpu::MeshGeometry::line_slot_data() : cpu::MeshGeometry::kSlotBytes) / element;
  std::vector<int64_t> all{slot, (lines ? 2 : 4) * slot, 64 / element};
  if (lines) all.insert(all.end(), {56 / element, 2 * 56 / element});
  if (way.algorithm == Algorithm::two_shot) {
    const auto plan =
        DirectPlan::make(way.algorithm, ranks, slot, element, cpu::MeshGeometry::kSlotBytes, 1, 1);
    all.insert(all.end(), {plan.part, (ranks - 1) * plan.part, ranks * 64 / element});
  }
  return all;
}

void every_size(int ranks) {
  int n = 0;
  for (const Way& way : kWays) {
    ThreadRing ring(ranks, small());
    for (int type = 0; type < kDTypes; ++type) {
      const DType dtype = DType(type);
      // Large ones use one type after another.
      const bool large = (type + 2 * ranks) % kDTypes == 0;
      std::vector<int64_t> counts{0, 1, 2, 3, 7};
      for (const int64_t edge : edges(way, ranks, size_of(dtype)))
        if (large || edge * size_of(dtype) < 10'000)
          counts.insert(counts.end(), {edge - 1, edge, edge + 1});
      std::vector<Call> calls;
      for (const int64_t count : counts) {
        while (!accepts(Op(n % kOps), kind_of(dtype))) ++n;
        Call call = call_by(way, dtype, Op(n % kOps), std::max<int64_t>(count, 0));
        call.in_place = n % 2 == 1;
        call.misaligned = n % 5 * 3;
        call.wide = n % 3 == 1;
        call.tree = n % 5 < 2;
        calls.push_back(call);
        n += 1 + n / kOps % 2;  // not in step with the lists
      }
      run_calls(ring, calls, uint64_t(n));
    }
  }
}

void every_type_and_operation() {
  for (const int ranks : {1, 2, 3, 5}) {
    ThreadRing ring(ranks, small());
    std::vector<Call> calls;
    for (const Way& way : kWays)
      for (int dtype = 0; dtype < kDTypes; ++dtype)
        for (int op = 0; op < kOps; ++op)
          for (const bool wide : {false, true}) {
            if (!accepts(Op(op), kind_of(DType(dtype)))) continue;
            // More than a block of the reduction, and than a slot of lines.
            calls.push_back(call_by(way, DType(dtype), Op(op), 5001 / size_of(DType(dtype))));
            calls.back().in_place = (dtype + op) % 2 == 0;
            calls.back().wide = wide;
            calls.back().tree = wide;
          }
    run_calls(ring, calls, 1);
  }
}

// Counters continue from call to call, and those of the ring are separate. Every 20 calls a rank
// lags: the others run ahead as far as they can.
void any_calls_in_a_row(int ranks, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int n) { return int(random() % uint64_t(n)); };
  std::vector<Call> calls;
  for (int i = 0; i < 80; ++i) {
    Call call = call_by(kWays[pick(3)], DType(pick(kDTypes)), Op::sum, 0);
    if (pick(4) == 0) {
      call.algorithm = Algorithm::ring;
      call.protocol = Protocol(pick(kProtocols));
      call.collective = Collective(pick(kCollectives));
      call.root = pick(ranks);
    }
    do call.op = reduces(call.collective) ? Op(pick(kOps)) : Op::sum;
    while (!accepts(call.op, kind_of(call.dtype)));
    const int some[] = {40, 1000, 40'000};
    call.count = pick(some[i % 10 == 0 ? 2 : pick(2)]);
    call.in_place = pick(2);
    call.wide = pick(2) && call.algorithm != Algorithm::ring;
    call.tree = pick(2) && call.algorithm != Algorithm::ring;
    call.misaligned = pick(16);
    calls.push_back(call);
  }
  ThreadRing ring(ranks, small());
  const int slow = pick(ranks);
  run_calls(ring, calls, seed, [&](int rank, size_t call) {
    if (rank == slow && call % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
}

// A way that a CPU lacks is refused before anything is sent: the ring is unchanged.
void calls_that_do_not_exist_are_refused() {
  ThreadRing ring(2, small());
  for (int a = 0; a < kAlgorithms; ++a)
    for (int p = 0; p < kProtocols; ++p)
      for (int c = 0; c < kCollectives; ++c) {
        Task task = task_by({Algorithm(a), Protocol(p)});
        task.collective = Collective(c);
        const bool reduces_all = task.collective == Collective::all_reduce;
        if (task.algorithm == Algorithm::ring) continue;
        if (reduces_all && exists(task.algorithm, task.protocol)) continue;
        const std::string text = std::string("a CPU has no ") + name_of(task.algorithm) + " " +
                                 name_of(task.collective) + " over " + name_of(task.protocol);
        for (const int rank : {0, 1}) CHECK_THROWS(UsageError, text, ring.engine(rank).run(task));
      }
  run_calls(ring, {call_by(kWays[0], DType::f32, Op::sum, 10)}, 1);
}

// Goes round the ring on any request, because no other way exists.
void the_ring_rounds_at_each_rank() {
  ThreadRing ring(2, small());
  for (int c = 0; c < kCollectives; ++c) {
    Call call{Collective(c), Protocol::simple, DType::bf16, Op::sum, 10};
    call.wide = true;
    const Task task{call.collective, call.protocol, call.reduction(2)};
    const std::string text = std::string(name_of(call.collective)) +
                             " of bfloat16 round the ring "
                             "cannot accumulate in float32";
    for (const int rank : {0, 1}) CHECK_THROWS(UsageError, text, ring.engine(rank).run(task));
    for (const int rank : {0, 1})
      CHECK_THROWS(UsageError,
                   c == int(Collective::all_reduce) ? "Use algorithm one_shot or two_shot"
                                                    : "leave out accumulate, or use all_reduce",
                   ring.engine(rank).run(task));
  }
  run_calls(ring, {call_by(kWays[0], DType::f32, Op::sum, 10)}, 1);
  // Where nothing could be rounded twice, it is the same call.
  for (const DType dtype : {DType::f32, DType::i32}) {
    Call call{Collective::all_reduce, Protocol::simple, dtype, Op::sum, 10};
    call.wide = true;
    run_calls(ring, {call}, 1);
  }
}

// ---- waits --------------------------------------------------------------------------------------

// Rank 0 sleeps until rank 1 has staged: rank 1 rings.
void who_sleeps_is_rung(const Way& way) {
  ThreadRing ring(2, small());
  uint32_t before = 0;
  const auto errors = ring.on_threads([&](int rank) {
    std::vector<char> data(100, char(rank + 1));
    Task task = task_by(way);
    task.in = task.out = data.data();
    task.count = 100;
    if (rank == 1) {
      until_asleep(ring, 0);
      before = times_rung(ring, 0);
    }
    ring.engine(rank).run(task);
    CHECK(data == std::vector<char>(100, 3));
  });
  CHECK(!errors[0] && !errors[1]);
  CHECK(times_rung(ring, 0) != before);
}

// two_shot has another wait, for the other rank's part. Rank 1 has staged, and rests before rank 0
// has. So rank 0 proceeds to that wait, and sleeps there.
void who_sleeps_for_a_part_is_rung(bool comes) {
  ThreadRing ring(2, small(), comes ? std::chrono::seconds(60) : std::chrono::milliseconds(200));
  Rest rest;
  const auto errors = ring.on_threads([&](int rank) {
    std::vector<char> data(1000, char(rank + 1));
    Task task = task_by(kWays[2]);
    task.in = task.out = data.data();
    task.count = 1000;
    ring.engine(rank).run(rest.until_the_other_sleeps(ring, rank, task, [&] {
      while (!comes && !cpu::aborted(ring.bell(1)))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }));
    CHECK(data == std::vector<char>(1000, 3));
  });
  if (comes) {
    CHECK(!errors[0] && !errors[1]);
    CHECK(times_rung(ring, 0) != rest.rung);
    return;
  }
  bool timed_out = false;
  CHECK_CONTAINS(
      text_of(errors[0], timed_out),
      "all_reduce sum int8[1000] over two_shot, simple: rank 0 waited for data from rank 1 "
      "(wants step 1, has seen 0) and nothing came for 0.2 s");
  CHECK(timed_out);
}

// The GIL is released there: once, before the first rest, and not if the data is there already.
void a_task_is_told_once_that_it_rests(const Way& way) {
  constexpr int64_t kCount = 600'000;  // more rounds than slots
  ThreadRing ring(2, small());
  Rest rest_0, rest_1;
  rest_1.go_on.count_down();
  const auto errors = ring.on_threads([&](int rank) {
    for (const int64_t count : {int64_t(100), kCount}) {
      std::vector<char> data(size_t(count), char(rank + 1));
      Task task = task_by(way);
      task.in = task.out = data.data();
      task.count = count;
      if (count == kCount) {
        // Not once more: the ranks take turns waiting for each other.
        Rest again;
        again.go_on.count_down();
        ring.engine(rank).run(again.noted(task));
        CHECK(again.times <= 1);
        continue;
      }
      if (rank == 0) {  // the first to arrive: it rests until rank 1 has finished
        ring.engine(0).run(rest_0.noted(task));
        CHECK_EQ(rest_0.times, 1);
      } else {
        rest_0.resting.wait();
        if (way.algorithm == Algorithm::two_shot) rest_0.go_on.count_down();
        ring.engine(1).run(rest_1.noted(task));
        if (way.algorithm == Algorithm::one_shot) {
          CHECK_EQ(rest_1.times, 0);
          rest_0.go_on.count_down();
        }
      }
      CHECK(data == std::vector<char>(size_t(count), 3));
    }
  });
  CHECK(!errors[0] && !errors[1]);
}

void a_timeout_names_the_peer(const Way& way) {
  const std::string over = "all_reduce sum int8[10] over " + std::string(name_of(way.algorithm)) +
                           ", " + name_of(way.protocol) + ": rank ";
  for (const int ranks : {2, 3, 5}) {
    const int absent = ranks / 2;
    ThreadRing ring(ranks, small(), std::chrono::milliseconds(200));
    bool timed_out;
    const auto texts = without_one(ring, absent, task_by(way), 10, timed_out, [] {});
    CHECK(timed_out);  // one of them; it then aborts the others
    for (int r = 0; r < ranks; ++r)
      if (r != absent)
        CHECK_CONTAINS(texts[size_t(r)], over + std::to_string(r) + " waited for data from rank " +
                                             std::to_string(absent) +
                                             " (wants step 1, has seen 0)");
  }
}

// Data of another call is never accepted, even with the right length. There is no report here,
// because there are only engines.
void calls_that_differ_do_not_meet(const Way& way) {
  const auto meet = [&](const std::function<void(Task&)>& change) {
    ThreadRing ring(2, small(), std::chrono::milliseconds(100));
    const auto errors = ring.on_threads([&](int rank) {
      std::vector<int32_t> data(50, 1);
      Task task = task_by(way);
      task.in = task.out = data.data();
      task.reduction = Reduction::of(Op::max, DType::i32, 2);
      task.count = 40;
      if (rank == 1) change(task);
      ring.engine(rank).run(task);
    });
    return !errors[0] && !errors[1] ? 2 : !errors[0] || !errors[1] ? 1 : 0;
  };
  CHECK_EQ(meet([](Task&) {}), 2);
  CHECK_EQ(meet([](Task& task) { task.count = 41; }), 0);  // as many lines
  CHECK_EQ(meet([](Task& task) { task.reduction.dtype = DType::f32; }), 0);
  CHECK_EQ(meet([](Task& task) { task.reduction.combine = Combine::min; }), 0);
  CHECK_EQ(meet([](Task& task) { task.reduction.wide = true; }), 0);
  CHECK_EQ(meet([](Task& task) { task.reduction.tree = true; }), 0);
}

// All waits end, whichever rank is told, including those of ranks that are not neighbours; none by
// its timeout.
void abort_ends_every_wait(const Way& way) {
  ThreadRing idle(5, small());
  idle.engine(0).abort();
  for (int r = 0; r < 5; ++r) CHECK(cpu::aborted(idle.bell(r)));  // at once, not from hop to hop
  for (const bool sleeping : {false, true})
    for (const int told : {0, 2, 4}) {
      ThreadRing ring(5, small());
      bool timed_out;
      const auto texts = without_one(ring, 4, task_by(way), 1000, timed_out, [&] {
        for (int r = 0; sleeping && r < 4; ++r) until_asleep(ring, r);
        ring.engine(told).abort();
        ring.engine(told).abort();  // once more changes nothing
      });
      CHECK(!timed_out);
      for (int r = 0; r < 4; ++r) CHECK_CONTAINS(texts[size_t(r)], "aborted");
    }
}

TEST_CASE("the mesh runs what exists, and nothing else") {
  for (int a = 0; a < kAlgorithms; ++a)
    for (int p = 0; p < kProtocols; ++p)
      if (Algorithm(a) != Algorithm::ring)
        CHECK_EQ(cpu::direct_runs_over(Algorithm(a), Protocol(p)),
                 exists(Algorithm(a), Protocol(p)));
}

// Runs first: a sleeper that is not rung wakes up all the same, which makes the other cases only
// slow.
TEST_CASE("a rank that sleeps is rung") {
  for (const Way& way : kWays) who_sleeps_is_rung(way);
  for (const bool comes : {true, false}) who_sleeps_for_a_part_is_rung(comes);
}

TEST_CASE("a task is told once that it rests") {
  for (const Way& way : kWays) a_task_is_told_once_that_it_rests(way);
}

TEST_CASE("a timeout names the peer") {
  for (const Way& way : kWays) a_timeout_names_the_peer(way);
}

TEST_CASE("calls that differ do not meet") {
  for (const Way& way : kWays) calls_that_differ_do_not_meet(way);
}

TEST_CASE("an abort ends every wait") {
  for (const Way& way : kWays) abort_ends_every_wait(way);
}

TEST_CASE("tensors of every size are right") {
  for (int ranks = 1; ranks <= 5; ++ranks) every_size(ranks);
}

TEST_CASE("every dtype and operation is right") { every_type_and_operation(); }

TEST_CASE("every number of ranks adds by the tree") {
  for (const int ranks : {4, 6, 7, 8, 9, 11, 16}) {
    ThreadRing ring(ranks, small());
    std::vector<Call> calls;
    for (const Way& way : kWays)
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::e4m3})
        for (const Op op : {Op::sum, Op::avg, Op::premul_sum}) {
          calls.push_back(call_by(way, dtype, op, 1500));  // more than a block
          calls.back().tree = true;
        }
    run_calls(ring, calls, 1);
  }
}

TEST_CASE("random calls in a row are right") {
  for (uint64_t seed = 0; seed < 20; ++seed) any_calls_in_a_row(1 + int(seed % 5), seed);
}

TEST_CASE("an algorithm is refused over a protocol that it has not") {
  calls_that_do_not_exist_are_refused();
}

TEST_CASE("the ring rounds at each rank") { the_ring_rounds_at_each_rank(); }

}  // namespace
