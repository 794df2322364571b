// What ranks do together before they are connected: wait for each other, and vote.
//
// Votes are counted in one number, so that they have one order and one outcome: a vote for the ring
// adds 1, a vote against adds more than all others could, and the ring is made when the sum is its
// size. Votes in keys of their own could be read differently by a rank that runs out of time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/ports.h"
#include "comm/process.h"

namespace ringkern {

// The ranks of a ring, as each has made itself known in the store before its first call.
struct Roster {
  std::vector<Process> processes{};  // by rank
  std::vector<int> numbers{};        // by rank, those that the store has
  std::string departures{};  // key of the last rank to leave before its first call; empty: none
  Milliseconds waited{0};    // this rank has waited so long for the others already

  // Returns a rank that will not make its first call, if one can be seen.
  std::optional<Fault> find_gone(Store& store) const;
  // The same; `left`: returns what is under `departures`, nothing if there is none.
  std::optional<Fault> find_gone(const std::function<std::string()>& left) const;
  // Tells the others that this rank makes no call.
  void depart(Store& store, int rank) const;
  // Returns what is known of some of the ranks, whose numbers here are their places among them.
  Roster of(const std::vector<int>& ranks) const;
  // Returns what is left of a timeout for a second wait.
  Milliseconds left_of(Milliseconds timeout) const;
};

// The end of a wait whose reason lies with other ranks, who may know it better. A rank that its
// facts name is lost.
struct Lost : RendezvousError {
  using RendezvousError::RendezvousError;
};

class Agreement {
 public:
  Agreement(Store& store, const std::string& prefix, int rank, int size, Milliseconds timeout,
            RankNames names = {});

  // Makes this rank count as present.
  void arrive();
  // Leaves a note for the others; waits for the note of another rank.
  void set_note(const std::string& value) { store_.set(key("rank", rank_), value); }
  std::string note_of(int rank, const std::string& waiting_for);
  // What rank 0 says for all, and what the others hear.
  void set_word(const std::string& value) { store_.set(key("word"), value); }
  std::string word() { return get(key("word"), "the word of rank 0"); }

  // Every wait is cut in slices of `slice()`, with a `look()` between them, which throws Lost when
  // another rank has given up, `closer` throws, or the time is over.
  Milliseconds slice() const;
  void look_closer(std::function<void()> closer) { closer_ = std::move(closer); }
  void look(const std::string& waiting_for);

  // Votes for the ring and waits until all have. Throws Lost with the fault of who voted against.
  void agree();
  // Votes against. Returns the fault that all ranks get, which is that of the first to refuse; or
  // nothing if it is too late: all have voted for the ring, and it is made.
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
  double patience_ = 5;  // in seconds: how long it may take before somebody is told
  std::function<void()> closer_ = [] {};
};

}  // namespace ringkern
