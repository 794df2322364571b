// The ring, written once, for every backend and every protocol.
//
// The k ranks stand in a ring; each sends to `next` and receives from `prev`. In step j, the rank
// at position r works on the chunk that belongs to position r - 1 - j: every chunk travels once
// round the ring gathering one contribution a hop (reduce-scatter), comes to its owner complete,
// and travels round once more to be copied (all-gather). With k = 4, the chunk of position 0:
//
//        step 0          step 1          step 2            step 3          step 4        step 5,6
//   1 --- a1 ---> 2 -- a1+a2 ---> 3 -- a1+a2+a3 ---> 0 ==== a ====> 1 ==== a ====> 2 ==== a ====> 3
//      send        recv_reduce_send  (again)     recv_reduce_copy_send  recv_copy_send      recv
//
// A link (a protocol over the FIFOs of a rank) has a verb for each row:
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
// Chains use the same verbs, one a loop, and are pipelined: a rank passes a chunk on while the next
// one is on its way to it. With k = 4 and root 1:
//
//   broadcast   1 -- copy_send --> 2 -- recv_copy_send --> 3 -- recv_copy_send --> 0  recv
//   reduce      2 -- send --> 3 -- recv_reduce_send --> 0 -- recv_reduce_send --> 1  recv_reduce_copy
//   send_recv   1 -- send --> 2  recv
#pragma once

#include "core/plan.h"
#include "core/status.h"

namespace ringkern {

#define RK_VERBS(X) \
  X(send) X(copy_send) X(recv_reduce_send) X(recv_reduce_copy_send) X(recv_reduce_copy) \
  X(recv_copy_send) X(recv)

enum class Verb : uint8_t { RK_VERBS(RK_ENUMERATOR) };

constexpr const char* name_of(Verb v) {
  switch (v) {
#define RK_CASE(e) case Verb::e: return #e;
    RK_VERBS(RK_CASE)
#undef RK_CASE
  }
  return "?";
}

RK_HD constexpr bool receives(Verb v) { return v != Verb::send && v != Verb::copy_send; }
RK_HD constexpr bool sends(Verb v) { return v != Verb::recv && v != Verb::recv_reduce_copy; }
RK_HD constexpr bool copies(Verb v) { return v != Verb::send && v != Verb::recv_reduce_send; }
RK_HD constexpr bool reads_input(Verb v) { return v != Verb::recv && v != Verb::recv_copy_send; }
// The chunk is complete here and nowhere else: where a result is divided (avg).
RK_HD constexpr bool finishes(Verb v) {
  return v == Verb::recv_reduce_copy_send || v == Verb::recv_reduce_copy;
}

struct Step {
  Verb verb = Verb::send;
  int owner = 0;  // the position whose chunk is moved; of a chain, nobody's
};

RK_HD constexpr bool is_chain(Collective c) {
  return c == Collective::broadcast || c == Collective::reduce || c == Collective::send_recv;
}

// How many hops behind the start of the chain the rank at position r stands; `root` is one, too.
RK_HD constexpr int hops_behind_start(Collective c, int r, int k, int root) {
  const int start = c == Collective::reduce ? root + 1 : root;
  return (r - start + k) % k;
}

// Steps of one loop of the rank at position r. All-reduce: 1 + (k-2) + 1 + (k-2) + 1; its two
// halves: k each. A chain: one, but for those whom a message of send_recv does not concern.
RK_HD constexpr int steps(Collective c, int r, int k, int root) {
  if (c == Collective::all_reduce) return 2 * k - 1;
  if (!is_chain(c)) return k;
  return c == Collective::send_recv && hops_behind_start(c, r, k, root) > 1 ? 0 : 1;
}

RK_HD constexpr Verb verb_on_chain(Collective c, int hops, int k) {
  if (hops == 0) return c == Collective::broadcast ? Verb::copy_send : Verb::send;
  const bool last = hops == k - 1;
  if (c == Collective::reduce) return last ? Verb::recv_reduce_copy : Verb::recv_reduce_send;
  return last || c == Collective::send_recv ? Verb::recv : Verb::recv_copy_send;
}

// Step j of the rank at position r, for k >= 2.
RK_HD constexpr Step step(Collective c, int r, int k, int root, int j) {
  if (is_chain(c)) return {verb_on_chain(c, hops_behind_start(c, r, k, root), k), r};
  if (c == Collective::all_gather) {
    const int owner = (r - j + k) % k;
    if (j == 0) return {Verb::copy_send, owner};         // my shard, to my output and to next
    if (j < k - 1) return {Verb::recv_copy_send, owner};  // the others', as they come by
    return {Verb::recv, owner};                           // next's shard stops here
  }
  const int owner = (r - 1 - j + 2 * k) % k;
  if (j == 0) return {Verb::send, owner};
  if (j < k - 1) return {Verb::recv_reduce_send, owner};
  if (c == Collective::reduce_scatter) return {Verb::recv_reduce_copy, owner};
  if (j == k - 1) return {Verb::recv_reduce_copy_send, owner};
  if (j < 2 * k - 2) return {Verb::recv_copy_send, owner};
  return {Verb::recv, owner};
}

// Runs one channel of a plan over a link. `Link::perform(Verb, const Plan&, const Chunk&)` returns
// a Verdict; the first that is not `ok` ends the collective with nothing half-done published.
template <class Link>
RK_HD Verdict run_schedule(const Plan& plan, int rank, int channel, Link& link) {
  const int k = plan.ranks, r = plan.position(rank), root = plan.position(plan.root);
  const int n = steps(plan.collective, r, k, root);
  for (int64_t loop = 0; loop < plan.loops; ++loop) {
    for (int j = 0; j < n; ++j) {
      const Step s = step(plan.collective, r, k, root, j);
      const Verdict verdict = link.perform(s.verb, plan, plan.chunk_of(channel, loop, s.owner));
      if (verdict != Verdict::ok) return verdict;
    }
  }
  return Verdict::ok;
}

}  // namespace ringkern
