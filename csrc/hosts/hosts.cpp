#include "hosts/hosts.h"

#include <algorithm>
#include <utility>

namespace ringkern {
namespace {

// The ranks that a text lists in full, and of a longer list.
constexpr size_t kMostListed = 4, kListedOfMore = 3;
constexpr size_t kMostName = 64;

}  // namespace

Hosts::Hosts(int rank, std::vector<int> host_of, std::vector<std::string> names)
    : rank_(rank), host_of_(std::move(host_of)), names_(std::move(names)) {
  if (rank < 0 || rank >= ranks())
    throw UsageError(rank_text(rank) + " is not among the " + std::to_string(ranks()) +
                     " ranks whose hosts are given: give the host of each rank of the group");
  for (int r = 0; r < ranks(); ++r) {
    const int host = this->host_of(r);
    if (host < 0 || host > count())
      throw UsageError(rank_text(r) + " is on host number " + std::to_string(host) + ", after " +
                       std::to_string(count()) +
                       " other hosts. Hosts are numbered from 0 in the order of their first ranks");
    if (host == count()) ranks_on_.emplace_back();
    local_of_.push_back(int(ranks_on(host).size()));
    ranks_on_[size_t(host)].push_back(r);
  }
  if (names_.size() != ranks_on_.size())
    throw UsageError(std::to_string(names_.size()) + " names are given for " +
                     std::to_string(count()) + " hosts: give each host one");
  for (size_t host = 0; host < names_.size(); ++host) {
    if (names_[host].empty())
      throw UsageError("host number " + std::to_string(host) + " has an empty name: give it one, " +
                       "for messages");
    names_[host] = printable(names_[host], kMostName);
  }
  const auto fewest = std::ranges::min_element(ranks_on_, {}, &std::vector<int>::size);
  rails_ = int(fewest->size());
  for (int r = 0; r < ranks(); ++r)
    regular_ = regular_ && rails_ * count() == ranks() && this->host_of(r) == r / rails_;
}

std::string Hosts::text(int host) const {
  return "host " + name(host) + " (" + ranks_text(ranks_on(host)) + ")";
}

std::string Hosts::text_of_rank(int rank) const {
  if (rank < 0 || rank >= ranks()) return rank_text(rank);
  return rank_text(rank) + " on host " + name(host_of(rank));
}

Fault Hosts::at_home(Fault fault) const {
  for (RankSeen* const seen : {&fault.mine, &fault.theirs})
    if (seen->rank >= 0 && seen->rank < ranks()) seen->host = name(host_of(seen->rank));
  return fault;
}

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no ranks";
  const size_t n = ranks.size();
  if (n > kListedOfMore && ranks.back() - ranks.front() + 1 == int(n))
    return "ranks " + std::to_string(ranks.front()) + " to " + std::to_string(ranks.back());
  std::string text = n == 1 ? "rank " : "ranks ";
  const size_t listed = n > kMostListed ? kListedOfMore : n;
  for (size_t i = 0; i < listed; ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text + (n > listed ? " and " + std::to_string(n - listed) + " more" : "");
}

}  // namespace ringkern
