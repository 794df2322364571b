#include "comm/agreement.h"

#include <algorithm>
#include <charconv>

#include "comm/event_queue.h"
#include "fault/render.h"

namespace ringkern {
namespace {

constexpr Milliseconds kLookEvery{100};
constexpr Milliseconds kVerdictGrace{2000};
constexpr Milliseconds kLongest = std::chrono::hours(24 * 365);  // keeps the deadline within a
                                                                 // time_point

constexpr int64_t kRefused = int64_t(1) << 32;
const char* const kFormed = "formed";
}  // namespace

std::optional<Fault> Roster::find_gone(Store& store) const {
  return find_gone([&]() -> std::string {
    try {
      return departures.empty() ? "" : store.get(departures, Milliseconds(0));
    } catch (const TimeoutError&) {
      return "";
    }
  });
}

std::optional<Fault> Roster::find_gone(const std::function<std::string()>& left) const {
  const auto ended = std::ranges::find_if(processes, [](const Process& p) { return has_ended(p); });
  const std::string last = left();  // read last: a rank that leaves records it before its process
                                    // ends
  const auto gone = [&](Event event, int rank) {
    Fault f = fault_of(event, -1, RankNames{numbers}.number(rank));
    if (size_t(rank) < processes.size()) f.theirs.pid = processes[size_t(rank)].pid;
    return f;
  };
  int number = -1;
  std::from_chars(last.data(), last.data() + last.size(), number);
  for (size_t rank = 0; rank < numbers.size() && number >= 0; ++rank)
    if (numbers[rank] == number) return gone(Event::left_early, int(rank));
  if (ended == processes.end()) return {};
  Fault f = gone(Event::died_early, int(ended - processes.begin()));
  f.theirs.end = how_it_ended(-1, ended->pid);
  return f;
}

void Roster::depart(Store& store, int rank) const {
  if (!departures.empty() && size_t(rank) < numbers.size())
    store.try_set(departures, std::to_string(numbers[size_t(rank)]));
}

Roster Roster::of(const std::vector<int>& ranks) const {
  Roster some{{}, {}, departures, waited};
  for (const int rank : ranks) {
    if (size_t(rank) >= processes.size()) return {};
    some.processes.push_back(processes[size_t(rank)]);
    some.numbers.push_back(numbers[size_t(rank)]);
  }
  return some;
}

Milliseconds Roster::left_of(Milliseconds timeout) const {
  // At least one second, so that ranks that have just met do not time out by milliseconds.
  constexpr Milliseconds kLeast{1000};
  return std::max(timeout - waited, std::min(timeout, kLeast));
}

Agreement::Agreement(Store& store, const std::string& prefix, int rank, int size,
                     Milliseconds timeout, RankNames names)
    : store_(store), prefix_(prefix), rank_(rank), size_(size), names_(std::move(names)),
      timeout_(std::min(timeout, kLongest)), start_(Clock::now()), deadline_(start_ + timeout_) {}

Milliseconds Agreement::slice() const {
  const auto left = std::chrono::ceil<Milliseconds>(deadline_ - Clock::now());
  return std::clamp(left, Milliseconds(1), kLookEvery);
}

void Agreement::look(const std::string& waiting_for) {
  if (store_.add(key("votes"), 0) >= kRefused)
    throw Lost("another rank gave up while " + names_.text(rank_) + " waited for " + waiting_for);
  closer_();
  const double waited = std::chrono::duration<double>(Clock::now() - start_).count();
  if (overdue())
    throw Lost("no ring of " + std::to_string(size_) + " ranks within " + seconds_text(timeout_) +
               " (timed out)" + who_is_late(waiting_for) +
               ". All ranks must make this call, each within the timeout of the others");
  if (waited >= patience_) {
    patience_ = waited < 30 ? 30 : patience_ + 60;
    EventQueue::all().post(EventKind::warning, "'" + prefix_ + "': no ring of " +
                                                   std::to_string(size_) + " ranks yet, after " +
                                                   std::to_string(int(waited)) + " s" +
                                                   who_is_late(waiting_for) + ". It fails after " +
                                                   seconds_text(timeout_));
  }
}

std::string Agreement::who_is_late(const std::string& waiting_for) {
  std::string missing, unfinished;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const int64_t stage = store_.add(key("stage", r), 0);
    if (stage < 2) (stage == 0 ? missing : unfinished) += " " + std::to_string(names_.number(r));
  }
  std::string text;
  if (!missing.empty()) text += "; did not come: rank" + missing;
  if (!unfinished.empty()) text += "; came but did not finish connecting: rank" + unfinished;
  return text + "; " + names_.text(rank_) + " waited for " + waiting_for;
}

std::string Agreement::get(const std::string& key, const std::string& waiting_for) {
  for (;;) {
    try {
      return store_.get(key, slice());
    } catch (const TimeoutError&) {
    }
    look(waiting_for);
  }
}

std::string Agreement::note_of(int rank, const std::string& waiting_for) {
  return get(key("rank", rank), waiting_for);
}

void Agreement::arrive() {
  if (store_.add(key("stage", rank_), 1) != 1)
    throw RendezvousError(names_.text(rank_) +
                          " joined the ring twice. Give each process its own rank, "
                          "and make the same communicators in the same order on all ranks");
}

void Agreement::agree() {
  store_.add(key("stage", rank_), 1);
  if (store_.add(key("votes"), 1) == size_) return store_.set(key("verdict"), kFormed);
  const std::string verdict = get(key("verdict"), "all ranks to finish");
  if (verdict == kFormed) return;
  const Fault why = read_fault(verdict);
  throw Lost(text_of(why), facts_of(why));
}

std::optional<Fault> Agreement::refuse(const Fault& mine) {
  try {
    const int64_t votes = store_.add(key("votes"), kRefused);
    if (votes == kRefused + size_) {
      store_.set(key("verdict"), kFormed);  // in case the last voter died before it did this
      return std::nullopt;
    }
    // Only the first rank to refuse can tell from the sum whether it was in time, because votes for
    // the ring are also counted after a refusal.
    if (votes < 2 * kRefused) {
      store_.set(key("verdict"), to_bytes(mine));
      return mine;
    }
    const std::string verdict = store_.get(key("verdict"), kVerdictGrace);
    if (verdict == kFormed) return std::nullopt;
    return read_fault(verdict);
  } catch (const std::exception&) {
    // The store is gone, or the first to refuse died before it left its reason: report this rank's.
  }
  return mine;
}

}  // namespace ringkern
