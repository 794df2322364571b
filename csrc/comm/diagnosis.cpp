#include "comm/diagnosis.h"

#include <algorithm>
#include <map>

namespace ringkern {
namespace {

constexpr int64_t kSilence = 2'000'000'000;  // ns without a beat, after which a process is stopped

CallSeen seen(const Control& control, const CallRecord& call, bool whole = false) {
  CallSeen shown;
  shown.is_there = 1;
  shown.seq = whole ? 0 : call.seq;
  shown.words = control.names.words(whole ? call.part_of : call.words);
  shown.ended = call.ended != 0;
  shown.age_ns = coarse_now() - (call.ended != 0 ? call.ended : call.started);
  return shown;
}

// Returns a fault of `rank` in the call `seq`, found by this rank.
Fault found(const Control& control, Event event, int rank, uint64_t seq) {
  Fault f = fault_of(event, control.names.number(control.rank), control.names.number(rank), seq);
  f.mine = seen(control, control.rank);
  f.theirs = seen(control, rank);
  f.group = control.name;
  return f;
}

// Returns the calls with the number `seq` that the pages still show, by rank.
std::map<int, CallRecord> made(const Control& control, uint64_t seq) {
  std::map<int, CallRecord> calls;
  for (int r = 0; r < control.ranks; ++r)
    if (const auto call = control.call(r, seq)) calls.emplace(r, *call);
  return calls;
}

std::optional<Fault> mismatch_in(const Control& control, uint64_t seq) {
  const std::map<int, CallRecord> calls = made(control, seq);
  // The most frequent call is right; on a tie, that of the lowest rank.
  int right = -1;
  long most = 0;
  for (const auto& [rank, call] : calls) {
    const long alike = std::count_if(calls.begin(), calls.end(), [&, &c = call](const auto& other) {
      return other.second.alike(c);
    });
    if (alike > most) most = alike, right = rank;
  }
  for (const auto& [wrong, call] : calls) {
    const CallRecord& usual = calls.at(right);
    if (call.alike(usual)) continue;
    Fault f = found(control, Event::mismatch, wrong, seq);
    f.mine = seen(control, right);            // the lowest rank with the right call
    f.whole = call.part_of != usual.part_of;  // the whole calls differ, not only their steps
    f.mine.call = seen(control, usual, f.whole != 0);
    f.theirs.call = seen(control, call, f.whole != 0);
    return f;
  }
  return {};
}

}  // namespace

RankSeen seen(const Control& control, int rank) {
  RankSeen shown;
  shown.rank = control.names.number(rank);
  shown.on_page = 1;
  shown.pid = control.pid_of(rank);
  if (shown.pid > 0) shown.state = process_state(shown.pid);
  shown.silent_ns = coarse_now() - control.last_beat_of(rank);
  shown.calls = control.departed_after(rank).value_or(0);
  size_t i = 0;
  for (const CallRecord& call : control.last_calls(rank, RankSeen::kCalls))
    shown.last[i++] = seen(control, call);
  return shown;
}

std::optional<Fault> find_mismatch(const Control& control) {
  const uint64_t last = control.last_seq();
  // If the latest call that two ranks have in common is alike, with its history, so are all
  // before it.
  bool alike = true;
  for (int r = 0; r < control.ranks && alike; ++r) {
    const auto theirs = control.last_calls(r, 1);
    const uint64_t seq = theirs.empty() ? 0 : std::min(last, theirs[0].seq);
    const auto a = control.call(control.rank, seq), b = control.call(r, seq);
    alike = !a || !b || a->alike(*b);
  }
  if (alike) return {};
  const uint64_t most = kCallLines - 1;
  for (uint64_t seq = last > most ? last - most : 1; seq <= last; ++seq)
    if (auto fault = mismatch_in(control, seq)) return fault;
  return {};
}

std::optional<Fault> find_departed(const Control& control) {
  for (int r = 0; r < control.ranks; ++r) {
    const auto after = control.departed_after(r);
    if (!after || control.last_seq() <= *after) continue;
    const uint64_t seq = *after + 1;
    Fault f = found(control, Event::left, r, seq);
    if (const auto mine = control.call(control.rank, seq)) f.mine.call = seen(control, *mine);
    return f;
  }
  return {};
}

Fault peer_lost(const Control& control, int peer, const ProcessEnd& end) {
  const auto open = control.open_call(control.rank);
  Fault f = found(control, open ? Event::died_in_call : Event::died_between_calls, peer,
                  open ? open->seq : 0);
  f.theirs.end = end;
  if (open) f.mine.call = seen(control, *open);
  return f;
}

Fault timed_out(const Control& control, Fault f) {
  // A device may not report the number of the call.
  const uint64_t seq = f.seq != 0 ? f.seq : control.last_seq();
  const auto late = late_rank(control, seq);
  const int rank = late ? *late : control.names.rank(f.rank);
  f.rank = control.names.number(rank);
  CallSeen call = f.mine.call;
  if (const auto found = control.call(control.rank, f.seq)) call = seen(control, *found);
  f.mine = seen(control, control.rank);
  f.mine.call = call;
  // Ranks of one process share a control page, and have no number on it.
  if (rank >= 0 && rank < control.ranks) f.theirs = seen(control, rank);
  f.group = control.name;
  f.ranks = control.ranks;
  for (int r = 0; r < std::min(control.ranks, Fault::kRanks); ++r) {
    RankStands& one = f.stands[r];
    one.rank = control.names.number(r);
    if (const auto calls = control.last_calls(r, 1); !calls.empty())
      one.last = seen(control, calls[0]);
    if (const auto after = control.departed_after(r)) one.left = 1, one.last.seq = *after;
  }
  return f;
}

Fault failed_call(const Control& control, uint64_t seq, const std::string& what) {
  Fault f = found(control, Event::exception, control.rank, seq);
  if (const auto call = control.call(control.rank, seq)) f.mine.call = seen(control, *call);
  f.evidence = what;
  return f;
}

Fault late_in(const Control& control, const CallRecord& call, int late, Milliseconds waited,
              Milliseconds timeout) {
  Fault f = found(control, Event::late, late, call.seq);
  f.mine.call = seen(control, call);
  f.mine.call.age_ns =
      std::chrono::nanoseconds(std::chrono::floor<std::chrono::seconds>(waited)).count();
  f.timeout_ns = std::chrono::nanoseconds(timeout).count();
  return f;
}

std::optional<int> late_rank(const Control& control, uint64_t seq) {
  std::optional<int> late;
  uint64_t farthest = seq;
  for (int r = 0; r < control.ranks; ++r) {
    const auto calls = control.last_calls(r, 1);
    const auto open = control.open_call(r);  // on a device, calls that were made later may wait
    const uint64_t at = open ? open->seq : calls.empty() ? 0 : calls[0].seq;
    if (r != control.rank && at < farthest) farthest = at, late = r;
  }
  for (int r = 0; r < control.ranks && !late; ++r) {
    const int64_t pid = control.pid_of(r);
    const char state = process_state(pid);
    const bool stopped = pid > 0 ? state == 'T' || state == 't' || state == 'Z'
                                 : coarse_now() - control.last_beat_of(r) > kSilence;
    if (r != control.rank && stopped) late = r;
  }
  return late;
}

}  // namespace ringkern
