#include "comm/regroup.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

namespace ringkern {
namespace {

// The time after which another rank proposes in place of the lowest, which may be stopped.
constexpr Milliseconds kProposalComes{1000};
constexpr std::chrono::microseconds kFirstPause{100}, kLongestPause{2000};

template <class T>
T load(const T& word) {
  return std::atomic_ref(const_cast<T&>(word)).load(std::memory_order_acquire);
}
template <class T>
void store(T& word, T value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

bool in_set(const uint64_t (&set)[RegroupPage::kWords], int rank) {
  return (load(set[rank / 64]) >> (rank % 64) & 1) != 0;
}
void set_to(uint64_t (&set)[RegroupPage::kWords], const std::vector<int>& ranks) {
  uint64_t bits[RegroupPage::kWords] = {};
  for (const int rank : ranks) bits[rank / 64] |= uint64_t(1) << (rank % 64);
  for (int i = 0; i < RegroupPage::kWords; ++i) store(set[i], bits[i]);
}

std::string list_of(const std::vector<int>& ranks, const RankNames& names) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(names.number(ranks[i]));
  return ranks.empty() ? "no rank" : text;
}

}  // namespace

Regroup::State Regroup::state() const {
  const uint64_t word = load(page(0).state);
  return {word >> 32, Stage(word >> 16 & 0xffff), int(word & 0xffff)};
}

bool Regroup::change(const State& from, const State& to) {
  uint64_t expected = from.word();
  return std::atomic_ref(page(0).state).compare_exchange_strong(expected, to.word());
}

bool Regroup::is_gone(int rank) const {
  if (rank == control_.rank) return false;
  if (control_.departed_after(rank) || has_ended(control_.process_of(rank))) return true;
  // In another pid namespace only its neighbours have seen its end.
  const auto failure = control_.failure();
  return failure &&
         (failure->event == Event::died_in_call || failure->event == Event::died_between_calls) &&
         failure->rank == control_.names.number(rank);
}

bool Regroup::has_arrived(int rank, uint64_t round) const {
  return load(page(rank).arrived) == round + 1;
}
bool Regroup::has_joined(int rank, uint64_t round) const {
  return load(page(rank).joined) == round + 1;
}

void Regroup::arrive(uint64_t round, const std::vector<int>& excluded, Calls mine) {
  RegroupPage& own = page(control_.rank);
  set_to(own.excluded, excluded);
  store(own.completed, mine.completed);
  store(own.begun, mine.begun);
  store(own.arrived, round + 1);
}

Regroup::Arrivals Regroup::arrivals(uint64_t round) const {
  Arrivals found;
  for (int r = 0; r < control_.ranks; ++r) {
    if (r == control_.rank || in_set(page(control_.rank).excluded, r)) continue;
    const bool arrived = has_arrived(r, round), gone = is_gone(r);
    found.complete = found.complete && (arrived || gone);
    found.lowest = found.lowest && (r > control_.rank || !arrived || gone);
  }
  return found;
}

void Regroup::rest(std::chrono::microseconds& pause) {
  try {
    if (look_) look_();
  } catch (...) {
    store(page(control_.rank).arrived, uint64_t(0));
    store(page(control_.rank).joined, uint64_t(0));
    const State now = state();
    if (now.stage == Stage::proposed && in_set(page(now.proposer).members, control_.rank))
      change(now, {now.round + 1, Stage::gathering, 0});
    throw;
  }
  std::this_thread::sleep_for(pause);
  pause = std::min(2 * pause, kLongestPause);
}

void Regroup::propose(const State& now, const Propose& make) {
  std::vector<int> members;
  for (int r = 0; r < control_.ranks; ++r)
    if (!in_set(page(control_.rank).excluded, r) && has_arrived(r, now.round) && !is_gone(r))
      members.push_back(r);
  const Proposal proposal = make(members);
  if (proposal.address.size() >= RegroupPage::kMostAddress)
    throw UsageError("the address '" + proposal.address + "' is too long");
  RegroupPage& own = page(control_.rank);
  set_to(own.members, members);
  store(own.joiners, int64_t(proposal.joiners));
  std::memset(own.address, 0, sizeof own.address);
  std::memcpy(own.address, proposal.address.data(), proposal.address.size());
  change(now, {now.round, Stage::proposed, control_.rank});
}

Regroup::Round Regroup::proposed(const State& now) const {
  Round round{now.round, std::min(now.proposer, control_.ranks - 1)};
  const RegroupPage& its = page(round.proposer);
  for (int r = 0; r < control_.ranks; ++r)
    if (in_set(its.members, r)) {
      round.members.push_back(r);
      round.processes.push_back(control_.process_of(r));
      round.calls.push_back({load(page(r).completed), load(page(r).begun)});
    }
  round.proposal = {std::string(its.address, ::strnlen(its.address, sizeof its.address)),
                    int(load(its.joiners))};
  return round;
}

void Regroup::check_alike(const Round& round) const {
  const auto excluded_by = [&](int rank) {
    std::vector<int> ranks;
    for (int r = 0; r < control_.ranks; ++r)
      if (in_set(page(rank).excluded, r)) ranks.push_back(r);
    return ranks;
  };
  const int first = round.members.front();
  for (const int r : round.members) {
    if (excluded_by(r) == excluded_by(first)) continue;
    const RankNames& names = control_.names;
    throw MismatchError(names.text(first) + " excludes " + list_of(excluded_by(first), names) +
                        ", " + names.text(r) + " excludes " + list_of(excluded_by(r), names) +
                        ": give all ranks that go on the same ranks to exclude");
  }
}

void Regroup::throw_left_out(const State& now) const {
  const Round round = proposed(now);
  const RankNames& names = control_.names;
  const bool asked = in_set(page(now.proposer).excluded, control_.rank);
  throw AbortedError(
      list_of(round.members, names) + " of communicator '" + control_.name + "' went on without " +
      names.text(control_.rank) +
      (asked ? ", which they excluded" : ", which did not come in time: it was stopped or busy") +
      ". Close this communicator; the process can join them again, with "
      "ringkern.Communicator.join");
}

Regroup::Round Regroup::gather(const std::vector<int>& excluded, Calls mine, Milliseconds patience,
                               const Propose& make) {
  control_.allocate_notes();
  std::optional<uint64_t> arrived_in;
  auto deadline = Clock::now() + patience;
  auto complete_at = Clock::time_point::max();
  for (auto pause = kFirstPause;; rest(pause)) {
    const State now = state();
    if (now.stage == Stage::formed) throw_left_out(now);
    const bool over = Clock::now() >= deadline;
    if (now.stage == Stage::proposed) {
      Round round = proposed(now);
      if (state().word() != now.word()) continue;  // its proposer may write the next one
      if (std::ranges::count(round.members, control_.rank) > 0) {
        check_alike(round);  // the round stays, so that all its members find the difference
        return round;
      }
      // This rank came too late for this round; if that fails, it takes part in the next one.
      if (over && Clock::now() >= deadline + patience)
        throw TimeoutError("the other ranks of communicator '" + control_.name +
                           "' have not agreed within " + seconds_text(2 * patience));
      continue;
    }
    if (arrived_in != now.round) {
      arrive(now.round, excluded, mine);
      arrived_in = now.round;
      deadline = Clock::now() + patience;
      complete_at = Clock::time_point::max();
      continue;
    }
    const Arrivals found = arrivals(now.round);
    if (!found.complete && !over) continue;
    complete_at = std::min(complete_at, Clock::now());
    if (found.lowest || Clock::now() - complete_at > kProposalComes) propose(now, make);
  }
}

void Regroup::check(const Round& round, bool closer) {
  const State now = state();
  if (now.round == round.number && (now.stage == Stage::formed || !closer)) return;
  const RankNames& names = control_.names;
  if (now.round == round.number) {
    const auto lost = std::ranges::find_if(
        round.members, [&](int r) { return is_gone(r) && !has_joined(r, round.number); });
    if (lost == round.members.end()) return;
    throw PeerLostError(names.text(*lost) + " is gone, too", {names.number(*lost)});
  }
  throw RendezvousError(list_of(round.members, names) + " of communicator '" + control_.name +
                        "' begin again: one of them is gone, or could not join");
}

bool Regroup::leaves_out_alive(const std::vector<int>& members) const {
  for (int r = 0; r < control_.ranks; ++r)
    if (std::ranges::count(members, r) == 0 && !is_gone(r)) return true;
  return false;
}

bool Regroup::conclude(const Round& round, bool joined, Milliseconds patience) {
  const auto is_over = [&](const State& now) {
    return now.round != round.number || now.stage == Stage::formed;
  };
  State now = state();
  const auto fail = [&] { change(now, {round.number + 1, Stage::gathering, 0}); };
  if (!joined) {
    if (!is_over(now)) fail();
    return false;
  }
  store(page(control_.rank).joined, round.number + 1);
  const auto deadline = Clock::now() + patience;
  for (auto pause = kFirstPause; !is_over(now); rest(pause), now = state()) {
    bool all = true, lost = Clock::now() >= deadline;
    for (const int r : round.members) {
      const bool gone = is_gone(r);  // before the next line: a rank may join and end
      if (has_joined(r, round.number)) continue;
      all = false;
      lost = lost || gone;
    }
    if (all) change(now, {round.number, Stage::formed, now.proposer});
    else if (lost) fail();
  }
  return now.round == round.number;
}

}  // namespace ringkern
