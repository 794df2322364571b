// Simple's slots, counters and credits, csrc/cpu/simple.h and link.cpp, under the library's own
// plan and schedule, in calls that each rank announces on its page. A rank never reads a slot
// before it is filled, never fills a slot that is still read, and never waits for a call that has
// been announced.
#pragma once

#include "faults/model/bell.h"
#include "faults/model/control.h"

#include "cpu/simple.h"

namespace model {

template <Collective collective, int ranks, int64_t elements>
struct Simple : rl::test_suite<Simple<collective, ranks, elements>, ranks> {
  static constexpr int kBytes = 4096, kCalls = 2;

  Geometry geometry;
  int64_t tensors[ranks][elements];
  std::optional<Pages<ranks>> pages;

  // Not those of the test; Relacy needs a small one.
  static void* segment(int rank) {
    alignas(kCacheLine) static char memory[ranks][kBytes];
    return memory[rank];
  }

  void before() {
    begin();
    geometry.slots = 2;
    for (int64_t& bytes : geometry.slot_bytes) bytes = 128;
    geometry.slot_bytes[int(Protocol::simple)] = 16;
    static_assert(sizeof(cpu::Bell) + 3 * sizeof(LinkCounters) + 32 + 512 <= kBytes);
    for (int r = 0; r < ranks; ++r) {
      std::memset(segment(r), 0, kBytes);
    }
    pages.emplace();
    for (int r = 0; r < ranks; ++r) {
      know_bell(*static_cast<cpu::Bell*>(segment(r)));
      const cpu::Ends ends = ends_of(r);
      words.begin("tail");
      (void)cpu::load_acquire(ends.mine.tail.value);
      words.begin("head");
      (void)cpu::load_acquire(ends.mine.head.value);
      know_calls(*pages->of[r], r);
      for (int slot = 0; slot < geometry.slots; ++slot) data.add(ends.from + slot * 16);
    }
  }
  void after() {
    pages.reset();
    end();
  }

  cpu::Ends ends_of(int r) {
    Segments s;
    s.mine = segment(r);
    s.next = segment((r + 1) % ranks);
    s.prev = segment((r + ranks - 1) % ranks);
    return cpu::Ends(s, geometry, Protocol::simple);
  }

  void thread(unsigned index) {
    const int rank = int(index);
    const Plan plan = Plan::make(collective, Protocol::simple, ranks, elements, 8, 1, geometry, 1);
    const Reducer reducer((Reduction()));
    int64_t* const tensor = tensors[rank];
    auto* const bytes = reinterpret_cast<std::byte*>(tensor);
    Control& page = *pages->of[rank];
    for (int call = 0; call < kCalls; ++call) {
      for (int64_t i = 0; i < elements; ++i) tensor[i] = (rank + 1) * 1000 + i;
      const CallWords what{uint64_t(call), elements};
      const uint64_t seq = page.begin(what);
      cpu::WaitHistory no_yields{cpu::Wait::Clock::time_point::max()};
      cpu::Wait wait(*static_cast<cpu::Bell*>(segment(rank)), 0, std::chrono::hours(1000),
                     no_yields);
      WaitReport report;
      cpu::SimpleLink link(cpu::LinkContext{
          ends_of(rank), wait, reducer, bytes, bytes, report,
          cpu::SameCall(page.calls_of((rank + ranks - 1) % ranks), seq, what, page.history())});
      check(run_schedule(plan, rank, 0, link) == Verdict::ok, "the schedule ends in ok");
      page.end(0);
      for (int64_t i = 0; i < elements; i += plan.chunk) {
        int64_t expected = 1000 + i;
        for (int r = 1; r < ranks && collective == Collective::all_reduce; ++r)
          expected += (r + 1) * 1000 + i;
        check(tensor[i] == expected, "the result is right");
      }
    }
  }
};

}  // namespace model
