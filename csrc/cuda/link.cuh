// Common parts of the three links: the two ends of one rank on one channel.
#pragma once

#include "core/schedule.h"
#include "cuda/wait.cuh"

namespace ringkern::cuda {

// In a block, workers move data; the poster publishes their progress.
RK_DEVICE int worker_count() { return workers_of(thread_count()); }
RK_DEVICE bool is_worker() { return thread_index() < worker_count(); }
RK_DEVICE bool is_poster() { return thread_index() == thread_count() - 1; }

enum BarrierId { kWholeBlock = 0, kWorkers = 1 };

// Returns the segment of this rank that another rank writes to.
RK_DEVICE std::byte* written_by(int other, const RankArgs& rank) {
  return rank.on_host >> other & 1 ? rank.host : rank.mine;
}

// The segments of the next and the previous rank, and the segments of this rank that each of them
// writes to.
struct Neighbours {
  std::byte *next, *prev;
  std::byte *by_next, *by_prev;
};
RK_DEVICE Neighbours neighbours_on(int channel, const RankArgs& rank, const RingOrders& orders,
                                   int ranks) {
  Neighbours n{rank.next, rank.prev, rank.mine, rank.mine};
  if (orders.count == 0 && rank.on_host == 0) return n;
  const int next = orders.next(channel, rank.rank, ranks);
  const int prev = orders.prev(channel, rank.rank, ranks);
  n.by_next = written_by(next, rank), n.by_prev = written_by(prev, rank);
  if (orders.count == 0) return n;
  const auto segment = [&](int of) {
    return reinterpret_cast<std::byte*>(ld_weak<8>(&rank.all[of]));
  };
  n.next = segment(next), n.prev = segment(prev);
  return n;
}

// Poisons the counters of both neighbours in every protocol. The counters of a channel's protocols
// lie side by side.
RK_DEVICE void poison_links(LinkCounters* next, LinkCounters* prev) {
  RK_NO_UNROLL for (int p = 0; p < kProtocols; ++p) {
    st_relaxed(&next[p].tail.value, kPoisoned);
    st_relaxed(&prev[p].head.value, kPoisoned);
  }
}

// Tells the host that a call has ended. Each of a rank's `blocks` calls it at its end, with its
// verdict. The last one posts the number of the call, and the accesses of all blocks precede it. A
// block that gave up does not count, so its call is never reported as ended. `last`: the device
// finds the number there, too.
RK_DEVICE void tell_end(const Post& post, Verdict verdict, int blocks, uint64_t* last = nullptr) {
  if (verdict != Verdict::ok || !is_poster()) return;
  const uint64_t seq = Post::get(post.seq);
  if (seq == 0) return;
  const auto others = uint32_t(blocks - 1);
  if (others > 0 && count_round(Post::get(post.ended), others) != others) return;
  if (last != nullptr) st_release(last, seq);
  st_release(&Post::get(post.mailbox)->done, seq);
}

// Returns step % slots. Divides only if the number of slots is no power of two: a division of 64
// bits takes a part of a hop.
RK_DEVICE int slot_of(uint64_t step, int slots) {
  const auto n = uint64_t(slots);
  return int((n & (n - 1)) == 0 ? step & (n - 1) : step % n);
}

// The two ends of this rank, and their counters. Every thread keeps the counters; they are loaded
// when the kernel starts and stored when it ends, so that a replayed launch goes on where the last
// one stopped. `AnyPost`: a Post, or one with a clock (cuda/timed.cuh).
template <Protocol P, class AnyPost = Post>
class Ends {
 public:
  // Called by all threads; `post` is the block's.
  template <class Args>
  RK_DEVICE Ends(const Args& args, const RankArgs& rank, int channel, AnyPost& post)
      : geometry_(args.geometry), post_(post) {
    const int64_t counters = geometry_.counters_offset(channel, P);
    // Loads without a wait in between, so that a launch starts after one round trip.
    const Neighbours n = neighbours_on(channel, rank, args.plan.orders, args.plan.ranks);
    auto* mine = reinterpret_cast<LinkCounters*>(n.by_prev + counters);
    auto* credit = &reinterpret_cast<LinkCounters*>(n.by_next + counters)->head.value;
    failed_ = ld_relaxed(rank.failed);
    sent_ = ld_weak<8>(&mine->sent.value);
    received_ = ld_weak<8>(&mine->received.value);
    const uint64_t head = ld_acquire(credit);
    if (lane_index() == kCreditLane && head != kPoisoned) seen_ = head;
    const int64_t fifo = geometry_.fifo_offset(channel, P);
    from_fifo_ = n.by_prev + fifo, to_fifo_ = n.next + fifo;
    if (thread_index() != 0) return;
    if constexpr (P == Protocol::simple) {
      st_shared(&post.in, rank.in);
      st_shared(&post.out, rank.out);
      st_shared(&post.from, from_fifo_);
      st_shared(&post.to, to_fifo_);
    }
    st_shared(&post.mine, mine);
    st_shared(&post.head, credit);
    st_shared(&post.next, reinterpret_cast<LinkCounters*>(n.next + counters));
    st_shared(&post.prev, reinterpret_cast<LinkCounters*>(n.prev + counters));
    st_shared(&post.mailbox, rank.mailbox);
    st_shared(&post.failed, rank.failed);
    st_shared(&post.ended, rank.ended);
    st_shared(&post.timeout_ns, args.timeout_ns);
    st_shared(&post.seq, args.seq);
    st_shared(&post.channel, channel);
  }

  RK_DEVICE const AnyPost& post() const { return post_; }
  RK_DEVICE uint64_t sent() const { return sent_; }
  RK_DEVICE uint64_t received() const { return received_; }
  RK_DEVICE int slots() const { return geometry_.slots; }
  RK_DEVICE int64_t slot_bytes() const { return geometry_.slot_bytes[int(P)]; }

  // Returns `ok` if this launch may begin. Makes `post` known to all threads.
  RK_DEVICE Verdict begin() const {
    return agree(kWholeBlock, thread_count(), failed_ != 0 ? Verdict::aborted : Verdict::ok);
  }

  // Waits until the counters show the slots that a verb reads (`data`) and writes (`credit`).
  // Called by a whole warp, of which one lane polls for data and one for credit, both in memory of
  // this rank. A lane keeps the value that it saw, and polls only when it needs a newer one.
  RK_DEVICE Verdict wait_slots(bool data, bool credit) {
    if (!data && !credit) return Verdict::ok;
    const bool for_data = data && lane_index() == kDataLane;
    const bool for_credit = credit && lane_index() == kCreditLane;
    const uint64_t ahead = for_data ? 0 : uint64_t(slots());
    const uint64_t step = (for_data ? received_ : sent_) + 1;
    const auto reached = [&] {
      if ((!for_data && !for_credit) || seen_ + ahead >= step) return true;
      const uint64_t now =
          ld_acquire(for_data ? &Post::get(post_.mine)->tail.value : Post::get(post_.head));
      if (now != kPoisoned) seen_ = now;
      return seen_ + ahead >= step;
    };
    return wait(post_, P, for_data ? WaitFor::data : WaitFor::credit, step - ahead, reached,
                [&] { return for_data ? received_ : seen_; });
  }

  RK_DEVICE void count(Verb verb) {
    if (receives(verb)) ++received_;
    if (sends(verb)) ++sent_;
  }
  // Joins the verdicts of all threads. Then posts `tail`, which publishes the filled slots if the
  // data has no flags or the slot was rewritten, and `head`, which gives back the slots that were
  // read; 0: not posted. The barrier and the fence order the accesses of all threads before the
  // counters (cumulativity).
  RK_DEVICE Verdict meet(uint64_t tail, uint64_t head, Verdict verdict) const {
    verdict = agree(kWholeBlock, thread_count(), verdict);
    if (verdict != Verdict::ok) return verdict;
    if (is_poster()) {
      fence_acq_rel();
      if (tail != 0) st_relaxed(&Post::get(post_.next)->tail.value, tail);
      if (head != 0) st_relaxed(&Post::get(post_.prev)->head.value, head);
    }
    return Verdict::ok;
  }

  // Stores the counters when the schedule has ended; returns the verdict. A rank that gave up
  // instead poisons the counters that its neighbours poll, in every protocol: otherwise they would
  // wait for it until their own deadline.
  RK_DEVICE Verdict end(Verdict verdict) {
    if (!is_poster()) return verdict;
    if (verdict == Verdict::ok) {
      LinkCounters* mine = Post::get(post_.mine);
      st_weak<8>(&mine->sent.value, sent_);
      st_weak<8>(&mine->received.value, received_);
    } else {
      poison_links(Post::get(post_.next) - int(P), Post::get(post_.prev) - int(P));
    }
    return verdict;
  }

 protected:
  static constexpr int kDataLane = 0, kCreditLane = 1;  // lanes of a warp that waits for slots

  const Geometry& geometry_;
  const AnyPost& post_;
  uint32_t failed_;
  uint64_t sent_, received_;
  uint64_t seen_ = 0;                // last value of the counter that this lane polls
  std::byte *from_fifo_, *to_fifo_;  // this rank's, and next's
};

}  // namespace ringkern::cuda
