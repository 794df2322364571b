// The ring algorithms, written once for every backend and every protocol.
//
// The k ranks form a ring, in the order of the channel (core/orders.h). Each rank sends to `next`
// and receives from `prev`. In step j, the rank at position r works on the chunk of position r - 1
// - j. Each chunk travels once round the ring and gathers one contribution per hop
// (reduce-scatter). It arrives complete at its owner and travels round the ring once more to be
// copied (all-gather). The path of the chunk of position 0, with k = 4 and ranks equal to
// positions:
//
//        step 0          step 1          step 2            step 3          step 4        step 5,6
//   1 --- a1 ---> 2 -- a1+a2 ---> 3 -- a1+a2+a3 ---> 0 ==== a ====> 1 ==== a ====> 2 ==== a ====> 3
//      send        recv_reduce_send  (again)     recv_reduce_copy_send  recv_copy_send      recv
//
// A link is a protocol over the FIFOs of a rank. It implements these verbs:
//
//   verb                    waits for prev   combines with input   writes output   feeds next
//   send                                     (is the input)                        x
//   copy_send                                (is the input)        x               x
//   recv_reduce_send        x                x                                     x
//   recv_reduce_copy_send   x                x                     x               x
//   recv_reduce_copy        x                x                     x
//   recv_copy_send          x                                      x               x
//   recv                    x                                      x
//
// Chains use the same verbs, one per loop. Loops are pipelined: a rank passes a chunk on while it
// receives the next one.
//
//               first       those between     last               with k = 4 and root 1
//   broadcast   copy_send   recv_copy_send    recv               1 --> 2 --> 3 --> 0
//   reduce      send        recv_reduce_send  recv_reduce_copy   2 --> 3 --> 0 --> 1
//   send_recv   send                          recv               1 --> 2
#pragma once

#include "core/plan.h"
#include "core/status.h"

namespace ringkern {

// A verb is a set of these four actions.
inline constexpr int kReceives = 1, kReadsInput = 2, kCopies = 4, kSends = 8;
#define RK_VERBS(X)                                                          \
  X(send, kReadsInput | kSends)                                              \
  X(copy_send, kReadsInput | kCopies | kSends)                               \
  X(recv_reduce_send, kReceives | kReadsInput | kSends)                      \
  X(recv_reduce_copy_send, kReceives | kReadsInput | kCopies | kSends)       \
  X(recv_reduce_copy, kReceives | kReadsInput | kCopies)                     \
  X(recv_copy_send, kReceives | kCopies | kSends)                            \
  X(recv, kReceives | kCopies)

#define RK_VALUED(name, value) name = value,
enum class Verb : int { RK_VERBS(RK_VALUED) };
#undef RK_VALUED

constexpr const char* name_of(Verb v) {
  switch (v) {
#define RK_CASE(e, ...) case Verb::e: return #e;
    RK_VERBS(RK_CASE)
#undef RK_CASE
  }
  return "?";
}

RK_HD constexpr bool receives(Verb v) { return (int(v) & kReceives) != 0; }
RK_HD constexpr bool sends(Verb v) { return (int(v) & kSends) != 0; }
RK_HD constexpr bool copies(Verb v) { return (int(v) & kCopies) != 0; }
RK_HD constexpr bool reads_input(Verb v) { return (int(v) & kReadsInput) != 0; }
// True for the verb that completes a chunk at its owner. There avg divides the result.
RK_HD constexpr bool finishes(Verb v) { return receives(v) && reads_input(v) && copies(v); }

RK_HD constexpr bool is_chain(Collective c) {
  return c >= Collective::broadcast;  // the rings come first in the list
}
static_assert(!is_chain(Collective::all_reduce) && !is_chain(Collective::reduce_scatter) &&
              !is_chain(Collective::all_gather) && is_chain(Collective::reduce) &&
              is_chain(Collective::send_recv));

// Returns the first step of the rank at position r. On a chain it is the rank's only step, and
// equals its distance in hops from the start.
RK_HD constexpr int first_step(Collective c, int r, int k, int root) {
  if (!is_chain(c)) return 0;
  return (r - root + k - (c == Collective::reduce ? 1 : 0)) % k;
}

// A number of steps in a ring of k ranks: ranks * k + more.
struct Times {
  int ranks = 0, more = 1;

  RK_HD constexpr int operator()(int k) const { return ranks * k + more; }
  constexpr Times operator+(Times other) const { return {ranks + other.ranks, more + other.more}; }
};
// One verb, in as many steps as `times` says.
struct Stretch {
  Verb verb;
  Times times = {};
};

// The steps of one loop, for k >= 2. The hops of a chain are steps of a ring: a broadcast has the
// steps of an all-gather, a reduce those of a reduce-scatter.
inline constexpr Times kRanksLess2{1, -2};
inline constexpr Stretch kAllReduce[] = {{Verb::send},
                                         {Verb::recv_reduce_send, kRanksLess2},
                                         {Verb::recv_reduce_copy_send},
                                         {Verb::recv_copy_send, kRanksLess2},
                                         {Verb::recv}};
inline constexpr Stretch kReduceScatter[] = {
    {Verb::send}, {Verb::recv_reduce_send, kRanksLess2}, {Verb::recv_reduce_copy}};
inline constexpr Stretch kAllGather[] = {
    {Verb::copy_send}, {Verb::recv_copy_send, kRanksLess2}, {Verb::recv}};
inline constexpr Stretch kSendRecv[] = {{Verb::send}, {Verb::recv}};

// The same list as three numbers, from which a kernel computes the verb of a step without a load.
// In every list, each action except receiving is done in exactly the steps before or after one
// point.
template <class Number>
struct StepsOf {
  Number reads;   // the first step that does not read the input
  Number copies;  // the first step that writes the output
  Number last;    // the step that does not send

  RK_HD constexpr Verb at(int j) const {
    return Verb((j > 0 ? kReceives : 0) | (j < reads ? kReadsInput : 0) |
                (j >= copies ? kCopies : 0) | (j < last ? kSends : 0));
  }
};
using Steps = StepsOf<int>;

template <size_t n>
constexpr StepsOf<Times> steps_of(const Stretch (&list)[n]) {
  Times at{0, 0};
  StepsOf<Times> found{at, at, at};
  for (const Stretch& s : list) {
    const Times end = at + s.times;
    if (reads_input(s.verb)) found.reads = end;
    if (!copies(s.verb)) found.copies = end;
    if (sends(s.verb)) found.last = end;
    at = end;
  }
  return found;
}

RK_HD constexpr Steps steps_of(Collective c, int k) {
  constexpr auto all_reduce = steps_of(kAllReduce), reduce_scatter = steps_of(kReduceScatter),
                 all_gather = steps_of(kAllGather), send_recv = steps_of(kSendRecv);
  const auto in_ring = [k](const StepsOf<Times>& s) {
    return Steps{s.reads(k), s.copies(k), s.last(k)};
  };
  if (c == Collective::all_reduce) return in_ring(all_reduce);
  if (c == Collective::reduce_scatter || c == Collective::reduce) return in_ring(reduce_scatter);
  if (c == Collective::all_gather || c == Collective::broadcast) return in_ring(all_gather);
  return in_ring(send_recv);
}

// Returns the number of steps in one loop. All-reduce: 1 + (k-2) + 1 + (k-2) + 1; reduce-scatter
// and all-gather: k.
RK_HD constexpr int steps(Collective c, int k) { return steps_of(c, k).last + 1; }

// Returns true if the three numbers give the same list.
template <size_t n>
constexpr bool agree(const Stretch (&list)[n], Collective c, int k) {
  int j = 0;
  for (const Stretch& s : list)
    for (int i = 0; i < s.times(k); ++i)
      if (steps_of(c, k).at(j++) != s.verb) return false;
  return j == steps(c, k);
}
static_assert(agree(kAllReduce, Collective::all_reduce, 2) &&
              agree(kAllReduce, Collective::all_reduce, 5) &&
              agree(kReduceScatter, Collective::reduce_scatter, 2) &&
              agree(kReduceScatter, Collective::reduce, 5) &&
              agree(kAllGather, Collective::all_gather, 2) &&
              agree(kAllGather, Collective::broadcast, 5) &&
              agree(kSendRecv, Collective::send_recv, 2));

// Returns the position whose chunk the rank at position r works on in its first step. Each later
// step works on the chunk of the position before. Unused on a chain.
RK_HD constexpr int first_owner(Collective c, int r, int k) {
  return c == Collective::all_gather ? r : (r == 0 ? k : r) - 1;
}

// Runs one channel of a plan over a link. `Link::perform(Verb, const Plan&, const Chunk&)` returns
// a Verdict. The first verdict other than `ok` ends the collective, and no half-done chunk is
// published.
template <class Link>
RK_HD Verdict run_schedule(const Plan& plan, int rank, int channel, Link& link) {
  const Collective c = plan.collective;
  const int k = plan.ranks, r = plan.position(channel, rank);
  const int first = is_chain(c) ? first_step(c, r, k, plan.position(channel, plan.root)) : 0;
  if (c == Collective::send_recv && first > 1) return Verdict::ok;  // neither sender nor receiver
  if (plan.loops == 0) return Verdict::ok;
  const Steps all = steps_of(c, k);
  int64_t loop = 0;
  LoopChunks chunks = plan.loop_chunks(channel, loop);
  int j = first, owner = first_owner(c, r, k);
  // Loops and steps share one `for`, so that a GPU kernel contains the code of a step once. Moving
  // to the next step takes only a few additions.
  for (;;) {
    const Verb verb = all.at(j);
    const Verdict verdict = link.perform(verb, plan, plan.chunk_of(channel, chunks, owner));
    if (verdict != Verdict::ok) return verdict;
    ++j, owner = (owner == 0 ? k : owner) - 1;
    if (sends(verb) && !is_chain(c)) continue;
    if (++loop == plan.loops) return Verdict::ok;
    chunks = plan.loop_chunks(channel, loop);
    j = first, owner = first_owner(c, r, k);
  }
}

}  // namespace ringkern
