// The parts common to the direct all-reduces over lines and over tensors: the addresses of the
// ranks' mesh memory, the count of each rank, and the poison of a rank that gives up.
#pragma once

#include "cuda/link.cuh"

namespace ringkern::cuda {

struct MeshPost : Post {
  uint64_t *poisoned, *poisoned_on_host;         // this rank's; equal if it uses no host memory
  std::byte* peers[MeshGeometry::kMostRanks];    // the channel's memory of each rank, this one too
  std::byte* mine_by[MeshGeometry::kMostRanks];  // this rank's memory, as each rank writes to it
};

// Looks also at the words where a rank that gives up tells all ranks; its neighbours are told on
// the ring as well.
RK_DEVICE Verdict look(const MeshPost& post, uint64_t& since) {
  if (ld_relaxed(Post::get(post.poisoned)) == kPoisoned ||
      ld_relaxed(Post::get(post.poisoned_on_host)) == kPoisoned)
    return Verdict::aborted;
  return look(static_cast<const Post&>(post), since);
}

// One rank on one channel of the mesh. `C`: the count that its calls use.
template <MeshCount C>
class MeshEnds {
 public:
  // Called by all threads; `post` is the block's.
  template <class Args>
  RK_DEVICE MeshEnds(const Args& args, const RankArgs& rank, int channel, MeshPost& post)
      : geometry_(args.mesh), post_(post), rank_(rank.rank) {
    const int64_t offset = args.geometry.bytes() + channel * geometry_.channel_bytes();
    auto* mine = reinterpret_cast<MeshCounters*>(rank.mine + offset);
    // Loads without a wait in between, so that a launch starts after one round trip.
    const Neighbours n = neighbours_on(channel, rank, args.orders, geometry_.ranks);
    failed_ = ld_relaxed(rank.failed);
    round_ = ld_weak<8>(&mine->count[int(C)].value);
    const int lane = lane_index();
    if (is_awaited(lane))
      seen_ = ld_acquire(counter_in(written_by(lane, rank) + offset, lane, rank_));
    if (thread_index() < geometry_.ranks) {
      auto* peer = reinterpret_cast<std::byte*>(ld_weak<8>(&rank.all[thread_index()]));
      st_shared(&post.peers[thread_index()], peer + offset);
      st_shared(&post.mine_by[thread_index()], written_by(thread_index(), rank) + offset);
    }
    if (thread_index() != 0) return;
    const int64_t links = args.geometry.counters_offset(channel, Protocol(0));
    st_shared(&post.in, rank.in);
    st_shared(&post.out, rank.out);
    st_shared(&post.mine, reinterpret_cast<LinkCounters*>(n.by_prev + links));
    st_shared(&post.head, &reinterpret_cast<LinkCounters*>(n.by_next + links)->head.value);
    st_shared(&post.next, reinterpret_cast<LinkCounters*>(n.next + links));
    st_shared(&post.prev, reinterpret_cast<LinkCounters*>(n.prev + links));
    st_shared(&post.mailbox, rank.mailbox);
    st_shared(&post.failed, rank.failed);
    st_shared(&post.ended, rank.ended);
    st_shared(&post.timeout_ns, args.timeout_ns);
    st_shared(&post.seq, args.seq);
    st_shared(&post.channel, channel);
    auto* on_host = reinterpret_cast<MeshCounters*>(rank.host + offset);
    st_shared(&post.poisoned, &mine->poisoned.value);
    st_shared(&post.poisoned_on_host, &(rank.on_host != 0 ? on_host : mine)->poisoned.value);
  }

  // Returns `ok` if this launch may begin. Makes `post` known to all threads.
  RK_DEVICE Verdict begin() const {
    return agree(kWholeBlock, thread_count(), failed_ != 0 ? Verdict::aborted : Verdict::ok);
  }

  // Stores the count at the end of a launch. A rank that gave up instead poisons all ranks and its
  // neighbours' links.
  RK_DEVICE void end(Verdict verdict) const {
    if (!is_poster()) return;
    if (verdict == Verdict::ok) {
      st_weak<8>(&reinterpret_cast<MeshCounters*>(peer(rank_))->count[int(C)].value, round_);
      return;
    }
    poison_links(Post::get(post_.next), Post::get(post_.prev));
    RK_NO_UNROLL for (int p = 0; p < geometry_.ranks; ++p)
      st_relaxed(&reinterpret_cast<MeshCounters*>(peer(p))->poisoned.value, kPoisoned);
  }

 protected:
  RK_DEVICE std::byte* peer(int rank) const { return Post::get(post_.peers[rank]); }
  RK_DEVICE bool is_awaited(int rank) const { return rank < geometry_.ranks && rank != rank_; }
  RK_DEVICE std::byte* mine_by(int peer) const { return Post::get(post_.mine_by[peer]); }
  // Return the counter in which `from` counts for this rank, and the one in which this rank counts
  // for `to`.
  RK_DEVICE uint64_t* count_of(int from) const { return counter_in(mine_by(from), from, rank_); }
  RK_DEVICE uint64_t* count_at(int to) const { return counter_in(peer(to), rank_, to); }

  const MeshGeometry& geometry_;
  const MeshPost& post_;
  const int rank_;
  uint32_t failed_;
  uint64_t round_;     // this rank's count
  uint64_t seen_ = 0;  // last value of the counter that this lane polls

 private:
  // `memory`: that of `to`.
  RK_DEVICE uint64_t* counter_in(std::byte* memory, int from, int to) const {
    const int64_t offset = geometry_.peer_offset(C, MeshGeometry::index(from, to));
    return reinterpret_cast<uint64_t*>(memory + offset);
  }
};

}  // namespace ringkern::cuda
