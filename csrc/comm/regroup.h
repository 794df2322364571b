// The ranks of a ring agree which of them go on in a new ring: after a death, or to change the
// ranks. They use the control pages that they have mapped already, so they need neither a store nor
// any particular rank.
//
// STATE      one word on rank 0's page, which outlives that rank: the round, its stage, and the
//            rank that proposes. It changes only by compare-and-swap, so all ranks see one history.
//
//              gathering --> proposed --> formed
//                  ^             |
//                  +-- round+1 --+  a member has died or cannot join
//
// GATHERING  each rank publishes that it has arrived. The lowest rank that has arrived proposes the
//            members, once every rank has arrived or is gone, or when its time is over.
// PROPOSED   the members make the new ring, by a store in their pages (comm/page_store.h) or at the
//            address in the proposal, and publish that they have joined. The first to see that all
//            have joined sets the stage to formed.
// FORMED     final. A rank that is not a member gets an error, whatever it was doing meanwhile.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/control.h"
#include "comm/process.h"

namespace ringkern {

class Regroup {
 public:
  // The number of calls of a rank.
  struct Calls {
    uint64_t completed = 0, begun = 0;
  };
  struct Proposal {
    // Where the members meet the new ranks; at most RegroupPage::kMostAddress bytes.
    std::string address{};
    int joiners = 0;  // new ranks, after the members
  };
  using Propose = std::function<Proposal(const std::vector<int>& members)>;
  struct Round {
    uint64_t number = 0;
    int proposer = 0;
    std::vector<int> members{};  // rising
    Proposal proposal{};
    // These two are by member.
    std::vector<Process> processes{};
    std::vector<Calls> calls{};
  };

  // `look`, if any, is called in every wait; an exception from it ends the wait, and this rank then
  // no longer takes part.
  explicit Regroup(Control& control, std::function<void()> look = nullptr)
      : control_(control), look_(std::move(look)) {}

  // Returns the next round of which this rank is a member. `excluded`: ranks that must not go on,
  // the same on all others. Waits at most `patience` for the others in each round, and 1 s more for
  // a proposal. `propose` is called on this rank if it has to propose; its exceptions pass through.
  // Throws AbortedError if the others go on without this rank, MismatchError if ranks exclude
  // different ranks, TimeoutError if no round begins in time.
  Round gather(const std::vector<int>& excluded, Calls mine, Milliseconds patience,
               const Propose& propose);
  // Tells the others whether this rank has joined the new ring, and returns whether all have: the
  // ring of this round then stands on all members. If false, gather() returns the next round.
  bool conclude(const Round& round, bool joined, Milliseconds patience);
  // Throws RendezvousError if the round is over. `closer`: throws PeerLostError if a member is gone
  // that has not joined.
  void check(const Round& round, bool closer);
  // Returns whether a rank that is none of these may still run.
  bool leaves_out_alive(const std::vector<int>& members) const;

 private:
  enum class Stage : uint64_t { gathering, proposed, formed };
  struct State {
    uint64_t round = 0;
    Stage stage = Stage::gathering;
    int proposer = 0;

    uint64_t word() const { return round << 32 | uint64_t(stage) << 16 | uint64_t(proposer); }
  };

  State state() const;
  bool change(const State& from, const State& to);
  RegroupPage& page(int rank) const { return control_.regrouping(rank); }
  // Returns true for a rank whose process has ended, or that has closed its communicator.
  bool is_gone(int rank) const;
  bool has_arrived(int rank, uint64_t round) const;
  bool has_joined(int rank, uint64_t round) const;
  void arrive(uint64_t round, const std::vector<int>& excluded, Calls mine);
  // Returns whether every rank has arrived or is gone, and whether this rank is the lowest arrived.
  struct Arrivals {
    bool complete = true, lowest = true;
  };
  Arrivals arrivals(uint64_t round) const;
  // Sleeps between two looks at the pages, each time longer.
  void rest(std::chrono::microseconds& pause);
  void propose(const State& now, const Propose& make);
  Round proposed(const State& now) const;
  void check_alike(const Round& round) const;
  [[noreturn]] void throw_left_out(const State& now) const;

  Control& control_;
  const std::function<void()> look_;
};

}  // namespace ringkern
