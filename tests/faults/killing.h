// kill -9 of a rank at a random moment: every other rank gets an error that names it, releases
// everything, and continues in a new communicator without it.
#pragma once

#include <regex>

#include "calls.h"
#include "comm/processes.h"

namespace ringkern::faults {

inline constexpr int kMostKilledRanks = 8;
inline constexpr double kPromised_ms = 1000;    // from a death to the errors of all others
inline constexpr double kUndetected_ms = 5000;  // for a rank of a busy machine, but no later
inline constexpr Milliseconds kMeetingTimeout{6000};
// The store's view of a rank that has not written its address.
inline constexpr int kUsesUnknown = 3;

// The result of one rank.
struct Witness {
  std::atomic<int> store_uses{0}, calls{0};
  std::atomic<bool> has_ended{false};
  Outcome first, again;  // the call that failed, and one that began later
  double close_ms = 0;
  char trouble[1000] = {};  // problems that it found itself
};

struct Scene {
  std::atomic<int64_t> killed_ns{0};
  std::atomic<uint64_t> killed{0};  // bits of ranks; complete when `over`
  std::atomic<bool> over{false};
  Witness witnesses[kMostKilledRanks];
};

// Counts the uses, so that a rank can be killed after the n-th, or during it: the use then never
// ends.
class CountedStore final : public Store {
 public:
  CountedStore(Store& store, std::atomic<int>& uses, int last)
      : store_(store), uses_(uses), last_(last) {}
  void set(const std::string& key, const std::string& value) override {
    use();
    store_.set(key, value);
  }
  std::string get(const std::string& key, Milliseconds timeout) override {
    use();
    return store_.get(key, timeout);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    use();
    return store_.add(key, amount);
  }

 private:
  void use() {
    if (++uses_ == last_)
      for (;;) ::pause();
  }

  Store& store_;
  std::atomic<int>& uses_;
  const int last_;
};

class KillRound {
 public:
  KillRound(uint64_t seed, int ranks) : seed_(seed), ranks_(ranks) {
    Random random(seed);
    victims_[0] = int(random.below(ranks));
    victims_[1] = random.one_in(7) && ranks > 2
                      ? int((victims_[0] + 1 + random.below(ranks - 1)) % ranks)
                      : -1;
    meeting_ = random.below(10) < 3;
    held_ = random.one_in(2);
    uses_ =
        int(1 + (random.one_in(12) ? random.below(kUsesUnknown) : kUsesUnknown + random.below(13)));
    calls_ = int(1 + random.below(20));
    pause_us_ = random.below(meeting_ ? 300 : 20'000);
    second_pause_us_ = random.below(5000);
  }

  // Returns an empty text, or the fault. The members below have the delays and outcomes.
  std::string run() {
    const int descriptors = test::open_files();
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks_; ++rank)
      pids.push_back(start([&, rank] { live(rank); }, /*limit_s=*/30));
    kill_them(pids);
    for (int rank = 0; rank < ranks_; ++rank) {
      const int status = end_of(pids[size_t(rank)], 20'000);
      const bool killed = scene_->killed >> rank & 1;
      if (status != (killed ? SIGKILL : 0))
        complain("rank " + std::to_string(rank) + " ended with status " + std::to_string(status));
    }
    for (int rank = 0; rank < ranks_; ++rank)
      if (!(scene_->killed >> rank & 1)) hear(rank);
    if (test::open_files() != descriptors) complain("a descriptor more in the parent");
    return trouble_;
  }

  std::string text() const {
    std::string text = "seed " + std::to_string(seed_) + ", " + std::to_string(ranks_) +
                       " ranks: rank " + std::to_string(victims_[0]);
    if (victims_[1] >= 0) text += " and rank " + std::to_string(victims_[1]);
    return text + " killed " + std::to_string(pause_us_) + " us after " +
           (!meeting_ ? "call " + std::to_string(calls_)
                      : (held_ ? "it has come to use " : "use ") + std::to_string(uses_) +
                            " of the store");
  }

  bool killed_while_meeting() const { return meeting_; }
  bool two_killed() const { return victims_[1] >= 0; }
  const std::vector<double>& delays() const { return delays_; }
  const std::vector<double>& closing() const { return closing_; }
  // Returns the number of ranks that only knew that the dead one did not come: it died before it
  // could be reached.
  int absences() const { return absences_; }

 private:
  void complain(const std::string& what) { trouble_ += "\n  " + what; }

  // ---- the parent -------------------------------------------------------------------------------

  void kill_them(const std::vector<pid_t>& pids) {
    const auto& victim = scene_->witnesses[victims_[0]];
    const auto reached = [&] {
      return meeting_ ? victim.store_uses >= uses_ || victim.calls > 0 : victim.calls >= calls_;
    };
    wait_for([&] { return reached() || anybody_failed(); }, 5'000);  // or where they are by then
    ::usleep(useconds_t(pause_us_));
    scene_->killed |= uint64_t(1) << victims_[0];
    scene_->killed_ns = now_ns();
    ::kill(pids[size_t(victims_[0])], SIGKILL);
    if (victims_[1] >= 0) {
      ::usleep(useconds_t(second_pause_us_));
      scene_->killed |= uint64_t(1) << victims_[1];
      ::kill(pids[size_t(victims_[1])], SIGKILL);
    }
    scene_->over = true;
  }

  bool anybody_failed() const {
    for (int rank = 0; rank < ranks_; ++rank)
      if (scene_->witnesses[rank].first.ending != Ending::nothing) return true;
    return false;
  }

  // Finds the victim alone, or in a list such as "did not come: rank 1 3".
  bool names_a_victim(const std::string& text) const {
    for (const int victim : victims_) {
      if (victim < 0) continue;
      const std::regex named("rank( [0-9]+)* " + std::to_string(victim) + "\\b");
      if (std::regex_search(text, named)) return true;
    }
    return false;
  }

  void hear(int rank) {
    const Witness& w = scene_->witnesses[rank];
    const std::string who = "rank " + std::to_string(rank), text = w.first.text;
    const std::string said = std::string(": ") + name_of(w.first.ending) + " \"" + text + "\"";
    if (!w.has_ended) return complain(who + " has not come to its end" + said);
    if (w.trouble[0] != 0) return complain(who + ": " + w.trouble);
    const double ms = ms_between(scene_->killed_ns, w.first.at_ns);
    if (ms < 0) return complain(who + " failed before anybody was killed" + said);
    // If a rank dies before it has written its address, the others only know that it did not come.
    const bool absent = scene_->witnesses[victims_[0]].store_uses <= kUsesUnknown &&
                        w.first.ending == Ending::rendezvous &&
                        text.find("no ring of ") != std::string::npos;
    const bool met = w.calls > 0;
    const Ending ending = w.first.ending;
    const bool right_kind = ending == Ending::peer_lost || ending == Ending::aborted ||
                            (!met && (ending == Ending::rendezvous || ending == Ending::transport));
    if (!right_kind) return complain(who + ": the wrong class" + said);
    if (!names_a_victim(text)) return complain(who + ": does not name who was killed" + said);
    if (ending == Ending::peer_lost && w.first.rank != victims_[0] && w.first.rank != victims_[1])
      return complain(who + ": facts.rank is " + std::to_string(w.first.rank) + said);
    if (w.again.ending != Ending::aborted || !names_a_victim(w.again.text))
      return complain(who + ", later: " + name_of(w.again.ending) + " \"" + w.again.text +
                      "\" does not quote" + said);
    if (absent) return void(++absences_);
    if (ms > kUndetected_ms)
      complain(who + " heard of it after " + std::to_string(ms) + " ms" + said);
    delays_.push_back(ms);
    closing_.push_back(w.close_ms);
  }

  // ---- a rank -----------------------------------------------------------------------------------

  void live(int rank) {
    Witness& mine = scene_->witnesses[rank];
    const Owned before = owned_at_first();
    {
      const int last = meeting_ && held_ && rank == victims_[0] ? uses_ : 0;
      const auto store = std::make_shared<CountedStore>(first_store_, mine.store_uses, last);
      const Device device = cpu_device(rank, ranks_, kMeetingTimeout);
      Communicator communicator(store, "kills", rank, ranks_, kMeetingTimeout);
      Tensors tensors(rank, ranks_);
      Random random(seed_), own(seed_ ^ uint64_t(rank + 1) << 32);
      const auto make_one = [&] {
        const Drawn drawn = draw(random, ranks_);
        const Task task = tensors.task(drawn, mine.calls);
        call(communicator, device, task, How(own.below(3)));
        check(mine, tensors.wrong(drawn, task, mine.calls));
      };
      while (attempt(mine.first, make_one)) {
        mine.first.ending = Ending::nothing;
        ++mine.calls;
      }
      check(mine, test::named_shared_memory());
      attempt(mine.again, make_one);
      if (!wait_for([&] { return scene_->over.load(); }, 10'000)) return;
      const int64_t start = now_ns();
      communicator.close();
      mine.close_ms = ms_between(start, now_ns());
    }
    check(mine, not_given_back(before));
    go_on(rank, mine);
    check(mine, not_given_back(before));
    mine.has_ended = true;
  }

  // The surviving ranks, in the same processes, as a ring of their own.
  void go_on(int rank, Witness& mine) {
    int new_rank = 0, ranks = 0;
    for (int r = 0; r < ranks_; ++r) {
      if (scene_->killed >> r & 1) continue;
      if (r == rank) new_rank = ranks;
      ++ranks;
    }
    // The last rank may learn of it by the timeout alone.
    const Milliseconds timeout = 2 * kMeetingTimeout;
    const Device device = cpu_device(new_rank, ranks, timeout);
    check(mine, new_ring_fails(second_store_, device, new_rank, ranks, timeout, seed_));
  }

  static void check(Witness& mine, const std::string& trouble) {
    if (!trouble.empty() && mine.trouble[0] == 0) write_text(mine.trouble, trouble);
  }

  const uint64_t seed_;
  const int ranks_;
  int victims_[2] = {-1, -1};
  bool meeting_ = false;  // killed while the ranks connect,
  bool held_ = false;     // in the middle of a store operation
  int uses_ = 0, calls_ = 0;
  int64_t pause_us_ = 0, second_pause_us_ = 0;
  Shared<Scene> scene_;
  test::SharedStore first_store_, second_store_;
  std::string trouble_;
  std::vector<double> delays_, closing_;
  int absences_ = 0;
};

// Runs many kills. Returns true if nothing went wrong; prints figures and failures.
inline bool kill_ranks(int kills, uint64_t seed, int ranks) {
  Delays meeting, calling, closing;
  int failures = 0, absences = 0, twos = 0;
  for (int i = 0; i < kills; ++i) {
    KillRound round(seed + uint64_t(i), ranks);
    const std::string trouble = round.run();
    if (!trouble.empty()) {
      std::printf("FAILED: %s%s\n", round.text().c_str(), trouble.c_str());
      std::fflush(stdout);
      ++failures;
    }
    for (const double ms : round.delays())
      (round.killed_while_meeting() ? meeting : calling).add(ms);
    for (const double ms : round.closing()) closing.add(ms);
    absences += round.absences() > 0;
    twos += round.two_killed();
  }
  std::printf("kill -9, %d ranks: %d kills (%d of them of two ranks), %d failures\n", ranks, kills,
              twos, failures);
  std::printf("  from the kill in a call or between two to the error of each survivor: %s\n",
              calling.text().c_str());
  std::printf("  from the kill while ranks find each other: %s\n", meeting.text().c_str());
  std::printf("  later than 1 s: %lld; close() of a survivor: %s\n",
              static_cast<long long>(calling.above(kPromised_ms) + meeting.above(kPromised_ms)),
              closing.text().c_str());
  std::printf("  killed before they could be reached, known by the timeout alone: %d\n", absences);
  std::fflush(stdout);
  return failures == 0;
}

}  // namespace ringkern::faults
