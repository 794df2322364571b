// A direct all-reduce, a residual and the norm of each row, in one launch.
//
// The mesh adds the residual where it stores the sum. A row belongs to one channel (RowPlan). So
// after the barrier of the row's last round the block has the whole row, and each warp writes a
// share of the norm. The bits are those of RmsNormLoop in cpu/simd.h: lane i of a warp has partial
// sum i of the squares. Each warp adds up the whole row, which saves a second barrier.
#pragma once

#include <cmath>

#include "cuda/direct.cuh"

namespace ringkern::cuda {

template <class A>
class NormMesh : public LLMesh<A, true> {
 public:
  using T = typename A::T;

  RK_DEVICE NormMesh(const NormArgs& args, int seat, int channel, MeshPost& post,
                     const A& arithmetic)
      : LLMesh<A, true>(args, args.ranks[seat], channel, post, arithmetic,
                        args.norms[seat].residual),
        post_(post), norm_(args.norms[seat]), eps_(args.eps) {}

  // The poster's warp has no share: the poster has just told the others of the round.
  RK_DEVICE void finish(const RowPlan& plan, const Span& chunk, int64_t round) const {
    if (chunk.count == 0 || !plan.ends_row(round) || !is_worker()) return;
    const int64_t first = (chunk.first + chunk.count - plan.row) * A::kBytes;
    const std::byte* total = Post::get(post_.out) + first;
    const int n = int(plan.row);
    const float scale = 1 / sqrtf(sum_of_squares(total, n) / float(n) + eps_);
    write(total, n, scale, norm_.normalised + first);
  }

 private:
  static constexpr int kAtOnce = 8;  // elements of a lane that are loaded before one is used

  RK_DEVICE static float sum_of_squares(const std::byte* total, int n) {
    float sum = 0;
    RK_NO_UNROLL for (int base = 0; base < n; base += kAtOnce * kWarp) {
      float x[kAtOnce];
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = base + i * kWarp + lane_index();
        const uint64_t word = at < n ? ld_weak<A::kBytes>(total + at * A::kBytes) : 0;
        x[i] = widened(bits_as<Lanes<T>>(word).at[0]);
      }
      for (int i = 0; i < kAtOnce; ++i) sum += x[i] * x[i];
    }
    // Each pair of lanes adds the same two sums, so all lanes end with the same bits.
    RK_NO_UNROLL for (int half = kWarp / 2; half > 0; half /= 2)
      sum += bits_as<float>(from_lane(bits_as<uint32_t>(sum), lane_index() ^ half));
    return sum;
  }

  RK_DEVICE void write(const std::byte* total, int n, float scale, std::byte* to) const {
    const int bytes = n * A::kBytes;
    const bool whole = aligned(total, to, 8) && aligned(norm_.weight, to, 8);
    RK_NO_UNROLL for (int i = thread_index(); 8 * i < bytes; i += worker_count()) {
      auto x = bits_as<Lanes<T>>(load_word<A::kBytes>(total, i, whole, bytes));
      const auto w = bits_as<Lanes<T>>(load_word<A::kBytes>(norm_.weight, i, whole, bytes));
      for (int j = 0; j < x.kCount; ++j)
        x.at[j] = rounded(widened(x.at[j]) * scale * widened(w.at[j]));
      store_word<A::kBytes>(to, i, whole, bytes, bits_as<uint64_t>(x));
    }
  }

  RK_DEVICE static float widened(T x) {
    if constexpr (is_small_float<T>) return to_float(x);
    else return x;
  }
  RK_DEVICE static T rounded(float x) {
    if constexpr (is_small_float<T>) return from_float<T>(x);
    else return one_nan(x);
  }

  const MeshPost& post_;
  const RankNorm& norm_;
  const float eps_;
};

template <class T>
RK_KERNEL(kMaxThreads, kBlocksPerSM)
norm_kernel(RK_ARGUMENT NormArgs args) {
  const int channel = block_index() % args.plan.channels;
  const int seat = block_index() / args.plan.channels;
  using A = Arithmetic<T, true>;
  const A arithmetic(args.reduction);
  RK_SHARED(MeshPost, post);
  NormMesh<A> mesh(args, seat, channel, post, arithmetic);
  Verdict verdict = mesh.begin();
  if (verdict == Verdict::ok) verdict = run_direct(args.rows, channel, mesh);
  // Makes the last norm precede the post of the call's end.
  verdict = agree(kWholeBlock, thread_count(), verdict);
  mesh.end(verdict);
  tell_end(post, verdict, args.plan.channels);
}

}  // namespace ringkern::cuda
