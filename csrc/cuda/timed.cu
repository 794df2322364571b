// The ring's kernels with a clock, for traces: the same links, compiled once more, so that a launch
// without a trace takes no more registers. Only sums of float32.
#include "cuda/timed.cuh"

namespace ringkern::cuda {
namespace {

template <Protocol P>
RK_KERNEL(kMaxThreads, kBlocksPerSM)
timed_kernel(RK_ARGUMENT TimedArgs args) {
  const int channel = block_index() % args.plan.channels;
  const int seat = block_index() / args.plan.channels;
  const RankArgs& rank = args.ranks[seat];
  using A = Arithmetic<float, true>;
  const A arithmetic(args.reduction);
  RK_SHARED(TimedPost, post);
  if (thread_index() == 0) {
    const Timeline& timeline = args.timelines[seat];
    st_shared(&post.row, timeline.row(channel, 0));
    st_shared(&post.left, timeline.room);
    st_shared(&post.number, 1);
  }
  typename LinkOf<P, A, TimedPost>::Ends ends(args, rank, channel, post);
  using Link = typename LinkOf<P, A, TimedPost>::Link;
  Link link(ends, arithmetic);
  TimedLink<Link> timed(link, post);
  Verdict verdict = ends.begin();
  if (verdict == Verdict::ok) verdict = run_schedule(args.plan, rank.rank, channel, timed);
  verdict = ends.end(verdict);
  tell_end(post, verdict, args.plan.channels);
}

}  // namespace

const void* timed_kernel_for(Protocol protocol) {
  switch (protocol) {
#define RK_CASE(e) \
  case Protocol::e: return reinterpret_cast<const void*>(&timed_kernel<Protocol::e>);
    RK_PROTOCOLS(RK_CASE)
#undef RK_CASE
  }
  return nullptr;
}

}  // namespace ringkern::cuda
