// Simple on a GPU: whole slices, published by a counter; the highest bandwidth.
//
// MAPPING    a chunk is cut in slices, a slice fills one slot. The workers of the block move it, 16
//            bytes a thread at a time, consecutive threads side by side; the poster, a thread of a
//            warp of its own, publishes it.
// ORDERING   data first; then a barrier, a fence at system scope and the counters, by the poster:
//            `tail` to next, `head` to prev. The barrier makes the other threads' accesses precede
//            the fence. On the other side, a warp acquires `tail` and `head` and a barrier of the
//            workers passes that on before any of them touches the slots. The data itself is weak.
// POLLING    `tail` and `head`, both in the rank's own segment, by two lanes of the first warp.
// REUSE      slot = step mod slots; a slot is written again only when its credit has come back.
#pragma once

#include "cuda/copy.cuh"

namespace ringkern::cuda {

template <class A, class AnyPost = Post>
class SimpleLink {
 public:
  RK_DEVICE SimpleLink(Ends<Protocol::simple, AnyPost>& ends, const A& arithmetic)
      : ends_(ends), arithmetic_(arithmetic) {}

  RK_DEVICE Verdict perform(Verb verb, const Plan& plan, const Chunk& chunk) {
    // A chunk fits in two slots, so its bytes fit in an int.
    const int each = int(plan.slice_elements(chunk.count)) * A::kBytes;
    const std::byte* in = reads_input(verb) ? ends_.in() + chunk.in * A::kBytes : nullptr;
    std::byte* out = copies(verb) ? ends_.out() + chunk.out * A::kBytes : nullptr;
    if (verb == Verb::copy_send && out == in && !arithmetic_.multiplies(verb)) out = nullptr;
    int left = int(chunk.count) * A::kBytes;
    // An empty chunk is a slice, too: its step has to be taken.
    for (;;) {
      Verdict verdict = Verdict::ok;
      if (is_worker()) verdict = move_slice(verb, in, out, left < each ? left : each);
      verdict = ends_.complete(verb, /*publish_tail=*/true, verdict);
      left -= each;
      if (verdict != Verdict::ok || left <= 0) return verdict;
      if (in != nullptr) in += each;
      if (out != nullptr) out += each;
    }
  }

 private:
  RK_DEVICE Verdict move_slice(Verb verb, const std::byte* in, std::byte* out, int bytes) {
    Verdict verdict = Verdict::ok;
    if (warp_index() == 0) verdict = ends_.wait_slots(receives(verb), sends(verb));
    verdict = agree(kWorkers, worker_count(), verdict);
    if (verdict != Verdict::ok) return verdict;
    move(arithmetic_, verb,
         {receives(verb) ? ends_.from_slot() : nullptr, in, out,
          sends(verb) ? ends_.to_slot() : nullptr, bytes});
    return Verdict::ok;
  }

  Ends<Protocol::simple, AnyPost>& ends_;
  const A& arithmetic_;
};

}  // namespace ringkern::cuda
