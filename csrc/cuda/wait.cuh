// The one wait of device code. Nothing else spins.
//
// A wait polls what it waits for and, now and then, looks whether it should give up: the host said
// so, a neighbour or another block of this rank gave up, or nothing came for too long. It returns a
// verdict and never leaves on its own: the verdict travels through the next barrier, so that every
// thread of the block stops at the same place and none is left behind at a barrier alone.
#pragma once

#include "cuda/launch.h"
#include "cuda/ptx.cuh"

namespace ringkern::cuda {

// After the first look, polls are spaced, so that a long wait leaves the L2 to those who work.
inline constexpr uint32_t kRestNanoseconds = 40;

RK_DEVICE int lane_index() { return thread_index() % kWarp; }
RK_DEVICE int warp_index() { return thread_index() / kWarp; }

// Where a block reads, writes, polls and posts, and who is told when a wait fails. Needed once a
// step or less, so it is kept in shared memory: in registers it would crowd out the data. The first
// four are those of Simple; LL and LL128 keep them in registers (cuda/lines.cuh).
struct Post {
  const std::byte* in;
  std::byte* out;
  const std::byte* from;  // my FIFO
  std::byte* to;          // next's
  LinkCounters* mine;     // but for the one that next writes:
  uint64_t* head;
  LinkCounters* next;
  LinkCounters* prev;
  Mailbox* mailbox;
  uint32_t* failed;
  uint32_t* ended;
  uint64_t timeout_ns;
  uint64_t seq;
  int64_t channel;

  // Fields are read anew each time, and by no other way than this.
  template <class T>
  RK_DEVICE static T get(const T& field) {
    return ld_shared(&field);
  }
};

// Called by one lane. `since`: when the wait was first looked at; 0 before.
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

// Tells the host of the rank's first failed wait; lanes and blocks that end beside it or because of
// it do not overwrite it.
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

// Called by a whole warp. `poll`, on each lane: whether what this lane waits for has come; a lane
// that waits for nothing says yes. `seen`: the step that this lane last saw, for the report.
// `what`, `wanted` and `peer` are the lane's, too; `peer`: whom it waits for, where that is not a
// neighbour on the ring. The lanes' loads precede the next accesses of all threads.
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

// A barrier that carries verdicts: if one thread has given up, all leave it knowing so. Why is in
// the report.
RK_DEVICE Verdict agree(int barrier_id, int threads, Verdict mine) {
  return barrier_or(barrier_id, threads, mine != Verdict::ok) ? Verdict::aborted : Verdict::ok;
}

}  // namespace ringkern::cuda
