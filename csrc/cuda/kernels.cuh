// The kernels: one for each protocol and element type, either with the sum built in or with a
// switch over the other combines.
#pragma once

#include "cuda/ll.cuh"
#include "cuda/ll128.cuh"
#include "cuda/simple.cuh"

namespace ringkern::cuda {

template <Protocol, class A, class AnyPost = Post>
struct LinkOf;
template <class A, class AnyPost>
struct LinkOf<Protocol::simple, A, AnyPost> {
  using Ends = cuda::Ends<Protocol::simple, AnyPost>;
  using Link = SimpleLink<A, AnyPost>;
};
template <class A, class AnyPost>
struct LinkOf<Protocol::ll, A, AnyPost> {
  using Ends = LineEnds<Protocol::ll, AnyPost>;
  using Link = LLLink<A, AnyPost>;
};
template <class A, class AnyPost>
struct LinkOf<Protocol::ll128, A, AnyPost> {
  using Ends = LineEnds<Protocol::ll128, AnyPost>;
  using Link = LL128Link<A, AnyPost>;
};

template <Protocol P, class T, bool sum>
RK_KERNEL(kMaxThreads, kBlocksPerSM)
ring_kernel(RK_ARGUMENT LaunchArgs args) {
  const int channel = block_index() % args.plan.channels;
  const RankArgs& rank = args.ranks[block_index() / args.plan.channels];
  using A = Arithmetic<T, sum>;
  const A arithmetic(args.reduction);
  RK_SHARED(Post, post);
  typename LinkOf<P, A>::Ends ends(args, rank, channel, post);
  typename LinkOf<P, A>::Link link(ends, arithmetic);
  Verdict verdict = ends.begin();
  if (verdict == Verdict::ok) verdict = run_schedule(args.plan, rank.rank, channel, link);
  verdict = ends.end(verdict);
  tell_end(post, verdict, args.plan.channels);
}

template <Protocol P>
const void* kernel_of(DType dtype, Combine combine) {
  return with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return combine == Combine::sum ? reinterpret_cast<const void*>(&ring_kernel<P, T, true>)
                                   : reinterpret_cast<const void*>(&ring_kernel<P, T, false>);
  });
}

// One file each, so that they are compiled side by side.
const void* simple_kernel(DType dtype, Combine combine);
const void* ll_kernel(DType dtype, Combine combine);
const void* ll128_kernel(DType dtype, Combine combine);

}  // namespace ringkern::cuda
