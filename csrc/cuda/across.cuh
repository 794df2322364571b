// The all-reduce of ranks in several launches over the tensors themselves: `two_shot` over Simple
// on several GPUs, and between processes.
//
// MAPPING    a pack of 16 bytes of all tensors belongs to one thread of one rank, which reads it
//            from all inputs and writes it to all outputs. So a rank reads and writes a part of the
//            size of 1/ranks in each other rank's memory.
// ORDERING   the ranks meet twice: before the first load, because a tensor is there when its rank's
//            launch has begun; and behind the last store, because an output is whole, and an input
//            of no more use, when all ranks have written. Each channel meets by itself, so what a
//            block waits for is as many blocks as there are ranks. A meeting is a fence, a count in
//            the memory of each other rank, and an acquire of theirs.
// PLACES     In one process a launch knows all tensors. Between processes each rank says in the
//            first meeting where its own is. One that is in no memory that the others have mapped is
//            staged, piece by piece, in the FIFOs of Simple; all ranks then go piece by piece, and
//            meet once more at the end: a FIFO must not be written to while it is read from.
// GIVING UP  writes over the counts, too: a launch that begins late then writes to no tensor of a
//            rank that has given up, whose caller may have freed it.
#pragma once

#include "cuda/mesh_ends.cuh"
#include "cuda/packs.cuh"

namespace ringkern::cuda {

// Also where the ranks have the piece at hand, of this channel.
struct AcrossPost : MeshPost {
  const std::byte* ins[MeshGeometry::kMostRanks];
  std::byte* outs[MeshGeometry::kMostRanks];
  uint64_t staged, aligned;  // some rank stages; all memory allows an access of 16 bytes
};

// A piece, as reduce_packs needs it.
struct Piece {
  const AcrossPost& post;
  int64_t bytes;
  int ranks;
  bool aligned, whole;  // whole: the inputs are as the caller gave them

  RK_DEVICE const std::byte* in_of(int rank) const { return Post::get(post.ins[rank]); }
  RK_DEVICE std::byte* out_of(int rank) const { return Post::get(post.outs[rank]); }
  RK_DEVICE bool multiplies() const { return whole; }
};

template <class A>
class TensorMesh : public MeshEnds<MeshCount::meetings> {
 public:
  // By all threads; `post` is the block's.
  RK_DEVICE TensorMesh(const AcrossArgs& args, const RankArgs& rank, int channel, AcrossPost& post,
                       const A& arithmetic)
      : MeshEnds(args, rank, channel, post), plan_(args.plan), post_(post), arithmetic_(arithmetic),
        channel_(channel), room_(args.geometry.fifo_bytes(Protocol::simple)),
        to_fifo_(args.geometry.fifo_offset(channel, Protocol::simple) - args.geometry.bytes() -
                 channel * geometry_.channel_bytes()),
        stages_(plan_.told && plan_.place == 0) {}

  RK_DEVICE Verdict run() {
    if (stages_) fill(channel_ * room_);
    Verdict verdict = meet(/*first=*/true);
    if (verdict != Verdict::ok) return verdict;
    const bool staged = Post::get(post_.staged) != 0;
    const int64_t step = step_of(staged), all = plan_.channels * step;
    for (int64_t base = 0;;) {
      const int64_t at = base + channel_ * step;
      reduce(at, step);
      verdict = meet(false);
      if (verdict != Verdict::ok || !staged) return verdict;
      if (stages_) empty(at);
      base += all;
      if (base >= plan_.tensors.bytes) return meet(false);
      if (stages_) fill(at + all);
      if (meets()) show(at + all);
      verdict = meet(false);
      if (verdict != Verdict::ok) return verdict;
    }
  }

  RK_DEVICE void end(Verdict verdict) const {
    MeshEnds::end(verdict);
    if (verdict == Verdict::ok || !is_poster()) return;
    RK_NO_UNROLL for (int p = 0; p < geometry_.ranks; ++p)
      if (p != rank_) st_relaxed(count_at(p), kPoisoned);
  }

 private:
  // ---- Pieces: this channel's begin at `at`, in the tensor

  RK_DEVICE int64_t step_of(bool staged) const {
    const int channels = plan_.channels;
    return staged ? room_ : align_up((plan_.tensors.bytes + channels - 1) / channels, 16);
  }
  RK_DEVICE int64_t bytes_at(int64_t at, int64_t step) const {
    return max64(0, min64(step, plan_.tensors.bytes - at));
  }
  RK_DEVICE std::byte* fifo_of(int rank) const { return peer(rank) + to_fifo_; }

  RK_DEVICE void reduce(int64_t at, int64_t step) const {
    const Piece piece{post_, bytes_at(at, step), geometry_.ranks, Post::get(post_.aligned) != 0,
                      !plan_.told};
    const int64_t threads = thread_count();
    reduce_packs(arithmetic_, piece, rank_ * threads + thread_index(), geometry_.ranks * threads);
  }
  // Each rank multiplies its own input: the factor is its own. So it then stages (Launcher::run).
  RK_DEVICE void fill(int64_t at) const {
    const std::byte* in = Post::get(post_.in) + at;
    const bool whole = aligned(in, in, 16);
    const int64_t bytes = bytes_at(at, room_);
    RK_NO_UNROLL for (int64_t i = 16 * thread_index(); i < bytes; i += 16 * thread_count()) {
      Words value = load_pack<A::kBytes>(in + i, whole, int(min64(bytes - i, 16)));
      if (arithmetic_.multiplies(Verb::send)) value = arithmetic_.multiply(value);
      st_weak16(fifo_of(rank_) + i, value);
    }
  }
  RK_DEVICE void empty(int64_t at) const {
    std::byte* out = Post::get(post_.out) + at;
    const bool whole = aligned(out, out, 16);
    const int64_t bytes = bytes_at(at, room_);
    RK_NO_UNROLL for (int64_t i = 16 * thread_index(); i < bytes; i += 16 * thread_count())
      store_pack<A::kBytes>(out + i, ld_weak16(fifo_of(rank_) + i), whole,
                            int(min64(bytes - i, 16)));
  }

  // ---- Meetings

  RK_DEVICE static bool meets() { return warp_index() == thread_count() / kWarp - 1; }

  // All that the threads of any rank did before precedes what a thread does behind it.
  RK_DEVICE Verdict meet(bool first) {
    Verdict verdict = agree(kWholeBlock, thread_count(), Verdict::ok);
    if (meets()) verdict = meet_others(first);
    return agree(kWholeBlock, thread_count(), verdict);
  }
  // By the last warp, a lane for each rank, as what follows.
  RK_DEVICE Verdict meet_others(bool first) {
    const int other = lane_index();
    const bool awaited = is_awaited(other);
    ++round_;
    if (awaited && first) st_weak<8>(place_in(count_at(other)), plan_.place);
    fence_acq_rel();
    if (awaited) st_relaxed(count_at(other), round_);
    const Verdict verdict = wait(
        post_, Protocol::simple, WaitFor::data, round_,
        [&] { return has_come(other) && (!first || finds(other)); }, [&] { return round_ - 1; },
        other);
    if (verdict != Verdict::ok || !first) return verdict;
    const bool none = all_lanes(!other_stages_);
    const bool all = all_lanes(aligned(in_, out_, 16));
    if (other == 0) st_shared(&post_.staged, uint64_t(!none)), st_shared(&post_.aligned, all);
    show(channel_ * step_of(!none));
    return Verdict::ok;
  }
  RK_DEVICE bool has_come(int other) {
    if (!is_awaited(other)) return true;
    if (seen_ < round_) seen_ = ld_acquire(count_of(other));
    return seen_ >= round_ && seen_ != kPoisoned;
  }
  RK_DEVICE static uint64_t* place_in(uint64_t* count) {
    return &reinterpret_cast<PeerCount*>(count)->place;
  }
  // Notes where the tensor of a rank is that has come. False where it is in no memory that it has
  // shown: nothing is written there, and the wait ends by its deadline.
  RK_DEVICE bool finds(int other) {
    if (other >= geometry_.ranks) return true;
    if (!plan_.told) {
      in_ = plan_.tensors.in_of(other), out_ = plan_.tensors.out_of(other);
      return true;
    }
    if (other == rank_) {
      in_ = Post::get(post_.in), out_ = Post::get(post_.out), other_stages_ = stages_;
      return true;
    }
    const uint64_t word = ld_weak<8>(place_in(count_of(other)));
    other_stages_ = word == 0;
    if (other_stages_) return true;
    const RegionPlace place = RegionPlace::of(word);
    if (place.region < 0 || place.region >= RegionPlace::kMostRegions) return false;
    const PeerRegion* region = &plan_.regions[other * RegionPlace::kMostRegions + place.region];
    auto* base = reinterpret_cast<std::byte*>(ld_weak<8>(&region->base));
    const auto bytes = int64_t(ld_weak<8>(&region->bytes));
    in_ = out_ = base + place.offset;
    return base != nullptr && place.offset <= bytes - plan_.tensors.bytes &&
           place.offset % A::kBytes == 0;
  }
  // Shows the block where a rank has the piece.
  RK_DEVICE void show(int64_t at) const {
    const int other = lane_index();
    if (other >= geometry_.ranks) return;
    std::byte* fifo = fifo_of(other);
    st_shared(&post_.ins[other], other_stages_ ? fifo : in_ + at);
    st_shared(&post_.outs[other], other_stages_ ? fifo : out_ + at);
  }

  const AcrossPlan& plan_;
  AcrossPost& post_;
  const A& arithmetic_;
  const int channel_;
  const int64_t room_;     // for a piece, where a rank stages it
  const int64_t to_fifo_;  // from the channel's mesh to its FIFO of Simple
  const bool stages_;
  // The tensor of the rank that this lane stands for.
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  bool other_stages_ = false;
};

template <class T, bool sum>
RK_KERNEL(kMaxThreads, kBlocksPerSM)
across(RK_ARGUMENT AcrossArgs args) {
  // As ring_kernel does.
  const int channel = block_index() % args.plan.channels;
  const RankArgs& rank = args.ranks[block_index() / args.plan.channels];
  using A = Arithmetic<T, sum>;
  const A arithmetic(args.reduction);
  RK_SHARED(AcrossPost, post);
  TensorMesh<A> mesh(args, rank, channel, post, arithmetic);
  Verdict verdict = mesh.begin();
  if (verdict == Verdict::ok) verdict = mesh.run();
  mesh.end(verdict);
  tell_end(post, verdict, args.plan.channels);
}

}  // namespace ringkern::cuda
