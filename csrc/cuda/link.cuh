// What the three links have in common: the two ends of one rank on one channel.
#pragma once

#include "core/schedule.h"
#include "cuda/wait.cuh"

namespace ringkern::cuda {

// Of the threads of a block, the workers move data; the poster publishes what they have done.
RK_DEVICE int worker_count() { return workers_of(thread_count()); }
RK_DEVICE bool is_worker() { return thread_index() < worker_count(); }
RK_DEVICE bool is_poster() { return thread_index() == thread_count() - 1; }

enum BarrierId { kWholeBlock = 0, kWorkers = 1 };

// The segments of the ranks to which this one sends, and from which it receives.
struct Neighbours {
  std::byte* next;
  std::byte* prev;
};
RK_DEVICE Neighbours neighbours_on(int channel, const RankArgs& rank, const RingOrders& orders,
                                   int ranks) {
  if (orders.count == 0) return {rank.next, rank.prev};
  const auto segment = [&](int of) {
    return reinterpret_cast<std::byte*>(ld_weak<8>(&rank.all[of]));
  };
  return {segment(orders.next(channel, rank.rank, ranks)),
          segment(orders.prev(channel, rank.rank, ranks))};
}

// Tells the neighbours in every protocol. The counters of a channel's protocols lie side by side.
RK_DEVICE void poison_links(LinkCounters* next, LinkCounters* prev) {
  RK_NO_UNROLL for (int p = 0; p < kProtocols; ++p) {
    st_relaxed(&next[p].tail.value, kPoisoned);
    st_relaxed(&prev[p].head.value, kPoisoned);
  }
}

// Tells the host which call has ended. Each of a rank's `blocks` comes here at its end, with its
// verdict, and the last one speaks; all that they did precedes the word. A block that gave up does
// not count, so that its call is never said to have ended.
RK_DEVICE void tell_end(const Post& post, Verdict verdict, int blocks) {
  if (verdict != Verdict::ok || !is_poster()) return;
  const uint64_t seq = Post::get(post.seq);
  if (seq == 0) return;
  const auto others = uint32_t(blocks - 1);
  if (others > 0 && count_round(Post::get(post.ended), others) != others) return;
  st_release(&Post::get(post.mailbox)->done, seq);
}

// Returns step % slots. A division of 64 bits takes a part of a hop, and is left to FIFOs whose
// slots are no power of two.
RK_DEVICE int slot_of(uint64_t step, int slots) {
  const auto n = uint64_t(slots);
  return int((n & (n - 1)) == 0 ? step & (n - 1) : step % n);
}

// Where this rank reads and writes, and how far it has come. Every thread keeps the counters; they
// are loaded when the kernel starts and stored when it ends, so that a replayed launch goes on
// where the last one stopped. `AnyPost`: a Post, or one with a clock (cuda/timed.cuh).
template <Protocol P, class AnyPost = Post>
class Ends {
 public:
  // By all threads; `post` is the block's.
  RK_DEVICE Ends(const LaunchArgs& args, const RankArgs& rank, int channel, AnyPost& post)
      : geometry_(args.geometry), post_(post) {
    const int64_t counters = geometry_.counters_offset(channel, P);
    auto* mine = reinterpret_cast<LinkCounters*>(rank.mine + counters);
    // One after the other without a wait in between, so that a launch starts after one round trip.
    const auto [next, prev] = neighbours_on(channel, rank, args.plan.orders, args.plan.ranks);
    failed_ = ld_relaxed(rank.failed);
    sent_ = ld_weak<8>(&mine->sent.value);
    received_ = ld_weak<8>(&mine->received.value);
    const uint64_t head = ld_acquire(&mine->head.value);
    if (lane_index() == kCreditLane && head != kPoisoned) seen_ = head;
    from_index_ = slot_of(received_, slots());
    to_index_ = slot_of(sent_, slots());
    if (thread_index() != 0) return;
    const int64_t fifo = geometry_.fifo_offset(channel, P);
    st_shared(&post.in, rank.in);
    st_shared(&post.out, rank.out);
    st_shared(&post.from, rank.mine + fifo);
    st_shared(&post.to, next + fifo);
    st_shared(&post.mine, mine);
    st_shared(&post.next, reinterpret_cast<LinkCounters*>(next + counters));
    st_shared(&post.prev, reinterpret_cast<LinkCounters*>(prev + counters));
    st_shared(&post.mailbox, rank.mailbox);
    st_shared(&post.failed, rank.failed);
    st_shared(&post.ended, rank.ended);
    st_shared(&post.timeout_ns, args.timeout_ns);
    st_shared(&post.seq, args.seq);
    st_shared(&post.channel, channel);
  }

  RK_DEVICE const AnyPost& post() const { return post_; }
  RK_DEVICE const std::byte* in() const { return Post::get(post_.in); }
  RK_DEVICE std::byte* out() const { return Post::get(post_.out); }
  RK_DEVICE uint64_t sent() const { return sent_; }
  RK_DEVICE uint64_t received() const { return received_; }
  RK_DEVICE int slots() const { return geometry_.slots; }
  RK_DEVICE int slot_bytes() const { return int(geometry_.slot_bytes[int(P)]); }
  RK_DEVICE const std::byte* from_slot() const {
    return Post::get(post_.from) + int64_t(from_index_) * slot_bytes();
  }
  RK_DEVICE std::byte* to_slot() const {
    return Post::get(post_.to) + int64_t(to_index_) * slot_bytes();
  }

  // Whether this launch may begin. Makes `post` known to all threads.
  RK_DEVICE Verdict begin() const {
    return agree(kWholeBlock, thread_count(), failed_ != 0 ? Verdict::aborted : Verdict::ok);
  }

  // Until the slots are there that a verb reads (`data`) and writes (`credit`), as far as counters
  // tell. By a whole warp, of which one lane polls for data and one for credit, both in memory of
  // this rank. A lane remembers what it saw, and polls no more often than it must.
  RK_DEVICE Verdict wait_slots(bool data, bool credit) {
    if (!data && !credit) return Verdict::ok;
    const bool for_data = data && lane_index() == kDataLane;
    const bool for_credit = credit && lane_index() == kCreditLane;
    const uint64_t ahead = for_data ? 0 : uint64_t(slots());
    const uint64_t step = (for_data ? received_ : sent_) + 1;
    const auto reached = [&] {
      if ((!for_data && !for_credit) || seen_ + ahead >= step) return true;
      const LinkCounters* mine = Post::get(post_.mine);
      const uint64_t now = ld_acquire(for_data ? &mine->tail.value : &mine->head.value);
      if (now != kPoisoned) seen_ = now;
      return seen_ + ahead >= step;
    };
    return wait(post_, P, for_data ? WaitFor::data : WaitFor::credit, step - ahead, reached,
                [&] { return for_data ? received_ : seen_; });
  }

  // Ends a step, with what became of it on this thread. Where a counter is due, all threads meet:
  // the slot that was filled is published (`tail`: the flags are not in the data), and the slots
  // that were read go back. The barrier and the fence make what all threads did precede the
  // counters (cumulativity); they take longer than a hop. So where the data carries the flags,
  // slots go back by the half of a FIFO, and warps do not meet in between. A warp that gives up
  // there takes the steps up to the next meeting and does nothing in them, see `gave_up`.
  RK_DEVICE Verdict complete(Verb verb, bool publish_tail, Verdict verdict) {
    if (verdict != Verdict::ok) verdict_ = verdict;
    const bool tail = publish_tail && sends(verb);
    const bool head = receives(verb) && gives_back();
    if (P == Protocol::simple || tail || head) {
      verdict_ = agree(kWholeBlock, thread_count(), verdict_);
      if (verdict_ != Verdict::ok) return verdict_;
      if (is_poster() && (tail || head)) {
        fence_acq_rel();
        if (tail) st_relaxed(&Post::get(post_.next)->tail.value, sent_ + 1);
        if (head) st_relaxed(&Post::get(post_.prev)->head.value, received_ + 1);
      }
    }
    if (sends(verb)) ++sent_, to_index_ = to_index_ + 1 == slots() ? 0 : to_index_ + 1;
    if (receives(verb)) ++received_, from_index_ = from_index_ + 1 == slots() ? 0 : from_index_ + 1;
    return Verdict::ok;
  }
  // Tells if a wait of this warp has failed since the threads last met.
  RK_DEVICE bool gave_up() const { return P != Protocol::simple && verdict_ != Verdict::ok; }

  // When the schedule has ended; returns how, for all threads alike. A rank that gave up tells its
  // neighbours where they poll, in every protocol: they would otherwise wait for it until their own
  // deadline.
  RK_DEVICE Verdict end(Verdict verdict) {
    if (P != Protocol::simple && verdict == Verdict::ok)
      verdict = agree(kWholeBlock, thread_count(), verdict_);
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

 private:
  // Tells if slots go back behind this step. The slots that are kept until the next time are never
  // all: two or more stay with the sender, which is enough for ranks that send and receive in turn.
  RK_DEVICE bool gives_back() const {
    return P == Protocol::simple || from_index_ + 1 == slots() / 2 || from_index_ + 1 == slots();
  }

  static constexpr int kDataLane = 0, kCreditLane = 1;  // of a warp that waits for slots

  const Geometry& geometry_;
  const AnyPost& post_;
  uint32_t failed_;
  uint64_t sent_, received_;
  int from_index_, to_index_;  // the slots of the next step
  Verdict verdict_ = Verdict::ok;
  uint64_t seen_ = 0;  // of the counter that this lane polls
};

}  // namespace ringkern::cuda
