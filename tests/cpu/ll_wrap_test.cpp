// LL with flags that come round every 255 steps. With 32 bits that takes an hour of small calls; a
// line that no short chunk has touched since could then pass for fresh.
//
// The engine is compiled into this file, with its own number of bits; the library's is not linked.
#define RK_LL_FLAG_BITS 8
#include "cpu/engine.cpp"
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

Call gather(int64_t count) {
  Call call;
  call.collective = Collective::all_gather;
  call.protocol = Protocol::ll;
  call.dtype = DType::i64;
  call.count = count;
  return call;
}

// With two ranks an all-gather of one chunk is one step. A chunk that fills its slot is followed by
// short ones until slot and flag come round together; then the receiver looks before the sender has
// written, and must not take what it finds.
void old_lines_are_not_taken_for_new(int slots, size_t first_long) {
  size_t again = 255;
  while (again % size_t(slots) != 0) again += 255;
  std::vector<Call> calls(first_long + again + 1, gather(1));
  calls[first_long] = calls[first_long + again] = gather(40);
  ThreadRing ring(2, geometry(slots));
  CHECK_EQ(Plan::make(Collective::all_gather, Protocol::ll, 2, 40, 8, 1, ring.geometry()).loops, 1);
  run_calls(ring, calls, first_long, [&](int rank, size_t call) {
    if (rank == 1 && call == first_long + again)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
}

// Long and short calls of every kind, over many periods.
void any_calls_in_a_row(int ranks, int slots, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Call> calls;
  for (int i = 0; i < 400; ++i) {
    Call call = gather(int64_t(random() % 10 ? random() % 3 : random() % 200));
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

}  // namespace

int main() {
  // Slots that a period is a multiple of are the worst: slot and flag come round together.
  for (const int slots : {2, 3, 5, 8})
    for (const size_t first_long : {0, 1, 126, 127, 128, 129, 253, 254, 255})
      old_lines_are_not_taken_for_new(slots, first_long);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const int slots[] = {2, 3, 5, 15, 17, 64};
    any_calls_in_a_row(2 + int(seed % 4), slots[seed % 6], seed);
  }
}
