// The all-reduce of ranks that are in one process and in several launches, as on several GPUs, over
// the tensors themselves: `two_shot` over Simple.
//
// MAPPING    a pack of 16 bytes of all tensors belongs to one thread of one rank, which reads it
//            from all inputs and writes it to all outputs. So a rank reads and writes a part of the
//            size of 1/ranks in each other rank's memory.
// ORDERING   the ranks meet twice: before the first load, because a tensor is there when its rank's
//            launch has begun; and behind the last store, because an output is whole, and an input
//            of no more use, when all ranks have written. Each channel meets by itself, so what a
//            block waits for is as many blocks as there are ranks. A meeting is a fence, a count in
//            the memory of each other rank, and an acquire of theirs.
// GIVING UP  writes over the counts, too: a launch that begins late then writes to no tensor of a
//            rank that has given up, whose caller may have freed it.
#pragma once

#include "cuda/mesh_ends.cuh"
#include "cuda/packs.cuh"

namespace ringkern::cuda {

// Where the ranks meet.
class Meetings : public MeshEnds<MeshCount::meetings> {
 public:
  using MeshEnds::MeshEnds;

  // By the last warp of the block. A barrier before it, and one behind it, extend its order to the
  // other warps.
  RK_DEVICE Verdict meet() {
    const int peer = lane_index();
    ++round_;
    fence_acq_rel();
    if (is_awaited(peer)) st_relaxed(count_at(peer), round_);
    return wait(
        post_, Protocol::simple, WaitFor::data, round_, [&] { return has_come(peer); },
        [&] { return round_ - 1; }, peer);
  }
  RK_DEVICE void end(Verdict verdict) const {
    MeshEnds::end(verdict);
    if (verdict == Verdict::ok || !is_poster()) return;
    RK_NO_UNROLL for (int p = 0; p < geometry_.ranks; ++p)
      if (p != rank_) st_relaxed(count_at(p), kPoisoned);
  }

 private:
  RK_DEVICE bool has_come(int peer) {
    if (!is_awaited(peer)) return true;
    if (seen_ < round_) seen_ = ld_acquire(count_of(peer));
    return seen_ >= round_ && seen_ != kPoisoned;
  }
};

template <class T, bool sum>
RK_KERNEL(kMaxThreads, kBlocksPerSM)
across(RK_ARGUMENT AcrossArgs args) {
  // As ring_kernel does.
  const int channel = block_index() % args.plan.channels;
  const RankArgs& rank = args.ranks[block_index() / args.plan.channels];
  using A = Arithmetic<T, sum>;
  const A arithmetic(args.reduction);
  RK_SHARED(MeshPost, post);
  Meetings meetings(args, rank, channel, post);
  Verdict verdict = meetings.begin();
  const bool meets = warp_index() == thread_count() / kWarp - 1;  // the poster's warp
  if (verdict == Verdict::ok)
    verdict = agree(kWholeBlock, thread_count(), meets ? meetings.meet() : Verdict::ok);
  if (verdict == Verdict::ok) {
    const int64_t blocks = int64_t(args.mesh.ranks) * args.plan.channels;
    const int64_t block = int64_t(rank.rank) * args.plan.channels + channel;
    reduce_packs(arithmetic, args.plan.tensors, block * thread_count() + thread_index(),
                 blocks * thread_count());
    verdict = agree(kWholeBlock, thread_count(), Verdict::ok);
    if (meets) verdict = meetings.meet();
  }
  meetings.end(verdict);
  tell_end(post, verdict, args.plan.channels);
}

}  // namespace ringkern::cuda
