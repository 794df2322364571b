// The map from ranks to hosts. The ranks of one host share memory and form a ring, in which they
// have local numbers.
#pragma once

#include <string>
#include <vector>

#include "comm/interfaces.h"

namespace ringkern {

// A group's ranks and hosts, as one rank sees them. Hosts count from 0, by their first ranks.
class Hosts {
 public:
  // `host_of`: by rank; `names`: by host. Throws UsageError if these do not describe hosts with
  // that rank.
  Hosts(int rank, std::vector<int> host_of, std::vector<std::string> names);

  int rank() const { return rank_; }
  int ranks() const { return int(host_of_.size()); }
  int count() const { return int(ranks_on_.size()); }
  int host() const { return host_of(rank_); }
  int local() const { return local_of(rank_); }

  int host_of(int rank) const { return host_of_[size_t(rank)]; }
  // Returns the number of a rank in its host's ring.
  int local_of(int rank) const { return local_of_[size_t(rank)]; }
  // Returns a host's ranks, in rank order; the number in the host's ring is the index in this list.
  const std::vector<int>& ranks_on(int host) const { return ranks_on_[size_t(host)]; }
  // Returns the number of local ranks that every host has: that of the smallest host.
  int rails() const { return rails_; }
  // Returns true if all hosts have the same number of ranks, and host h has the h-th part of all
  // ranks.
  bool regular() const { return regular_; }

  // For messages: "b"; "host b (ranks 2, 3)"; "rank 3 on host b". A rank outside the group is on no
  // host.
  const std::string& name(int host) const { return names_[size_t(host)]; }
  std::string text(int host) const;
  std::string text_of_rank(int rank) const;
  // Sets the hosts of the ranks that a fault concerns.
  Fault at_home(Fault fault) const;

 private:
  int rank_, rails_ = 0;
  bool regular_ = true;
  std::vector<int> host_of_, local_of_;
  std::vector<std::string> names_;
  std::vector<std::vector<int>> ranks_on_;
};

// Returns a text for ranks in rank order, such as "rank 3", "ranks 2, 3", "ranks 0 to 7" or "ranks
// 0, 2, 5 and 61 more".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace ringkern
