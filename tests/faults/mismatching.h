// One rank makes a different call: each rank's error names the field, the rank and both values, and
// no rank accepts data of another call.
#pragma once

#include <thread>

#include "calls.h"
#include "comm/processes.h"
#include "pairs.h"

namespace ringkern::faults {

inline constexpr int kMostMismatchedRanks = 5;
// a mismatch that is only found by this timeout is a failure
inline constexpr Milliseconds kMismatchTimeout{8000};

inline const std::string kLongAgo = "ranks disagree on a call before their last 16: ";

class MismatchRound {
 public:
  explicit MismatchRound(uint64_t seed) : seed_(seed) {
    Random random(seed);
    ranks_ = int(2 + random.below(kMostMismatchedRanks - 1));
    odd_one_ = int(random.below(ranks_));
    field_ = Field(random.below(kFields));
    pair_ = draw_pair(random, field_, ranks_);
    at_ = random.below(6);
    late_one_ = int(random.below(ranks_));
    late_us_ = random.one_in(2) ? random.below(random.one_in(8) ? 300'000 : 30'000) : 0;
    threads_ = random.one_in(3);
    quiet_calls_ = random.one_in(4) ? 100 : 0;
  }

  // Returns an empty text, or the fault.
  std::string run() {
    std::vector<pid_t> pids;
    if (threads_) {
      pids.push_back(start([&] { live_as_threads(); }, /*limit_s=*/60));
    } else {
      for (int rank = 0; rank < ranks_; ++rank)
        pids.push_back(start([&, rank] { live_as_process(rank); }, /*limit_s=*/60));
    }
    for (const pid_t pid : pids)
      if (const int status = end_of(pid, 60'000); status != 0)
        complain("a process ended with status " + std::to_string(status));
    for (int rank = 0; rank < ranks_; ++rank) hear(rank);
    return trouble_;
  }

  std::string text() const {
    return "seed " + std::to_string(seed_) + ", " + std::to_string(ranks_) +
           (threads_ ? " threads: " : " processes: ") + name_of(field_) +
           " in seq=" + std::to_string(at_ + 1) + ": rank " + std::to_string(odd_one_) + " makes " +
           text_of(pair_.odd) + ", the others " + text_of(pair_.most) + "; rank " +
           std::to_string(late_one_) + " is " + std::to_string(late_us_) + " us late";
  }

  Field field() const { return field_; }
  const std::vector<double>& delays() const { return delays_; }
  int returned() const { return returned_; }    // ranks whose odd call needed no other
  int paired() const { return paired_; }        // ranks whose calls met others out of order
  int forgotten() const { return forgotten_; }  // ranks told of a call that is no longer recorded

 private:
  struct Witness {
    std::atomic<int64_t> entered_ns{0};  // start of the first call that differs
    std::atomic<bool> has_ended{false};
    int64_t failed_at = -1;  // index of the call
    bool returned = false;   // from the first call that differs
    bool paired = false;     // with the others' next one, or with their last
    Outcome first, again;
    char trouble[1000] = {};
  };
  struct Scene {
    Witness witnesses[kMostMismatchedRanks];
  };

  void complain(const std::string& what) { trouble_ += "\n  " + what; }

  // ---- the calls --------------------------------------------------------------------------------

  Drawn nth_call(int64_t i, int rank) const {
    const bool odd = rank == odd_one_;
    if (i == at_) return odd ? pair_.odd : pair_.most;
    if (i == at_ + 1 && field_ == Field::order) return odd ? pair_.most : pair_.odd;
    Random random(seed_ * 10'000 + uint64_t(i));
    for (;;)
      if (const Drawn d = draw(random, ranks_, 16 << 10);
          d.algorithm != Algorithm::ring || i < at_ || i > at_ + quiet_calls_)
        return d;
  }

  // Returns the salt of a call's tensors. It depends on the call alone, not on the order in which a
  // rank makes it.
  int64_t salt_of(int64_t i, int rank) const {
    const bool swapped = field_ == Field::order && rank == odd_one_;
    return swapped && i == at_ ? i + 1 : swapped && i == at_ + 1 ? i - 1 : i;
  }
  bool alike(int64_t i) const {
    return difference(nth_call(i, odd_one_), nth_call(i, odd_one_ ^ 1)).field.empty();
  }

  // Returns true if the call is complete and right although another rank does not make it: it is
  // empty, or the data came to this rank through ranks that do.
  bool may_return(int64_t i, int rank) const {
    const Drawn mine = nth_call(i, rank);
    if (mine.count == 0) return true;
    if (!mine.has_root()) return false;
    const int head = mine.root + (mine.collective == Collective::reduce ? 1 : 0);
    for (int r = head % ranks_; r != rank; r = (r + 1) % ranks_)
      if (!difference(nth_call(i, r), mine).field.empty()) return false;
    return true;
  }

  // ---- a rank -----------------------------------------------------------------------------------

  void live(int rank, const Device& device) {
    Witness& mine = scene_->witnesses[rank];
    const std::shared_ptr<Store> store(&first_store_, [](Store*) {});
    Communicator communicator(store, "mismatches", rank, ranks_, kMismatchTimeout);
    Tensors tensors(rank, ranks_);
    Random own(seed_ ^ uint64_t(rank + 1) << 32);
    const auto make = [&](int64_t i) {
      const Drawn drawn = nth_call(i, rank);
      const int64_t salt = salt_of(i, rank);
      const Task task = tensors.task(drawn, salt);
      if (i == at_ && rank == late_one_) ::usleep(useconds_t(late_us_));
      if (i == at_) mine.entered_ns = now_ns();
      call(communicator, device, task, How(own.below(3)));
      if (i == at_) mine.returned = true;
      const std::string wrong = tensors.wrong(drawn, task, salt);
      if (alike(i) || may_return(i, rank)) return check(mine, wrong);
      // Point-to-point, calls made in a different order may match each other.
      if (field_ != Field::order || drawn.algorithm == Algorithm::ring || !wrong.empty())
        return check(mine, "returned without the others from " + text_of(drawn) + "; " + wrong);
      mine.paired = true;
    };
    // A rank whose call needed no other gets the error in a later one.
    int64_t i = 0;
    while (attempt(mine.first, [&] { make(i); }) && i < at_ + 1000) ++i;
    mine.failed_at = i;
    attempt(mine.again, [&] { make(at_ + 2000); });
    communicator.close();
  }

  void live_again(int rank, const Device& device) {
    check(scene_->witnesses[rank],
          new_ring_fails(second_store_, device, rank, ranks_, kMismatchTimeout, seed_));
    scene_->witnesses[rank].has_ended = true;
  }

  void live_as_process(int rank) {
    const Owned before = owned_at_first();
    for (const auto part : {&MismatchRound::live, &MismatchRound::live_again}) {
      (this->*part)(rank, cpu_device(rank, ranks_, kMismatchTimeout));
      check(scene_->witnesses[rank], not_given_back(before));
    }
  }

  void live_as_threads() {
    const Owned before = owned_at_first();
    const auto memory = std::make_shared<cpu::LocalMemory>();
    const auto on_threads = [&](void (MismatchRound::*part)(int, const Device&)) {
      std::vector<std::thread> threads;
      for (int rank = 0; rank < ranks_; ++rank)
        threads.emplace_back(
            [&, rank] { (this->*part)(rank, cpu_device(rank, ranks_, kMismatchTimeout, memory)); });
      for (std::thread& thread : threads) thread.join();
      check(scene_->witnesses[0], not_given_back(before));
    };
    on_threads(&MismatchRound::live);
    on_threads(&MismatchRound::live_again);
  }

  static void check(Witness& mine, const std::string& trouble) {
    if (!trouble.empty() && mine.trouble[0] == 0) write_text(mine.trouble, trouble);
  }

  // ---- the ranks' reports -----------------------------------------------------------------------

  // Checks that the text has the field, the odd rank with its value, and another rank with its
  // value. For a call that is no longer recorded, checks only that the text says so.
  bool tells_all(const std::string& text, int64_t in_call) const {
    if (in_call >= at_ + kCallLines && text.find(kLongAgo) != std::string::npos) return true;
    const Difference d = difference(pair_.odd, pair_.most);
    if (text.find("ranks disagree on " + d.field + ": ") == std::string::npos) return false;
    const auto has = [&](int rank, const std::string& value) {
      return text.find("rank " + std::to_string(rank) + " has " + value + " (") !=
             std::string::npos;
    };
    bool other = false;
    for (int rank = 0; rank < ranks_; ++rank) other |= rank != odd_one_ && has(rank, d.b);
    return other && has(odd_one_, d.a);
  }

  void hear(int rank) {
    const Witness& w = scene_->witnesses[rank];
    const std::string who = "rank " + std::to_string(rank), text = w.first.text;
    const std::string said = std::string(": ") + name_of(w.first.ending) + " \"" + text +
                             "\" in seq=" + std::to_string(w.failed_at + 1);
    if (!w.has_ended) return complain(who + " has not come to its end" + said);
    if (w.trouble[0] != 0) return complain(who + ": " + w.trouble + said);
    // A rank that joins just before the report may get it before its call has begun.
    const bool late = w.entered_ns + 50'000'000 > known_ns();
    const bool told_later = w.first.ending == Ending::aborted && (w.returned || late);
    if (w.first.ending != Ending::mismatch && !told_later)
      return complain(who + ": the wrong class" + said);
    if (!tells_all(text, w.failed_at)) return complain(who + ": not the whole story" + said);
    if (w.failed_at < at_) return complain(who + ": too early" + said);
    if (w.first.ending == Ending::mismatch && w.first.seq != uint64_t(at_ + 1) &&
        text.find(kLongAgo) == std::string::npos)
      return complain(who + ": facts.seq is " + std::to_string(w.first.seq) + said);
    // The error names one of the ranks that differ: the odd one, if the calls of more than two are
    // known.
    const std::string blamed = "rank " + std::to_string(w.first.rank) + " has ";
    if (w.first.ending == Ending::mismatch && text.find(blamed) == std::string::npos)
      return complain(who + ": facts.rank is " + std::to_string(w.first.rank) + said);
    if (w.again.ending != Ending::aborted || !tells_all(w.again.text, w.failed_at))
      return complain(who + ", later: " + name_of(w.again.ending) + " \"" + w.again.text +
                      "\" does not quote" + said);
    paired_ += w.paired;
    if (w.returned) ++returned_;
    else delays_.push_back(ms_between(std::max(known_ns(), w.entered_ns.load()), w.first.at_ns));
    forgotten_ += text.find(kLongAgo) != std::string::npos;
  }

  // Returns the time at which both differing calls had begun.
  int64_t known_ns() const {
    int64_t others = INT64_MAX;
    for (int rank = 0; rank < ranks_; ++rank)
      if (rank != odd_one_) others = std::min(others, scene_->witnesses[rank].entered_ns.load());
    return std::max(others, scene_->witnesses[odd_one_].entered_ns.load());
  }

  const uint64_t seed_;
  int ranks_, odd_one_, late_one_;
  Field field_;
  Pair pair_;
  int64_t at_, late_us_;
  int64_t quiet_calls_;  // after the first mismatch, calls that would not meet its leftovers
  bool threads_;
  Shared<Scene> scene_;
  test::SharedStore first_store_, second_store_;
  std::string trouble_;
  std::vector<double> delays_;
  int returned_ = 0, paired_ = 0, forgotten_ = 0;
};

// Runs many mismatches. Returns true if nothing went wrong; prints figures and failures.
inline bool mismatch_calls(int mismatches, uint64_t seed) {
  Delays all;
  int failures = 0, returned = 0, paired = 0, forgotten = 0, of[kFields] = {};
  for (int i = 0; i < mismatches; ++i) {
    MismatchRound round(seed + uint64_t(i));
    const std::string trouble = round.run();
    if (!trouble.empty()) {
      std::printf("FAILED: %s%s\n", round.text().c_str(), trouble.c_str());
      std::fflush(stdout);
      ++failures;
    }
    for (const double ms : round.delays()) all.add(ms);
    returned += round.returned();
    paired += round.paired();
    forgotten += round.forgotten();
    ++of[int(round.field())];
  }
  std::printf("mismatches, 2 to %d ranks: %d, %d failures;", kMostMismatchedRanks, mismatches,
              failures);
  for (int field = 0; field < kFields; ++field)
    std::printf(" %s %d%s", name_of(Field(field)), of[field], field + 1 < kFields ? "," : "\n");
  std::printf("  from when both calls had begun to the error of each rank: %s\n",
              all.text().c_str());
  std::printf(
      "  later than 1 s: %lld; told in a later call, as theirs needed nobody: %d ranks, of "
      "them %d when that was no longer recorded\n",
      static_cast<long long>(all.above(1000)), returned, forgotten);
  std::printf("  in whose calls ranks found each other out of order, and were right: %d\n", paired);
  std::fflush(stdout);
  return failures == 0;
}

}  // namespace ringkern::faults
