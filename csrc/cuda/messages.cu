// The kernel of messages: the links of the ring on bytes. Each block uses the protocol of its
// message.
#include "cuda/messages.h"

#include "cuda/kernels.cuh"

namespace ringkern::cuda {
namespace {

// Waits until the previous message in the same direction has ended. No stream orders the launches
// of messages: in a stream, a message that waits for a peer would hold up the work behind it in a
// hardware queue. Called by all threads.
RK_DEVICE Verdict take_turn(const MessageArgs& args, int channel, Post& post) {
  if (args.after == 0) return Verdict::ok;
  const RankArgs& rank = args.ranks[0];
  const int64_t counters = args.geometry.counters_offset(channel, args.plan.protocol);
  if (thread_index() == 0) {
    const Neighbours n = neighbours_on(channel, rank, args.plan.orders, args.plan.ranks);
    st_shared(&post.mine, reinterpret_cast<LinkCounters*>(n.by_prev + counters));
    st_shared(&post.head, &reinterpret_cast<LinkCounters*>(n.by_next + counters)->head.value);
    st_shared(&post.mailbox, rank.mailbox);
    st_shared(&post.failed, rank.failed);
    st_shared(&post.timeout_ns, uint64_t(0));  // the previous message has its own
    st_shared(&post.seq, args.seq);
    st_shared(&post.channel, int64_t(channel));
  }
  Verdict verdict = agree(kWholeBlock, thread_count(), Verdict::ok);
  const auto reached = [&] { return lane_index() != 0 || ld_acquire(args.last) >= args.after; };
  if (warp_index() == 0)
    verdict = wait(post, args.plan.protocol, WaitFor::data, args.after, reached,
                   [&] { return uint64_t(0); });
  return agree(kWholeBlock, thread_count(), verdict);
}

template <Protocol P>
RK_DEVICE void run_message(const MessageArgs& args, int channel, Post& post) {
  using A = Arithmetic<uint8_t, true>;
  const RankArgs& rank = args.ranks[0];
  const A arithmetic(args.reduction);
  const Verdict turn = take_turn(args, channel, post);
  typename LinkOf<P, A>::Ends ends(args, rank, channel, post);
  typename LinkOf<P, A>::Link link(ends, arithmetic);
  Verdict verdict = ends.begin();
  if (turn != Verdict::ok) verdict = turn;
  if (verdict == Verdict::ok) verdict = run_schedule(args.plan, rank.rank, channel, link);
  verdict = ends.end(verdict);
  tell_end(post, verdict, args.plan.channels, args.last);
}

RK_KERNEL(kMostMessageThreads, kBlocksPerSM)
messages(RK_ARGUMENT MessagesArgs args) {
  const MessageArgs* mine = args.messages;
  int channel = block_index();
  RK_NO_UNROLL for (; channel >= mine->plan.channels; ++mine)
    channel -= mine->plan.channels;
  RK_SHARED(Post, post);
  switch (mine->plan.protocol) {
#define RK_CASE(e) \
  case Protocol::e: return run_message<Protocol::e>(*mine, channel, post);
    RK_PROTOCOLS(RK_CASE)
#undef RK_CASE
  }
}

}  // namespace

const void* message_kernel() { return reinterpret_cast<const void*>(&messages); }

}  // namespace ringkern::cuda
