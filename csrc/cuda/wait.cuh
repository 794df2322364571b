// The one wait of device code. Nothing else spins.
//
// A wait polls, and at intervals looks whether it must give up: the host asked for it, a neighbour
// or another block of this rank gave up, or nothing came within the timeout. It returns a verdict
// and never leaves the kernel on its own. The verdict travels through the next barrier, so that all
// threads of the block stop at the same place, and none waits alone at a barrier.
#pragma once

#include "cuda/launch.h"
#include "cuda/ptx.cuh"

namespace ringkern::cuda {

// Pause between the polls after the first look, so that a long wait leaves the L2 to working
// blocks.
inline constexpr uint32_t kRestNanoseconds = 40;

RK_DEVICE int lane_index() { return thread_index() % kWarp; }
RK_DEVICE int warp_index() { return thread_index() / kWarp; }

// The addresses that a block reads, writes, polls and posts to, and those that report a failed
// wait. They are needed once a step or less, so they are in shared memory and leave the registers
// to the data. On the ring, only Simple uses the first four; LL and LL128 keep theirs in registers
// (cuda/lines.cuh).
struct Post {
  const std::byte* in;
  std::byte* out;
  const std::byte* from;  // this rank's FIFO
  std::byte* to;          // next's
  LinkCounters* mine;     // all but `head`, which may be in another segment:
  uint64_t* head;
  LinkCounters* next;
  LinkCounters* prev;
  Mailbox* mailbox;
  uint32_t* failed;
  uint32_t* ended;
  uint64_t timeout_ns;
  uint64_t seq;
  int64_t channel;

  // Loads a field anew. All reads of fields go through this function.
  template <class T>
  RK_DEVICE static T get(const T& field) {
    return ld_shared(&field);
  }
};

// Returns `ok` while a wait may go on. Called by one lane. `since`: the time of the first look; 0
// before it.
RK_DEVICE Verdict look(const Post& post, uint64_t& since) {
  if (ld_relaxed(&Post::get(post.mailbox)->aborted) != 0 ||
      ld_relaxed(Post::get(post.failed)) != 0 ||
      ld_relaxed(&Post::get(post.mine)->tail.value) == kPoisoned ||
      ld_relaxed(Post::get(post.head)) == kPoisoned)
    return Verdict::aborted;
  const uint64_t timeout = Post::get(post.timeout_ns);
  if (timeout == 0) return Verdict::ok;
  const uint64_t now = nanoseconds();
  if (since == 0) since = now;
  return now - since < timeout ? Verdict::ok : Verdict::timed_out;
}

// Reports the rank's first failed wait to the host. Other lanes and blocks, which fail at the same
// time or as a consequence, do not overwrite the report.
RK_DEVICE void record(const Post& post, Verdict verdict, WaitFor what, Protocol protocol,
                      uint64_t wanted, uint64_t seen, int32_t peer) {
  if (!claim(Post::get(post.failed))) return;
  WaitReport* report = &Post::get(post.mailbox)->report;
  st_weak<sizeof report->what>(&report->what, uint64_t(what));
  st_weak<sizeof report->protocol>(&report->protocol, uint64_t(protocol));
  st_weak<sizeof report->channel>(&report->channel, uint64_t(Post::get(post.channel)));
  if (peer >= 0) st_weak<sizeof report->peer>(&report->peer, uint64_t(peer));
  st_weak<sizeof report->wanted>(&report->wanted, wanted);
  st_weak<sizeof report->seen>(&report->seen, seen);
  st_weak<sizeof report->seq>(&report->seq, Post::get(post.seq));
  st_weak<sizeof report->timeout_ns>(&report->timeout_ns, Post::get(post.timeout_ns));
  st_release(reinterpret_cast<uint32_t*>(&report->verdict), uint32_t(verdict));
}

// Waits until `poll` is true on all lanes of a warp, which all call it. `poll` is true on a lane
// that waits for nothing. `seen`: the step that the lane last saw, for the report. `what`, `wanted`
// and `peer` may differ between lanes, too; `peer`: the awaited rank, if it is not a neighbour on
// the ring. The lanes' loads precede the next accesses of all threads.
template <class AnyPost, class Poll, class Seen>
RK_DEVICE Verdict wait(const AnyPost& post, Protocol protocol, WaitFor what, uint64_t wanted,
                       Poll poll, Seen seen, const int32_t& peer = -1) {
  uint64_t since = 0;
  for (uint32_t polls = 1;; ++polls) {
    const bool ready = poll();
    if (all_lanes(ready)) {
      syncwarp();
      return Verdict::ok;
    }
    if (polls > kPollsPerLook) rest(kRestNanoseconds);
    if (polls % kPollsPerLook != 0) continue;
    Verdict verdict = Verdict::ok;
    if (lane_index() == 0) verdict = look(post, since);
    verdict = Verdict(from_lane(uint32_t(verdict), 0));
    if (verdict == Verdict::ok) continue;
    if (!ready) record(post, verdict, what, protocol, wanted, seen(), peer);
    return verdict;
  }
}

// Joins verdicts at a barrier: if one thread has given up, all return `aborted`. The report has the
// cause.
RK_DEVICE Verdict agree(int barrier_id, int threads, Verdict mine) {
  return barrier_or(barrier_id, threads, mine != Verdict::ok) ? Verdict::aborted : Verdict::ok;
}

}  // namespace ringkern::cuda
