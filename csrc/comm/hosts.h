// Which ranks of a group are on which host: those of one host share memory, and are a ring of their
// own, in which they have numbers of their own.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "comm/control.h"

namespace ringkern {

// A group's ranks and hosts, as one rank sees them. Hosts count from 0, by their first ranks.
class Hosts {
 public:
  // `host_of`: by rank; `names`: by host. Throws UsageError where these are no hosts of that rank.
  Hosts(int rank, std::vector<int> host_of, std::vector<std::string> names);

  int rank() const { return rank_; }
  int ranks() const { return int(host_of_.size()); }
  int count() const { return int(ranks_on_.size()); }
  int host() const { return host_of(rank_); }
  int local() const { return local_of(rank_); }

  int host_of(int rank) const { return host_of_[size_t(rank)]; }
  // Its number in its host's ring.
  int local_of(int rank) const { return local_of_[size_t(rank)]; }
  // In their order: the number in the host's ring is the place in this list.
  const std::vector<int>& ranks_on(int host) const { return ranks_on_[size_t(host)]; }
  // Local ranks that every host has: so many as the smallest.
  int rails() const { return rails_; }
  // All hosts have as many ranks, and host h has the h-th part of them.
  bool regular() const { return regular_; }

  // For messages: "b"; "host b (ranks 2, 3)"; "rank 3 on host b". A rank that is not of the group
  // is on no host.
  const std::string& name(int host) const { return names_[size_t(host)]; }
  std::string text(int host) const;
  std::string text_of_rank(int rank) const;

 private:
  int rank_, rails_ = 0;
  bool regular_ = true;
  std::vector<int> host_of_, local_of_;
  std::vector<std::string> names_;
  std::vector<std::vector<int>> ranks_on_;
};

// As "rank 3", "ranks 2, 3", "ranks 0 to 7", "ranks 0, 2, 5 and 61 more"; for ranks in their order.
std::string ranks_text(const std::vector<int>& ranks);

// What a host's ring says, in the group's numbers: each rank that the text names is a place in
// `ranks`. What is no such place stays as it is, and so does what Hosts says of a rank or a host.
// Not to be done twice.
std::string renumbered(const std::string& text, const std::vector<int>& ranks);
// The same, unless it was given to the ring (Failure::given).
Failure renumbered(Failure failure, const std::vector<int>& ranks);
// The same of an exception, if it is one of those that a Cause has.
std::exception_ptr renumbered(std::exception_ptr error, const std::vector<int>& ranks);

}  // namespace ringkern
