// Calls whose kernels keep a clock, and their expected rows.
#include <algorithm>

#include "core/trace.h"
#include "ring.h"

namespace simt {

// Draws no random numbers: the rest of a seed is the same with a clock and without.
void Ring::choose_clock(Call& call) {
  const bool possible =
      !call.direct && call.reduction.dtype == DType::f32 && call.reduction.combine == Combine::sum;
  if (!possible || !wish_.clock.value_or(calls_.size() % 4 != 3)) return;
  const Plan& plan = call.plan;
  // There is a row for each verb, or for the first ones.
  const bool short_of = (settings_.seed + calls_.size()) % 4 == 1;
  call.room = short_of ? verbs_of(plan) / 2 : verbs_of(plan);
  const int64_t bytes = plan.channels * call.room * int64_t(sizeof(TimedVerb));
  for (int r = 0; r < ranks_; ++r)
    call.rows.push_back(
        memory().add("the timeline of rank " + std::to_string(r), Kind::own, r, bytes));
  cover("clock", name_of(plan.protocol));
  if (short_of) cover("clock", "without room");
}

void Ring::check_timeline(const Call& call, size_t number) {
  const Plan& plan = call.plan;
  const auto row = [&](int rank, int channel, int64_t i) {
    const auto* rows = reinterpret_cast<const TimedVerb*>(call.rows[size_t(rank)]);
    return read(rows + channel * call.room + i);
  };
  for (int r = 0; r < ranks_; ++r)
    for (int c = 0; c < plan.channels; ++c) {
      const std::vector<TraceEntry> verbs = trace(plan, r, c);
      int64_t before = 1;
      for (size_t i = 0; i < std::min(verbs.size(), size_t(call.room)); ++i) {
        const TimedVerb t = row(r, c, int64_t(i));
        const TraceEntry& e = verbs[i];
        const auto wrong = [&](const std::string& what) {
          throw Failure("timeline", "call " + std::to_string(number) + " rank " +
                                        std::to_string(r) + " channel " + std::to_string(c) +
                                        " verb " + std::to_string(i) + ": " + what);
        };
        if (t.number != int64_t(i) + 1 || t.verb != int64_t(e.verb)) wrong("another verb");
        if (t.offset != e.chunk.out || t.count != e.chunk.count) wrong("another chunk");
        if (t.start < before || t.end < t.start) wrong("time goes back");
        if (t.wait_prev < 0 || t.wait_next < 0 || t.wait_prev + t.wait_next > t.end - t.start)
          wrong("waited for longer than it took");
        if (t.wait_prev > 0 && !receives(e.verb)) wrong("waited for data that it does not take");
        if (t.wait_next > 0 && !sends(e.verb)) wrong("waited for a slot that it does not fill");
        if (t.wait_prev > 0) cover("clock", "for prev");
        if (t.wait_next > 0) cover("clock", "for next");
        // In an all-reduce a verb receives the data that prev has sent in the step before; without
        // a counter for it, an empty chunk is not waited for.
        if (plan.collective == Collective::all_reduce && receives(e.verb) &&
            (e.chunk.count > 0 || plan.protocol == Protocol::simple) &&
            row(prev_of(c, r), c, int64_t(i) - 1).start > t.end)
          wrong("it ends before what feeds it begins");
        before = t.end;
      }
    }
}

}  // namespace simt
