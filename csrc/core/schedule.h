// The ring, written once, for every backend and every protocol.
//
// The k ranks stand in a ring, in the order that the channel has (core/orders.h); each sends to
// `next` and receives from `prev`. In step j, the rank at position r works on the chunk that
// belongs to position r - 1 - j: every chunk travels once round the ring gathering one contribution
// a hop (reduce-scatter), comes to its owner complete, and travels round once more to be copied
// (all-gather). With k = 4, where ranks and positions are the same, the chunk of position 0:
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
// one is on its way to it.
//
//               first       those between     last               with k = 4 and root 1
//   broadcast   copy_send   recv_copy_send    recv               1 --> 2 --> 3 --> 0
//   reduce      send        recv_reduce_send  recv_reduce_copy   2 --> 3 --> 0 --> 1
//   send_recv   send                          recv               1 --> 2
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

// Steps of one loop of a ring. All-reduce: 1 + (k-2) + 1 + (k-2) + 1; its two halves: k each.
RK_HD constexpr int steps(Collective c, int k) {
  return c == Collective::all_reduce ? 2 * k - 1 : k;
}

// Where the rank at position r begins. On a chain, that is its only step: how many hops behind the
// start it stands.
RK_HD constexpr int first_step(Collective c, int r, int k, int root) {
  if (!is_chain(c)) return 0;
  return (r - root + k - (c == Collective::reduce ? 1 : 0)) % k;
}

// Step j of the rank at position r, for k >= 2. The links of a chain are steps of a ring: those of
// a broadcast of an all-gather, those of a reduce of a reduce-scatter.
RK_HD constexpr Step step(Collective c, int r, int k, int j) {
  // On a GPU a remainder in every step would cost a part of a hop.
  const auto around = [k](int position) {
    while (position < 0) position += k;
    return position;
  };
  if (c == Collective::all_gather || c == Collective::broadcast) {
    const int owner = around(r - j);
    if (j == 0) return {Verb::copy_send, owner};          // my shard, to my output and to next
    if (j < k - 1) return {Verb::recv_copy_send, owner};  // the others', as they come by
    return {Verb::recv, owner};                           // next's shard stops here
  }
  const int owner = around(r - 1 - j);
  if (j == 0) return {Verb::send, owner};
  if (c == Collective::send_recv) return {Verb::recv, owner};
  if (j < k - 1) return {Verb::recv_reduce_send, owner};
  if (c == Collective::reduce_scatter || c == Collective::reduce)
    return {Verb::recv_reduce_copy, owner};
  if (j == k - 1) return {Verb::recv_reduce_copy_send, owner};
  if (j < 2 * k - 2) return {Verb::recv_copy_send, owner};
  return {Verb::recv, owner};
}

// Runs one channel of a plan over a link. `Link::perform(Verb, const Plan&, const Chunk&)` returns
// a Verdict; the first that is not `ok` ends the collective with nothing half-done published.
template <class Link>
RK_HD Verdict run_schedule(const Plan& plan, int rank, int channel, Link& link) {
  const Collective c = plan.collective;
  const int k = plan.ranks, r = plan.position(channel, rank);
  int j = first_step(c, r, k, plan.position(channel, plan.root));
  if (c == Collective::send_recv && j > 1) return Verdict::ok;  // of two other ranks
  // One loop over loops and steps: GPU kernels have no register left for a number of steps.
  for (int64_t loop = 0; loop < plan.loops;) {
    const Step s = step(c, r, k, j);
    const Verdict verdict = link.perform(s.verb, plan, plan.chunk_of(channel, loop, s.owner));
    if (verdict != Verdict::ok) return verdict;
    if (!is_chain(c) && ++j < steps(c, k)) continue;
    if (!is_chain(c)) j = 0;
    ++loop;
  }
  return Verdict::ok;
}

}  // namespace ringkern
