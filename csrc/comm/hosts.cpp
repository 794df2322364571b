#include "comm/hosts.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "comm/agreement.h"

namespace ringkern {
namespace {

// In full, and of a longer list.
constexpr size_t kMostListed = 4, kListedOfMore = 3;
constexpr size_t kMostName = 64;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Copies a text, and changes the numbers that are ranks.
class Renumberer {
 public:
  Renumberer(std::string_view text, const std::vector<int>& ranks) : text_(text), ranks_(ranks) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (take("disagree on the root: ")) of_roots_ = true;
      if (standing_ && comes(". ")) standing_ = false;
      if (standing_ && take("; ")) number();
      else if (take(" root=")) number();
      else if (!named()) copy(1);
    }
    return std::move(out_);
  }

 private:
  bool comes(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool digit_at(size_t at) const { return at < text_.size() && is_digit(text_[at]); }
  void copy(size_t n) {
    out_.append(text_.substr(at_, n));
    at_ += n;
  }
  bool take(std::string_view what) {
    if (!comes(what)) return false;
    copy(what.size());
    return true;
  }

  // "rank 1", "rank 1 2", "ranks 1, 2 and 3", or the first of "Per rank: 0 in ...; 1 done ...".
  bool named() {
    if (at_ > 0 && is_word(text_[at_ - 1])) return false;
    if (at_ > 0 && text_[at_ - 1] == '(') return false;  // as "host b (ranks 2, 3)" has it
    if (!take("rank") && !take("Rank")) return false;
    const bool many = take("s");
    if (!many && comes(": ") && digit_at(at_ + 2)) {
      copy(2);
      standing_ = true;
      number();
    } else if (comes(" ") && digit_at(at_ + 1)) {
      copy(1);
      number();
      while (separated(many)) number();
      if (of_roots_ && comes(" has ") && digit_at(at_ + 5)) copy(5), number();
    }
    return true;
  }

  // Whether another number of a list follows; then up to it. What "ranks 0, 2 and 61 more" ends
  // with is none.
  bool separated(bool many) {
    for (const std::string_view by : {", and ", ", ", " and ", " "}) {
      const size_t begin = at_ + by.size();
      if (many == (by == " ") || !comes(by) || !digit_at(begin)) continue;
      size_t end = begin;
      while (digit_at(end)) ++end;
      if (text_.substr(end).starts_with(" more")) return false;
      copy(by.size());
      return true;
    }
    return false;
  }

  void number() {
    size_t end = at_, value = 0;
    for (; digit_at(end); ++end)
      value = std::min(value * 10 + size_t(text_[end] - '0'), ranks_.size());
    const bool of_group = text_.substr(end).starts_with(" on host ");
    if (end == at_ || value == ranks_.size() || of_group) return copy(end - at_);
    out_ += std::to_string(ranks_[value]);
    at_ = end;
  }

  const std::string_view text_;
  const std::vector<int>& ranks_;
  size_t at_ = 0;
  bool standing_ = false;  // in the list of what each rank does, up to its full stop
  bool of_roots_ = false;  // what ranks have is a rank
  std::string out_;
};

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

std::string renumbered(const std::string& text, const std::vector<int>& ranks) {
  return Renumberer(text, ranks).run();
}

Failure renumbered(Failure failure, const std::vector<int>& ranks) {
  if (failure.given) return failure;
  const auto number = [&](int rank) {
    return rank >= 0 && size_t(rank) < ranks.size() ? ranks[size_t(rank)] : rank;
  };
  failure.text = renumbered(failure.text, ranks);
  failure.about.rank = number(failure.about.rank);
  failure.reporter = number(failure.reporter);
  return failure;
}

std::exception_ptr renumbered(std::exception_ptr error, const std::vector<int>& ranks) {
  const auto again = [&](Cause cause, const Error& e) {
    const Failure f = renumbered(Failure{cause, -1, e.facts, e.what()}, ranks);
    try {
      throw_as(f.cause, f.text, f.about);
    } catch (...) {
      return std::current_exception();
    }
  };
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError& e) {
    return again(Cause::timed_out, e);
  } catch (const MismatchError& e) {
    return again(Cause::mismatch, e);
  } catch (const PeerLostError& e) {
    return again(Cause::peer_lost, e);
  } catch (const AbortedError& e) {
    return again(Cause::aborted, e);
  } catch (...) {
    return error;
  }
}

}  // namespace ringkern
