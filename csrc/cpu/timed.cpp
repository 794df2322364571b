#include "cpu/timed.h"

#include <time.h>

#include <array>

#include "cpu/ll.h"
#include "cpu/ll128.h"
#include "cpu/simple.h"

namespace ringkern::cpu {
namespace {

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t(1'000'000'000) + t.tv_nsec;
}

// The waits of one verb, by WaitFor; ns.
using Waited = std::array<int64_t, 2>;

// Measures the part of a wait after its first look: data that is already there costs no wait.
struct TimedContext : LinkContext {
  TimedContext(const LinkContext& context, Waited& into) : LinkContext(context), waited(&into) {}

  template <class Ready>
  Verdict until(WaitFor what, Ready&& ready) {
    if (ready()) return Verdict::ok;
    const int64_t start = now();
    const Verdict verdict = LinkContext::until(what, ready);
    (*waited)[size_t(what)] += now() - start;
    return verdict;
  }
  Verdict wait_credit(Protocol p) {
    return checked(until(WaitFor::credit, [&] { return ends.has_credit(); }), p, WaitFor::credit);
  }

  Waited* waited;
};

template <class Link>
class TimedLink {
 public:
  TimedLink(const LinkContext& context, const Timeline& timeline)
      : timeline_(timeline), link_(TimedContext(context, waited_)) {}

  Verdict perform(Verb verb, const Plan& plan, const Chunk& chunk) {
    waited_ = {};
    const int64_t start = now();
    const Verdict verdict = link_.perform(verb, plan, chunk);
    const int64_t end = now();
    const int64_t index = next_++;
    if (TimedVerb* row = timeline_.row(/*channel=*/0, index))
      *row = {index + 1,
              int64_t(verb),
              chunk.out,
              chunk.count,
              start,
              end,
              waited_[size_t(WaitFor::data)],
              waited_[size_t(WaitFor::credit)]};
    return verdict;
  }

 private:
  const Timeline& timeline_;
  int64_t next_ = 0;
  Waited waited_{};
  Link link_;
};

template <class Link>
Verdict run(const LinkContext& context, const Plan& plan, int rank, const Timeline& timeline) {
  TimedLink<Link> link(context, timeline);
  return run_schedule(plan, rank, /*channel=*/0, link);
}

}  // namespace

Verdict run_timed(const LinkContext& context, const Plan& plan, int rank,
                  const Timeline& timeline) {
  switch (plan.protocol) {
    case Protocol::simple: return run<SimpleLinkOver<TimedContext>>(context, plan, rank, timeline);
    case Protocol::ll: return run<LineLink<LL, TimedContext>>(context, plan, rank, timeline);
    case Protocol::ll128: return run<LineLink<LL128, TimedContext>>(context, plan, rank, timeline);
  }
  throw UsageError("unknown protocol");
}

}  // namespace ringkern::cpu
