// Each system call in the making and ending of a communicator fails once, on each rank. All ranks
// then agree: either none notices, or all get an error with the reason of the rank with the
// failure. Nothing is left behind, and the same processes make another communicator.
//
//     --cases 0 --seed 1     this many random cases by the seed; 0: all
//     --jobs 12              this many at a time
#include "faults/failing_calls.h"

#include <map>
#include <random>

#include "comm/processes.h"
#include "faults/made.h"
#include "faults/options.h"
#include "faults/shared.h"

using namespace ringkern;
using namespace ringkern::faults;

namespace {

// The possible results of a call. `passes`: no rank notices, because it is retried, or done in
// another way.
struct Answer {
  Callee callee;
  int error;
  bool passes;
};
constexpr Answer kAnswers[] = {
    {Callee::socket, EMFILE, false},
    {Callee::bind, EADDRINUSE, false},
    {Callee::listen, EADDRINUSE, false},
    {Callee::accept4, EMFILE, false},
    {Callee::accept4, ECONNABORTED, true},
    {Callee::accept4, EINTR, true},
    {Callee::connect, ECONNREFUSED, false},
    {Callee::connect, EAGAIN, true},
    {Callee::connect, EINTR, true},
    {Callee::sendmsg, ENOBUFS, false},
    {Callee::sendmsg, EINTR, true},
    {Callee::recvmsg, ENOMEM, false},
    {Callee::recvmsg, EAGAIN, true},
    {Callee::recvmsg, EINTR, true},
    {Callee::poll, ENOMEM, false},
    {Callee::poll, EINTR, true},
    {Callee::getsockopt, ENOBUFS, false},
    {Callee::shutdown, ENOTCONN, true},
    {Callee::memfd_create, EMFILE, false},
    {Callee::memfd_create, ENOSYS, true},
    {Callee::open, EMFILE, true},
    {Callee::ftruncate, ENOMEM, false},
    {Callee::fcntl, EPERM, false},
    {Callee::posix_fallocate, ENOSPC, false},
    {Callee::posix_fallocate, EINTR, true},
    {Callee::mmap, ENOMEM, false},
    {Callee::munmap, ENOMEM, true},
    {Callee::madvise, EINVAL, true},
    {Callee::fstat, EIO, false},
    {Callee::stat, EACCES, true},
    {Callee::read, EIO, true},
    {Callee::read, EAGAIN, true},
    {Callee::close, EIO, true},
    {Callee::fopen, EMFILE, true},
    {Callee::eventfd, EMFILE, false},
    {Callee::pidfd_open, EMFILE, true},
    {Callee::pidfd_open, ENOSYS, true},
    {Callee::futex, EINTR, true},
    {Callee::getrandom, ENOSYS, false},
    {Callee::getrandom, EINTR, true},
    {Callee::gethostname, ENAMETOOLONG, true},
    {Callee::pthread_create, EAGAIN, false},
};

struct Case {
  Made made = Made::communicator;
  int rank = -1;  // no rank
  int answer = 0;
  int number = 0;  // of the call, among those of its kind
};

std::string text_of(const Case& c) {
  const Answer& a = kAnswers[c.answer];
  return std::string(kMade[int(c.made)]) + ", call " + std::to_string(c.number) + " of " +
         kCallees[int(a.callee)] + " on rank " + std::to_string(c.rank) + ": " +
         std::generic_category().message(a.error);
}

struct RankResult {
  char error[1200];  // empty: none
  // the call failed; it did after this rank had made and used the communicator
  bool struck, at_the_end;
  Owned before, after;
  int seen[kCallKinds];
  bool ended;
};
struct CaseResult {
  RankResult ranks[kRanks];
  double ms;
};

// ---- one rank -----------------------------------------------------------------------------------

void run_rank(const Case& c, Store& shared, int rank, RankResult& result) {
  const std::shared_ptr<Store> store(&shared, [](Store*) {});
  // The first communicator of a process allocates resources for later ones; they do not count as
  // leaks.
  cpu::Arena::mine();
  use(c.made, store, "before", rank, [] {});
  result.before = owned();
  if (rank == c.rank) {
    fault.callee = int(kAnswers[c.answer].callee);
    fault.error = kAnswers[c.answer].error;
    fault.number = c.number;
  }
  fault.armed = true;
  try {
    use(c.made, store, "group", rank, [&] { result.at_the_end = !fault.struck; });
  } catch (const std::exception& e) {
    write_text(result.error, e.what()[0] != 0 ? e.what() : "an error without a text");
  }
  fault.armed = false;
  result.struck = fault.struck;
  result.at_the_end = result.at_the_end && fault.struck;
  for (int kind = 0; kind < kCallKinds; ++kind) result.seen[kind] = fault.seen[kind];
  meet(shared, "done");  // some may have waited for others in vain
  use(c.made, store, "after", rank, [] {});
  result.after = owned_once_settled(result.before);
  result.ended = true;
}

// ---- one case -----------------------------------------------------------------------------------

void run_case(const Case& c, CaseResult& result) {
  test::SharedStore store;
  const int64_t start_ns = now_ns();
  pid_t pids[kRanks];
  for (int rank = 0; rank < kRanks; ++rank)
    pids[rank] = start([&] { run_rank(c, store, rank, result.ranks[rank]); }, kPatience / 1000);
  for (const pid_t pid : pids) end_of(pid, kPatience);
  result.ms = ms_between(start_ns, now_ns());
}

// Returns the fault; empty: none.
std::string fault_in(const Case& c, const CaseResult& result) {
  int failed = 0;
  for (const RankResult& r : result.ranks) {
    const std::string who = "rank " + std::to_string(&r - result.ranks);
    if (!r.ended) return who + " has not ended, or not as it should";
    if (!(r.after == r.before))
      return who + " had " + text_of(r.before) + " and has " + text_of(r.after);
    failed += r.error[0] != 0;
  }
  // A p2p engine works between two ranks: ranks whose messages had arrived are not affected.
  if (c.made == Made::communicator && failed != 0 && failed != kRanks) {
    std::string text = "not the same on all ranks";
    for (const RankResult& r : result.ranks) text += std::string("\n    [") + r.error + "]";
    return text;
  }
  if (c.rank < 0) return failed == 0 ? "" : result.ranks[0].error;
  const RankResult& struck = result.ranks[c.rank];
  if (failed == 0) return "";
  if (kAnswers[c.answer].passes) return std::string("should have passed: ") + struck.error;
  if (struck.at_the_end) return std::string("too late to fail: ") + struck.error;
  // All name the rank with the failure, and its error.
  const std::string reason = std::generic_category().message(kAnswers[c.answer].error);
  for (const RankResult& r : result.ranks) {
    const std::string text = r.error;
    if (text.empty()) continue;
    if (text.find("rank " + std::to_string(c.rank)) == std::string::npos && &r != &struck)
      return "names another rank: " + text;
    // Two ranks do not vote on the reason; one may only see that the other has disconnected.
    if (c.made == Made::communicator && text.find(reason) == std::string::npos)
      return "does not say why: " + text;
  }
  return "";
}

// ---- all of them --------------------------------------------------------------------------------

// The number of calls of each kind that a rank makes without a failure.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Made made : {Made::communicator, Made::p2p_engine}) {
    const Shared<CaseResult> clean;
    const Case none{made};
    run_case(none, *clean);
    const std::string wrong = fault_in(none, *clean);
    if (!wrong.empty()) FAIL(wrong);
    for (int rank = 0; rank < kRanks; ++rank)
      for (int answer = 0; answer < int(std::size(kAnswers)); ++answer)
        for (int n = 0; n < clean->ranks[rank].seen[int(kAnswers[answer].callee)]; ++n)
          cases.push_back({made, rank, answer, n});
  }
  return cases;
}

struct Tally {
  int cases = 0, struck = 0, failed = 0, at_the_end = 0;
};

int run_all(const std::vector<Case>& cases, int jobs) {
  std::map<std::string, Tally> tallies;
  int wrong = 0;
  double longest_ms = 0;
  struct Running {
    pid_t pid = 0;
    size_t at = 0;
    std::unique_ptr<Shared<CaseResult>> result;
  };
  std::vector<Running> running;
  size_t next = 0;
  while (next < cases.size() || !running.empty()) {
    while (next < cases.size() && running.size() < size_t(jobs)) {
      Running r{0, next, std::make_unique<Shared<CaseResult>>()};
      const Case& c = cases[next++];
      r.pid = start([&] { run_case(c, **r.result); }, 2 * kPatience / 1000);
      running.push_back(std::move(r));
    }
    const Running first = std::move(running.front());
    running.erase(running.begin());
    const Case& c = cases[first.at];
    const CaseResult& result = **first.result;
    std::string text;
    if (end_of(first.pid, 2 * kPatience) != 0) text = "did not end";
    else text = fault_in(c, result);
    Tally& tally = tallies[kCallees[int(kAnswers[c.answer].callee)]];
    ++tally.cases;
    tally.struck += result.ranks[c.rank].struck;
    tally.failed += result.ranks[c.rank].error[0] != 0;
    tally.at_the_end += result.ranks[c.rank].at_the_end;
    longest_ms = std::max(longest_ms, result.ms);
    if (text.empty()) continue;
    ++wrong;
    std::printf("WRONG: %s\n  %s\n", text_of(c).c_str(), text.c_str());
    std::fflush(stdout);
  }
  std::printf("%-16s %6s %6s %22s %22s\n", "call", "cases", "struck", "error on all ranks",
              "struck at the end");
  Tally sum;
  for (const auto& [name, t] : tallies) {
    std::printf("%-16s %6d %6d %22d %22d\n", name.c_str(), t.cases, t.struck, t.failed,
                t.at_the_end);
    sum.cases += t.cases, sum.struck += t.struck, sum.failed += t.failed;
    sum.at_the_end += t.at_the_end;
  }
  std::printf("%-16s %6d %6d %22d %22d\nthe longest took %.1f s; %d are wrong\n", "all", sum.cases,
              sum.struck, sum.failed, sum.at_the_end, longest_ms / 1000, wrong);
  // A program without any failure proves nothing.
  CHECK(sum.struck > sum.cases / 2 && sum.failed > 0);
  return wrong;
}

TAKES_OPTIONS;

TEST_CASE("a system call that fails is an error of every rank") {
#if defined(__SANITIZE_THREAD__)
  std::puts("under ThreadSanitizer no call can be made to fail: there is nothing to run");
  return;
#endif
  auto options = read_options(test::arguments(), {{"--cases", 120}, {"--seed", 1}, {"--jobs", 12}});
  std::vector<Case> cases = all_cases();
  std::mt19937_64 random(static_cast<uint64_t>(options["--seed"]));
  std::shuffle(cases.begin(), cases.end(), random);
  std::printf("%zu cases", cases.size());
  if (const size_t some = size_t(options["--cases"]); some != 0 && some < cases.size()) {
    cases.resize(some);
    std::printf(", of which %zu are drawn by seed %lld", some,
                static_cast<long long>(options["--seed"]));
  }
  std::printf("\n");
  std::fflush(stdout);
  CHECK_EQ(run_all(cases, int(options["--jobs"])), 0);
}

}  // namespace
