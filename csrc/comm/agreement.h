// Synchronises ranks before they are connected: they wait for each other and vote on the ring.
//
// Votes are counted in one number, so that they have one order and one outcome. A vote for the ring
// adds 1; a vote against adds more than all others together. The ring is made if the sum equals its
// size. With one key per vote, a rank that runs out of time could read a different outcome.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/interfaces.h"
#include "comm/process.h"

namespace ringkern {

// The ranks of a ring, from the records that they left in the store before their first call.
struct Roster {
  std::vector<Process> processes{};  // by rank
  std::vector<int> numbers{};        // by rank: the numbers used in the store
  std::string departures{};  // key of the last rank to leave before its first call; empty: none
  Milliseconds waited{0};    // how long this rank has waited for the others already

  // Returns the fault of a rank that ended or left before its first call; nothing if there is none.
  std::optional<Fault> find_gone(Store& store) const;
  // Same as above; `left` returns the value of the key `departures`, or an empty string.
  std::optional<Fault> find_gone(const std::function<std::string()>& left) const;
  // Tells the others that this rank makes no call.
  void depart(Store& store, int rank) const;
  // Returns the roster of some of the ranks, numbered by their index in `ranks`.
  Roster of(const std::vector<int>& ranks) const;
  // Returns the time that is left of a timeout for a second wait.
  Milliseconds left_of(Milliseconds timeout) const;
};

// Thrown when a wait ends because of other ranks, which may know the reason better. If its facts
// name a rank, that rank is lost.
struct Lost : RendezvousError {
  using RendezvousError::RendezvousError;
};

class Agreement {
 public:
  Agreement(Store& store, const std::string& prefix, int rank, int size, Milliseconds timeout,
            RankNames names = {});

  // Marks this rank as present. Throws RendezvousError if its number is already in use.
  void arrive();
  // Leaves a note for the other ranks; waits for the note of another rank.
  void set_note(const std::string& value) { store_.set(key("rank", rank_), value); }
  std::string note_of(int rank, const std::string& waiting_for);
  // Publishes rank 0's decision; waits for it on the other ranks.
  void set_word(const std::string& value) { store_.set(key("word"), value); }
  std::string word() { return get(key("word"), "the word of rank 0"); }

  // Waits are cut into slices of `slice()`. Between slices, `look()` throws Lost if another rank
  // has given up, `closer` throws, or the time is over.
  Milliseconds slice() const;
  void look_closer(std::function<void()> closer) { closer_ = std::move(closer); }
  void look(const std::string& waiting_for);

  // Votes for the ring and waits until all ranks have voted. Throws Lost with the fault of the rank
  // that voted against.
  void agree();
  // Votes against the ring. Returns the fault of the first rank to refuse, which all ranks report.
  // Returns nothing if all ranks had already voted for the ring, which is then made.
  std::optional<Fault> refuse(const Fault& mine);

 private:
  std::string key(const std::string& name) const { return prefix_ + "/" + name; }
  std::string key(const std::string& name, int rank) const {
    return key(name) + "/" + std::to_string(rank);
  }
  std::string get(const std::string& key, const std::string& waiting_for);
  bool overdue() const { return Clock::now() >= deadline_; }
  std::string who_is_late(const std::string& waiting_for);

  Store& store_;
  const std::string prefix_;
  const int rank_, size_;
  const RankNames names_;
  const Milliseconds timeout_;
  const Clock::time_point start_, deadline_;
  double patience_ = 5;  // in seconds: a wait that takes longer is reported
  std::function<void()> closer_ = [] {};
};

}  // namespace ringkern
