// The all-reduce of ranks in several launches over the tensors themselves: `two_shot` over Simple
// on several GPUs, and between processes.
//
// MAPPING    One thread of one rank handles each pack of 16 bytes, or by the tree each word: it
//            reads it from all inputs and writes it to all outputs. So a rank reads and writes
//            1/ranks of every other rank's data.
// ORDERING   The ranks meet twice. They meet before the first load, because a rank's tensor is
//            ready only when its launch has begun. They meet after the last store, because only
//            when all ranks have written is an output complete and an input no longer needed. Each
//            channel meets on its own, so a block waits for one block of each rank. In a meeting, a
//            rank executes a fence, writes its count to the memory of every other rank, and
//            acquires the counts of the others.
// PLACES     In one process, a launch knows all tensors. Between processes, each rank publishes the
//            place of its tensor in the first meeting. A tensor in memory that the others have not
//            mapped is staged, piece by piece, in the FIFOs of Simple. Then all ranks go piece by
//            piece, and meet once more at the end, because a FIFO must not be written while it is
//            read.
// GIVING UP  A rank that gives up also overwrites its counts at the other ranks. A launch that
//            begins late then writes to no tensor of this rank, whose caller may have freed it.
#pragma once

#include "cuda/mesh_ends.cuh"
#include "cuda/packs.cuh"

namespace ringkern::cuda {

// A MeshPost with the tensors by rank (null: staged) and the current piece of each.
struct AcrossPost : MeshPost {
  const std::byte* tensor_in[MeshGeometry::kMostRanks];
  std::byte* tensor_out[MeshGeometry::kMostRanks];
  const std::byte* ins[MeshGeometry::kMostRanks];
  std::byte* outs[MeshGeometry::kMostRanks];
  uint64_t staged, aligned;  // some rank stages; all memory allows 16-byte accesses
};

template <class A, bool tree>
class TensorMesh : public MeshEnds<MeshCount::meetings> {
 public:
  // Called by all threads; `post` is the block's.
  RK_DEVICE TensorMesh(const AcrossArgs& args, const RankArgs& rank, int channel, AcrossPost& post,
                       const A& arithmetic)
      : MeshEnds(args, rank, channel, post), args_(args), post_(post), arithmetic_(arithmetic),
        channel_(channel) {}

  RK_DEVICE Verdict run() {
    if (stages()) fill(channel_ * room());
    Verdict verdict = meet(/*first=*/true);
    if (verdict != Verdict::ok) return verdict;
    const bool staged = Post::get(post_.staged) != 0;
    for (int64_t first = 0;;) {
      const int64_t step = step_of(staged), at = first + channel_ * step;
      reduce(bytes_at(at, step));
      verdict = meet(false);
      if (verdict != Verdict::ok) return verdict;
      if (stages()) empty(at);
      first += args_.plan.channels * step;
      if (first >= tensor_bytes()) return staged ? meet(false) : Verdict::ok;
      if (stages()) fill(first + channel_ * step);
      if (meets()) show(first + channel_ * step);
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
  // ---- Staging. `at`: the offset in the tensor of this channel's piece

  static constexpr int64_t kMostPiece = 1 << 30;  // offsets in a piece are ints

  RK_DEVICE bool stages() const { return args_.plan.told && args_.plan.place == 0; }
  RK_DEVICE int64_t tensor_bytes() const { return args_.plan.tensors.bytes; }
  // Returns the bytes that a staged piece may have.
  RK_DEVICE int64_t room() const { return args_.geometry.fifo_bytes(Protocol::simple); }
  RK_DEVICE int64_t step_of(bool staged) const {
    const int channels = args_.plan.channels;
    if (staged) return room();
    return min64(align_up((tensor_bytes() + channels - 1) / channels, 16), kMostPiece);
  }
  RK_DEVICE int bytes_at(int64_t at, int64_t step) const {
    return int(max64(0, min64(step, tensor_bytes() - at)));
  }
  RK_DEVICE std::byte* fifo_of(int rank) const {
    const Geometry& g = args_.geometry;
    return peer(rank) + g.fifo_offset(channel_, Protocol::simple) - g.bytes() -
           channel_ * geometry_.channel_bytes();
  }

  // Loads whole packs as one sequence, pack by pack and rank by rank, so that few ranks have as
  // many loads in flight as many ranks.
  RK_DEVICE void reduce(int bytes) const {
    using Sum = Combination<A, tree>;
    using Unit = typename Sum::Unit;
    constexpr int kAtOnce = packs_at_once<A>, kUnit = int(sizeof(Unit));
    const int ranks = geometry_.ranks, stride = kUnit * ranks * thread_count();
    const int whole = Post::get(post_.aligned) != 0 ? bytes / kUnit * kUnit : 0;
    Sum combination(arithmetic_, ranks, !args_.plan.told);
    int at = kUnit * (rank_ * thread_count() + thread_index()), rank = 0;  // the next to combine
    int loaded = at, from = 0;                                             // the next to load
    RK_NO_UNROLL while (at < whole) {
      Unit next[kAtOnce] = {};
      for (int i = 0; i < kAtOnce; ++i) {
        if (loaded >= whole) continue;
        next[i] = Sum::load(Post::get(post_.ins[from]) + loaded);
        if (++from == ranks) from = 0, loaded += stride;
      }
      // Not unrolled, to keep one combination in the code: it takes next[0], then the packs shift.
      RK_NO_UNROLL for (int i = 0; i < kAtOnce && at < whole; ++i) {
        combination.take(next[0], rank);
        for (int j = 1; j < kAtOnce; ++j) next[j - 1] = next[j];
        if (++rank < ranks) continue;
        const Unit value = combination.end();
        RK_NO_UNROLL for (rank = 0; rank < ranks; ++rank)
          Sum::store(Post::get(post_.outs[rank]) + at, value);
        rank = 0, at += stride;
      }
    }
    RK_NO_UNROLL for (; at < bytes; at += stride) {
      const int left = int(min64(bytes - at, kUnit));
      RK_NO_UNROLL for (rank = 0; rank < ranks; ++rank)
        combination.take(Sum::load(Post::get(post_.ins[rank]) + at, left), rank);
      const Unit value = combination.end();
      RK_NO_UNROLL for (rank = 0; rank < ranks; ++rank)
        Sum::store(Post::get(post_.outs[rank]) + at, value, left);
    }
  }

  // Each rank multiplies its own input, because the factor may differ between ranks. So an input
  // with a factor is always staged (PeerRegions::place_in).
  RK_DEVICE void fill(int64_t at) const {
    const std::byte* in = Post::get(post_.in) + at;
    std::byte* fifo = fifo_of(rank_);
    const bool whole = aligned(in, in, 16);
    const int bytes = bytes_at(at, room());
    RK_NO_UNROLL for (int i = 16 * thread_index(); i < bytes; i += 16 * thread_count()) {
      Words value = load_pack<A::kBytes>(in + i, whole, bytes - i);
      if (arithmetic_.multiplies(Verb::send)) value = arithmetic_.multiply(value);
      st_weak16(fifo + i, value);
    }
  }
  RK_DEVICE void empty(int64_t at) const {
    std::byte* out = Post::get(post_.out) + at;
    const std::byte* fifo = fifo_of(rank_);
    const bool whole = aligned(out, out, 16);
    const int bytes = bytes_at(at, room());
    RK_NO_UNROLL for (int i = 16 * thread_index(); i < bytes; i += 16 * thread_count())
      store_pack<A::kBytes>(out + i, ld_weak16(fifo + i), whole, bytes - i);
  }

  // ---- Meetings

  RK_DEVICE static bool meets() { return warp_index() == thread_count() / kWarp - 1; }

  // Orders the accesses of all threads of all ranks before the meeting before those after it.
  RK_DEVICE Verdict meet(bool first) {
    Verdict verdict = agree(kWholeBlock, thread_count(), Verdict::ok);
    if (meets()) verdict = meet_others(first);
    return agree(kWholeBlock, thread_count(), verdict);
  }
  // Called by the last warp, with one lane for each rank, as are the functions below.
  RK_DEVICE Verdict meet_others(bool first) {
    const int other = lane_index();
    const bool awaited = is_awaited(other);
    ++round_;
    if (awaited && first) st_weak<8>(place_in(count_at(other)), args_.plan.place);
    fence_acq_rel();
    if (awaited) st_relaxed(count_at(other), round_);
    const Verdict verdict = wait(
        post_, Protocol::simple, WaitFor::data, round_,
        [&] { return has_come(other) && (!first || finds(other)); }, [&] { return round_ - 1; },
        other);
    if (verdict != Verdict::ok || !first) return verdict;
    const bool there = other < geometry_.ranks;
    const std::byte* in = there ? Post::get(post_.tensor_in[other]) : nullptr;
    const std::byte* out = there ? Post::get(post_.tensor_out[other]) : nullptr;
    const bool none = all_lanes(!there || out != nullptr), all = all_lanes(aligned(in, out, 16));
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
    return &reinterpret_cast<PeerMeetings*>(count)->place;
  }
  // Notes the address of the tensor of a rank that has come. Returns false if its place is in no
  // region that this rank has mapped: nothing is written there, and the wait ends by its deadline.
  RK_DEVICE bool finds(int other) const {
    if (other >= geometry_.ranks) return true;
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    bool found = true;
    if (!args_.plan.told) {
      in = args_.plan.tensors.in[other], out = args_.plan.tensors.out[other];
    } else if (other == rank_) {
      if (!stages()) in = Post::get(post_.in), out = Post::get(post_.out);
    } else if (const uint64_t word = ld_weak<8>(place_in(count_of(other))); word != 0) {
      in = out = mapped(other, RegionPlace::of(word));
      found = out != nullptr;
    }
    st_shared(&post_.tensor_in[other], in);
    st_shared(&post_.tensor_out[other], out);
    return found;
  }
  RK_DEVICE std::byte* mapped(int other, const RegionPlace& place) const {
    if (place.region < 0 || place.region >= RegionPlace::kMostRegions) return nullptr;
    const PeerRegion* region =
        &args_.plan.regions[other * RegionPlace::kMostRegions + place.region];
    auto* base = reinterpret_cast<std::byte*>(ld_weak<8>(&region->base));
    const auto bytes = int64_t(ld_weak<8>(&region->bytes));
    const bool inside =
        base != nullptr && place.offset <= bytes - tensor_bytes() && place.offset % A::kBytes == 0;
    return inside ? base + place.offset : nullptr;
  }
  // Tells the block the addresses of each rank's piece.
  RK_DEVICE void show(int64_t at) const {
    const int other = lane_index();
    if (other >= geometry_.ranks) return;
    const std::byte* in = Post::get(post_.tensor_in[other]);
    std::byte* out = Post::get(post_.tensor_out[other]);
    const bool stages = out == nullptr;
    st_shared(&post_.ins[other], stages ? fifo_of(other) : in + at);
    st_shared(&post_.outs[other], stages ? fifo_of(other) : out + at);
  }

  const AcrossArgs& args_;
  AcrossPost& post_;
  const A& arithmetic_;
  const int channel_;
};

template <class T, bool sum, bool tree>
RK_KERNEL(kMostAcrossThreads, kBlocksPerSM)
across(RK_ARGUMENT AcrossArgs args) {
  // The same as ring_kernel.
  const int channel = block_index() % args.plan.channels;
  const RankArgs& rank = args.ranks[block_index() / args.plan.channels];
  using A = Arithmetic<T, sum>;
  const A arithmetic(args.reduction);
  RK_SHARED(AcrossPost, post);
  TensorMesh<A, tree> mesh(args, rank, channel, post, arithmetic);
  Verdict verdict = mesh.begin();
  if (verdict == Verdict::ok) verdict = mesh.run();
  mesh.end(verdict);
  tell_end(post, verdict, args.plan.channels);
}

}  // namespace ringkern::cuda
