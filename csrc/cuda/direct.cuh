// The direct all-reduces of core/direct.h on a GPU over lines of LL, with one hop or two.
//
// MAPPING    A line of 16 bytes holds 8 bytes of data. In a one_shot, line i of a chunk belongs to
//            worker i mod workers, which writes it to the buffer that each peer has for this rank.
//            In a two_shot, this rule holds for the lines of a part, which are reduced, and for the
//            lines of a chunk, which are staged and collected. The latter are counted from the end
//            of this rank's own part, so that ranks begin with different peers.
// ORDERING   None between lines, as in ll.cuh: each word carries the flag of its round. A thread
//            writes to the user's memory only where it has read, so warps meet once a round.
// POLLING    The lines, in the rank's own segment. Lines of several ranks are polled together, in
//            one wait. The counts of finished rounds are polled by one lane for each peer, and only
//            when the count that it last saw is used up.
// REUSE      By core/direct.h, a slot is free when its turn comes. But a rank learns this from
//            lines that have come, and lines order nothing: by the memory model, an earlier load
//            could see what is written next, and a load could return a line of a period ago. So a
//            rank that has finished a round posts its count after a barrier and a fence. A warp
//            acquires the counts before its first line of the round that uses the slot again;
//            mostly they have come by then. The count for the last round of a launch is posted by
//            the next launch when it begins, beside its work: at the end of a launch, the fence
//            would delay the work behind it. Slots are rewritten whole twice a period, as in
//            ll.cuh.
#pragma once

#include "cuda/mesh_ends.cuh"
#include "cuda/packs.cuh"

namespace ringkern::cuda {

// `adds`: each rank adds its own residual to the sum that it stores, and not to what it sends.
// `tree`: sums are added in the order of core/tree.h.
template <class A, bool adds = false, bool tree = false>
class LLMesh : public MeshEnds<MeshCount::rounds> {
 public:
  // Called by all threads; `post` is the block's.
  RK_DEVICE LLMesh(const DirectArgs& args, const RankArgs& rank, int channel, MeshPost& post,
                   const A& arithmetic, const std::byte* residual = nullptr)
      : MeshEnds(args, rank, channel, post), arithmetic_(arithmetic), residual_(residual),
        slot_(slot_of(round_, geometry_.slots)) {}

  RK_DEVICE Verdict begin() const {
    const Verdict verdict = MeshEnds::begin();
    if (verdict == Verdict::ok && is_poster()) say_finished();
    return verdict;
  }

  // A warp that gives up does nothing in the verbs that follow, until all meet in `complete`.
  RK_DEVICE Verdict stage(const DirectPlan& plan, const Span& chunk, int64_t) {
    if (is_worker()) verdict_ = stage_lines(plan, chunk);
    return Verdict::ok;
  }
  RK_DEVICE Verdict reduce(const DirectPlan& plan, const Span& chunk, int64_t round) {
    if (is_worker() && verdict_ == Verdict::ok) verdict_ = reduce_lines(plan, chunk);
    return plan.algorithm == Algorithm::one_shot ? complete(plan, round) : Verdict::ok;
  }
  RK_DEVICE Verdict collect(const DirectPlan& plan, const Span& chunk, int64_t round) {
    if (is_worker() && verdict_ == Verdict::ok) verdict_ = collect_lines(plan, chunk);
    return complete(plan, round);
  }

 private:
  static constexpr int kData = line_data_bytes(Protocol::ll);
  static constexpr int kLine = line_bytes(Protocol::ll);
  // Ranks whose lines are loaded before the first is checked. The open nodes of small floats take
  // the registers of two.
  static constexpr int kAtOnce = tree && A::kWidens ? 2 : 4;

  // Position of a line: the part of the chunk and the index within it.
  struct Place {
    int part, line;
  };

  // Return the slot of this round at a peer, and the peer's slot here. Half 0 is staged data, half
  // 1 reduced data.
  RK_DEVICE std::byte* slot_at(int to, int half) const {
    return slot_in(peer(to), MeshGeometry::index(rank_, to), half);
  }
  RK_DEVICE std::byte* slot_from(int from, int half) const {
    return slot_in(mine_by(from), MeshGeometry::index(from, rank_), half);
  }
  RK_DEVICE std::byte* slot_in(std::byte* memory, int index, int half) const {
    const int64_t slot = index * geometry_.slots + slot_;
    return memory + geometry_.peer_slots_offset() + slot * geometry_.slot_bytes +
           half * geometry_.half_bytes();
  }

  RK_DEVICE static int lines_of(int64_t elements) {
    return int(elements * A::kBytes + kData - 1) / kData;
  }
  RK_DEVICE Place place_of(const DirectPlan& plan, int lines, int i) const {
    const int each = lines_of(plan.part), first = (rank_ + 1) * each;
    int line = first < lines ? i + first : i;
    if (line >= lines) line -= lines;
    return {line / each, line % each};
  }

  // ---- The verbs, by a warp of workers

  // Waits until all ranks have finished the round whose lines this round overwrites.
  RK_DEVICE Verdict wait_finished() {
    const int other = lane_index();
    const uint64_t ahead = uint64_t(geometry_.slots);
    const uint64_t step = round_ + 1;
    const auto reached = [&] {
      if (!is_awaited(other) || seen_ + ahead >= step) return true;
      seen_ = ld_acquire(count_of(other));
      return seen_ + ahead >= step;
    };
    return wait(
        post_, Protocol::ll, WaitFor::credit, step - ahead, reached, [&] { return seen_; }, other);
  }

  RK_DEVICE Verdict stage_lines(const DirectPlan& plan, const Span& chunk) {
    const Verdict verdict = wait_finished();
    if (verdict != Verdict::ok) return verdict;
    const bool all = plan.algorithm == Algorithm::one_shot;
    const User user = user_at(chunk);
    RK_NO_UNROLL for (int i = thread_index(); i < user.lines; i += worker_count()) {
      if (all) {
        write_to_all(0, i, load(user, i));
      } else if (const Place at = place_of(plan, user.lines, i); at.part != rank_) {
        const uint64_t value = load(user, at.part * lines_of(plan.part) + at.line);
        write_line(slot_at(at.part, 0) + kLine * at.line, value);
      }
    }
    if (ll_rewrites_slot(round_, geometry_.slots)) rewrite(plan, chunk);
    return Verdict::ok;
  }

  RK_DEVICE Verdict reduce_lines(const DirectPlan& plan, const Span& chunk) {
    const bool all = plan.algorithm == Algorithm::one_shot;
    const Span part = all ? Span{0, chunk.count} : plan.part_of(chunk, rank_);
    const User user = user_at({chunk.first + part.first, part.count});
    // All lanes of a warp go through the loop together, including those past the end.
    RK_NO_UNROLL for (int base = kWarp * warp_index(); base < user.lines; base += worker_count()) {
      const int line = base + lane_index();
      const bool active = line < user.lines;
      const uint64_t mine = active ? load(user, line) : 0;
      const uint64_t residual = active ? residual_of(user, line) : 0;
      uint64_t value = 0, next[kAtOnce] = {};
      auto partial = A::nothing();
      Combination<A, true> by_tree(arithmetic_, geometry_.ranks, /*multiplies=*/false);
      RK_NO_UNROLL for (int rank = 0; rank < geometry_.ranks; ++rank) {
        if (rank % kAtOnce == 0) {
          const Verdict verdict = read_lines(rank, line, active, mine, next);
          if (verdict != Verdict::ok) return verdict;
        }
        if constexpr (tree) by_tree.take(next[0], rank);
        else if (arithmetic_.widens()) A::add(partial, next[0]);
        else value = rank == 0 ? next[0] : arithmetic_.combine(value, next[0]);
        // Keeps one combination in the code: it takes next[0], then the words shift.
        for (int i = 1; i < kAtOnce; ++i) next[i - 1] = next[i];
      }
      if constexpr (tree) value = by_tree.result();
      else if (arithmetic_.widens()) value = arithmetic_.narrow(partial, Verb::recv_reduce_copy);
      else if (arithmetic_.divides(Verb::recv_reduce_copy)) value = arithmetic_.divide(value);
      if (active) store(user, line, value, residual);
      if (active && !all) write_to_all(1, line, value);
    }
    return Verdict::ok;
  }

  RK_DEVICE Verdict collect_lines(const DirectPlan& plan, const Span& chunk) {
    const User user = user_at(chunk);
    RK_NO_UNROLL for (int base = kWarp * warp_index(); base < user.lines; base += worker_count()) {
      const int i = base + lane_index();
      const Place at = place_of(plan, user.lines, i);
      const bool active = i < user.lines && at.part != rank_;
      const auto line = [&] { return at.part * lines_of(plan.part) + at.line; };
      const uint64_t residual = adds && active ? residual_of(user, line()) : 0;
      uint64_t value = 0;
      const Verdict verdict = read_line(at, active, value);
      if (verdict != Verdict::ok) return verdict;
      if (active) store(user, line(), value, residual);
    }
    return Verdict::ok;
  }

  // Ends a round: all threads meet and leave with one verdict.
  RK_DEVICE Verdict complete(const DirectPlan& plan, int64_t round) {
    const Verdict verdict = agree(kWholeBlock, thread_count(), verdict_);
    if (verdict != Verdict::ok) return verdict;
    ++round_, slot_ = slot_ + 1 == geometry_.slots ? 0 : slot_ + 1;
    if (is_poster() && round + 1 < plan.rounds) say_finished();
    return Verdict::ok;
  }
  // Tells all ranks that this one has read what they wrote in the rounds before `round_`, and has
  // written its own part. The barrier, or the end of the launch, before it orders the accesses of
  // all threads.
  RK_DEVICE void say_finished() const {
    fence_acq_rel();
    RK_NO_UNROLL for (int p = 0; p < geometry_.ranks; ++p)
      if (p != rank_) st_relaxed(count_at(p), round_);
  }

  // ---- Lines

  // Loads a staged line of kAtOnce ranks, from `first` on. For this rank, it takes `mine`.
  RK_DEVICE Verdict read_lines(int first, int line, bool active, uint64_t mine,
                               uint64_t (&data)[kAtOnce]) {
    const uint32_t flag = ll_flag(round_);
    const std::byte* from[kAtOnce] = {};
    for (int i = 0; i < kAtOnce; ++i)
      if (active && is_awaited(first + i)) from[i] = slot_from(first + i, 0) + kLine * line;
    int missing = -1;
    const auto arrived = [&] {
      Words w[kAtOnce] = {};
      for (int i = 0; i < kAtOnce; ++i)
        if (from[i] != nullptr) w[i] = ld_relaxed16(from[i]);
      missing = -1;
      for (int i = kAtOnce - 1; i >= 0; --i) {
        data[i] = (w[i].hi << 32) | uint32_t(w[i].lo);
        if (from[i] == nullptr) data[i] = mine;
        else if (uint32_t(w[i].lo >> 32) != flag || uint32_t(w[i].hi >> 32) != flag)
          missing = first + i;
      }
      return missing < 0;
    };
    return wait(
        post_, Protocol::ll, WaitFor::data, round_ + 1, arrived, [&] { return round_; }, missing);
  }
  // Loads a line that another rank has reduced.
  RK_DEVICE Verdict read_line(const Place& at, bool active, uint64_t& data) {
    const uint32_t flag = ll_flag(round_);
    const std::byte* line = active ? slot_from(at.part, 1) + kLine * at.line : nullptr;
    const auto arrived = [&] {
      if (!active) return true;
      const Words w = ld_relaxed16(line);
      data = (w.hi << 32) | uint32_t(w.lo);
      return uint32_t(w.lo >> 32) == flag && uint32_t(w.hi >> 32) == flag;
    };
    return wait(
        post_, Protocol::ll, WaitFor::data, round_ + 1, arrived, [&] { return round_; }, at.part);
  }
  RK_DEVICE void write_line(std::byte* line, uint64_t data) const {
    const uint64_t flag = uint64_t(ll_flag(round_)) << 32;
    st_relaxed16(line, {flag | uint32_t(data), flag | (data >> 32)});
  }
  RK_DEVICE void write_to_all(int half, int line, uint64_t data) const {
    RK_NO_UNROLL for (int i = 1; i < geometry_.ranks; ++i) {
      const int to = rank_ + i < geometry_.ranks ? rank_ + i : rank_ + i - geometry_.ranks;
      write_line(slot_at(to, half) + kLine * line, data);
    }
  }

  // Rewrites the lines that this round does not use, before their older flag can become valid
  // again.
  RK_DEVICE void rewrite(const DirectPlan& plan, const Span& chunk) const {
    const bool two = plan.algorithm == Algorithm::two_shot;
    const int half = int(geometry_.half_bytes() / kLine);
    RK_NO_UNROLL for (int to = 0; to < geometry_.ranks; ++to) {
      if (to == rank_) continue;
      const int staged = lines_of(two ? plan.part_of(chunk, to).count : chunk.count);
      const int reduced = two ? lines_of(plan.part_of(chunk, rank_).count) : 0;
      RK_NO_UNROLL for (int i = thread_index(); i < 2 * half; i += worker_count())
        if (i >= staged && (!two || i < half || i - half >= reduced))
          write_line(slot_at(to, 0) + kLine * i, 0);
    }
  }

  // ---- The user's memory

  struct User {
    const std::byte* in;
    std::byte* out;
    const std::byte* residual;
    int bytes, lines;
    bool whole;  // lines can be accessed whole
  };
  RK_DEVICE User user_at(const Span& span) const {
    const std::byte* in = Post::get(post_.in) + span.first * A::kBytes;
    std::byte* out = Post::get(post_.out) + span.first * A::kBytes;
    const std::byte* residual = adds ? residual_ + span.first * A::kBytes : in;
    return {in,
            out,
            residual,
            int(span.count * A::kBytes),
            lines_of(span.count),
            aligned(in, out, kData) && (!adds || aligned(residual, residual, kData))};
  }
  RK_DEVICE uint64_t load(const User& user, int line) const {
    const uint64_t value = load_word<A::kBytes>(user.in, line, user.whole, user.bytes);
    return arithmetic_.multiplies(Verb::send) ? arithmetic_.multiply(value) : value;
  }
  RK_DEVICE uint64_t residual_of(const User& user, int line) const {
    return adds ? load_word<A::kBytes>(user.residual, line, user.whole, user.bytes) : 0;
  }
  RK_DEVICE void store(const User& user, int line, uint64_t value, uint64_t residual) const {
    if constexpr (adds) value = arithmetic_.combine(value, residual);
    store_word<A::kBytes>(user.out, line, user.whole, user.bytes, value);
  }

  const A& arithmetic_;
  const std::byte* const residual_;
  int slot_;  // index of the round's slot
  Verdict verdict_ = Verdict::ok;
};

template <class T, bool sum, bool tree>
RK_KERNEL(kMaxThreads, kBlocksPerSM)
direct_kernel(RK_ARGUMENT DirectArgs args) {
  // The same as ring_kernel does.
  const int channel = block_index() % args.plan.channels;
  const RankArgs& rank = args.ranks[block_index() / args.plan.channels];
  using A = Arithmetic<T, sum>;
  const A arithmetic(args.reduction);
  RK_SHARED(MeshPost, post);
  LLMesh<A, false, tree> mesh(args, rank, channel, post, arithmetic);
  Verdict verdict = mesh.begin();
  if (verdict == Verdict::ok) verdict = run_direct(args.plan, channel, mesh);
  mesh.end(verdict);
  tell_end(post, verdict, args.plan.channels);
}

}  // namespace ringkern::cuda
