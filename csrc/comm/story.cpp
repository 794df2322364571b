#include "comm/story.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "comm/process.h"

namespace ringkern {
namespace {

constexpr size_t kCallsTold = 4;
constexpr int64_t kSilence = 2'000'000'000;  // ns without a beat, after which a process is stopped

const char* const kSameCalls =
    " All ranks must make the same calls in the same order, of tensors of the same size.";

std::string remedy(const Control& control) {
  return " The communicator" + (control.name.empty() ? "" : " '" + control.name + "'") +
         " is unusable now, on all ranks: close it and make a new one.";
}

std::string time_since(int64_t then) {
  return in_seconds(std::chrono::nanoseconds(coarse_now() - then));
}

std::string calls_of(const Control& control, int rank) {
  std::string text;
  for (const Call& call : control.last_calls(rank, kCallsTold))
    text += (text.empty() ? "" : ", ") + text_of(call);
  return text.empty() ? "none" : text;
}

// The first thing that two calls differ in, and what each of them has.
struct Difference {
  std::string field, a, b;
};
Difference difference(const CallWords& a, const CallWords& b) {
  const CallNames x = names_of(a.what), y = names_of(b.what);
  const auto differ = [](const char* p, const char* q) { return std::strcmp(p, q) != 0; };
  if (differ(x.collective, y.collective)) return {"the collective", x.collective, y.collective};
  if (differ(x.dtype, y.dtype)) return {"dtype", x.dtype, y.dtype};
  if (differ(x.op, y.op)) return {"op", x.op, y.op};
  if (differ(x.accumulate, y.accumulate)) return {"accumulate", x.accumulate, y.accumulate};
  if (a.count != b.count)
    return {"numel", std::to_string(elements_of(a)), std::to_string(elements_of(b))};
  const unsigned root_a = fields_of(a.what).root, root_b = fields_of(b.what).root;
  if (root_a != root_b) return {"the root", std::to_string(root_a), std::to_string(root_b)};
  if (differ(x.algorithm, y.algorithm)) return {"algorithm", x.algorithm, y.algorithm};
  if (differ(x.protocol, y.protocol)) return {"protocol", x.protocol, y.protocol};
  return {"a call before their last " + std::to_string(kCallLines), "made one", "made another"};
}

// Ranks that have made the call, by what they take it for.
std::map<int, Call> made(const Control& control, uint64_t seq) {
  std::map<int, Call> calls;
  for (int r = 0; r < control.ranks; ++r)
    if (const auto call = control.call(r, seq)) calls.emplace(r, *call);
  return calls;
}

std::optional<Failure> mismatch_in(const Control& control, uint64_t seq) {
  const std::map<int, Call> calls = made(control, seq);
  // Most ranks are right, or else the lowest one.
  int right = -1;
  long most = 0;
  for (const auto& [rank, call] : calls) {
    const long alike = std::count_if(calls.begin(), calls.end(), [&, &c = call](const auto& other) {
      return other.second.alike(c);
    });
    if (alike > most) most = alike, right = rank;
  }
  for (const auto& [wrong, call] : calls) {
    if (call.alike(calls.at(right))) continue;
    const int a = std::min(right, wrong), b = std::max(right, wrong);
    const CallWords &whole_a = calls.at(a).part_of, &whole_b = calls.at(b).part_of;
    const bool whole = whole_a != whole_b;  // what the ranks' programs call
    const Call call_a = whole ? Call{.words = whole_a} : calls.at(a);
    const Call call_b = whole ? Call{.words = whole_b} : calls.at(b);
    Difference d = difference(call_a.words, call_b.words);
    if (whole) d.field += " of the whole call";  // in the numbers of its own ranks
    const std::string text =
        "seq=" + std::to_string(seq) + ": ranks disagree on " + d.field + ": " + rank_text(a) +
        " has " + d.a + " (" + text_of(call_a) + "), " + rank_text(b) + " has " + d.b + " (" +
        text_of(call_b) + "). Last calls of " + rank_text(a) + ": " + calls_of(control, a) +
        "; of " + rank_text(b) + ": " + calls_of(control, b) + "." + kSameCalls + remedy(control);
    return Failure{Cause::mismatch, control.rank, Facts{wrong, seq}, text};
  }
  return {};
}

std::string standing(const Control& control, int rank) {
  const auto calls = control.last_calls(rank, 1);
  const std::string name = std::to_string(rank);
  if (const auto after = control.departed_after(rank))
    return name + " has left after seq=" + std::to_string(*after);
  if (calls.empty()) return name + " has made no call";
  const std::string seq = "seq=" + std::to_string(calls[0].seq);
  if (calls[0].ended == 0) return name + " in " + seq + " for " + time_since(calls[0].started);
  return name + " done with " + seq + " " + time_since(calls[0].ended) + " ago";
}

}  // namespace

std::string person(const Control& control, int rank) {
  const int64_t pid = control.pid_of(rank);
  return rank_text(rank) + (pid > 0 ? " (pid " + std::to_string(pid) + ")" : "");
}

std::optional<Failure> find_mismatch(const Control& control) {
  const uint64_t last = control.last_seq();
  // Where the latest calls that two ranks have both made are alike, with their histories, so are
  // all before them.
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
    if (auto found = mismatch_in(control, seq)) return found;
  return {};
}

std::optional<Failure> find_departed(const Control& control) {
  for (int r = 0; r < control.ranks; ++r) {
    const auto after = control.departed_after(r);
    if (r == control.rank || !after || control.last_seq() <= *after) continue;
    const uint64_t seq = *after + 1;
    const auto mine = control.call(control.rank, seq);
    const std::string text =
        person(control, r) + " closed its communicator, or its program ended normally, after " +
        (*after == 0 ? "no call at all" : "seq=" + std::to_string(*after)) + ", and " +
        rank_text(control.rank) +
        " made one more: " + (mine ? text_of(*mine) : "seq=" + std::to_string(seq)) +
        ". Last calls of " + rank_text(r) + ": " + calls_of(control, r) + "." + kSameCalls +
        remedy(control);
    return Failure{Cause::peer_lost, control.rank, Facts{r, seq}, text};
  }
  return {};
}

Failure peer_lost(const Control& control, int peer, const std::string& how) {
  const auto calls = control.last_calls(control.rank, 1);
  const bool waits = !calls.empty() && calls[0].ended == 0;
  const std::string text =
      person(control, peer) + " died (" + how + ")" +
      (waits ? " during " + text_of(calls[0]) + ", in which " + rank_text(control.rank) +
                   " had been for " + time_since(calls[0].started)
             : "; " + rank_text(control.rank) + " was in no call") +
      ". Last calls of " + rank_text(peer) + ": " + calls_of(control, peer) +
      ". The results of a call that was in progress are undefined." + remedy(control);
  return {Cause::peer_lost, control.rank, Facts{peer, waits ? calls[0].seq : 0}, text};
}

Failure timed_out(const Control& control, const TimeoutError& error) {
  Failure f;
  f.cause = Cause::timed_out;
  f.reporter = control.rank;
  f.about = error.facts;
  // On a device the call is an earlier one, and which is not known.
  const uint64_t seq = f.about.seq != 0 ? f.about.seq : control.last_seq();
  if (const auto late = late_rank(control, seq)) f.about.rank = *late;
  f.text = (f.about.seq != 0 ? "seq=" + std::to_string(seq) + " " : "") + error.what();
  if (const int late = f.about.rank; late >= 0)
    f.text += " Waiting for " + person(control, late) + ", which " +
              whereabouts(control, late, seq) + "; " + condition(control, late) + ".";
  f.text += " Per rank: ";
  for (int r = 0; r < control.ranks; ++r) f.text += (r > 0 ? "; " : "") + standing(control, r);
  f.text += "." + remedy(control);
  return f;
}

std::optional<int> late_rank(const Control& control, uint64_t seq) {
  std::optional<int> late;
  uint64_t farthest = seq;
  for (int r = 0; r < control.ranks; ++r) {
    const auto calls = control.last_calls(r, 1);
    const uint64_t at = calls.empty() ? 0 : calls[0].seq;
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

std::string condition(const Control& control, int rank) {
  if (const int64_t pid = control.pid_of(rank); pid > 0)
    return "its process is " + process_state_text(pid);
  // In another pid namespace all that is known of it is that its watch ticks, or does not.
  return "its process, which cannot be seen from here, gave its last sign of life " +
         time_since(control.last_beat_of(rank)) + " ago";
}

std::string whereabouts(const Control& control, int rank, uint64_t seq) {
  const auto calls = control.last_calls(rank, 1);
  if (calls.empty()) return "has made no call yet";
  const Call& last = calls[0];
  const std::string since = last.ended == 0 ? "in which it is for " + time_since(last.started)
                                            : "which ended " + time_since(last.ended) + " ago";
  if (last.seq < seq) return "has not made this call; its last was " + text_of(last) + ", " + since;
  return "has made it, " + std::string(last.ended == 0 ? "and is in " : "and has done ") +
         text_of(last);
}

}  // namespace ringkern
