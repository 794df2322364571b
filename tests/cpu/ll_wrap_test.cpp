// LL with flags that wrap every 255 steps. With 32 bits that takes an hour of small calls; a line
// that no short chunk has touched since could then pass for fresh.
//
// The engine is compiled into this file, with its own number of bits; the library's is not linked.
#define RK_LL_FLAG_BITS 8
#include "cpu/executor.cpp"
#include "cpu/link.cpp"
#include "cpu/wait.cpp"

#include "cpu/thread_ring.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

static_assert(kLLFlagPeriod == 255);

Geometry geometry(int slots) {
  Geometry g;
  g.slots = slots;
  g.slot_bytes[int(Protocol::simple)] = 64;
  g.slot_bytes[int(Protocol::ll)] = 16 * 40;
  g.slot_bytes[int(Protocol::ll128)] = 128;
  return g;
}

Call reduce(int64_t count) {
  Call call;
  call.protocol = Protocol::ll;
  call.dtype = DType::i64;
  call.count = count;
  return call;
}

// With two ranks a call is two steps. In its first, rank 0 sends the chunk that rank 1 owns, which
// is empty when the tensor has one element: the slot keeps the data of an earlier long call. When
// slot and flag have wrapped together, rank 1 looks there before rank 0 has written anything.
void old_lines_are_not_taken_for_new(int slots, size_t first_long) {
  size_t steps = kLLFlagPeriod;
  while (steps % size_t(slots) != 0) steps += kLLFlagPeriod;
  const size_t again = first_long + steps / 2;
  std::vector<Call> calls(again + 1, reduce(1));
  calls[first_long] = calls[again] = reduce(80);
  ThreadRing ring(2, geometry(slots));
  const auto plan = [&](int64_t count) {
    return Plan::make(Collective::all_reduce, Protocol::ll, 2, count, 8, 1, ring.geometry());
  };
  CHECK_EQ(plan(80).loops, 1);
  CHECK_EQ(plan(80).chunk_of(0, 0, 1).count, 40);  // fills the slot
  CHECK_EQ(plan(1).chunk_of(0, 0, 1).count, 0);
  run_calls(ring, calls, first_long, [&](int rank, size_t call) {
    if (rank == 0 && call == again) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
}

// Long and short calls of every kind, over many periods.
void any_calls_in_a_row(int ranks, int slots, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Call> calls;
  for (int i = 0; i < 400; ++i) {
    Call call = reduce(int64_t(random() % 10 ? random() % 3 : random() % 200));
    call.collective = Collective(random() % kCollectives);
    if (random() % 20 == 0) call.protocol = Protocol(random() % kProtocols);
    calls.push_back(call);
  }
  ThreadRing ring(ranks, geometry(slots));
  const int slow = int(random() % uint64_t(ranks));
  run_calls(ring, calls, seed, [&](int rank, size_t call) {
    if (rank == slow && call % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}

TEST_CASE("old lines are not taken for new ones") {
  for (const int slots : {2, 4, 8})
    for (const size_t first_long : {0, 1, 62, 63, 64, 65, 126, 127, 128})
      old_lines_are_not_taken_for_new(slots, first_long);
}

TEST_CASE("random calls are right over many periods of the flag") {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const int slots[] = {2, 3, 5, 15, 17, 64};
    any_calls_in_a_row(2 + int(seed % 4), slots[seed % 6], seed);
  }
}

}  // namespace
