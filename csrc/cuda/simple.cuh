// Simple on a GPU: whole slices, published by a counter; the highest bandwidth.
//
// MAPPING    A chunk is cut into slices, and a slice fills one slot. The workers of the block move
//            it, 16 bytes a thread at a time, consecutive threads side by side. The poster, in
//            a warp of its own, publishes it.
// ORDERING   First the data; then a barrier, a fence at system scope and the counters, by the
//            poster: `tail` to next, `head` to prev. The barrier makes the other threads' accesses
//            precede the fence. On the other side, a warp acquires `tail` and `head`, and a barrier
//            of the workers passes that on before any of them touches the slots. The data itself is
//            weak.
// POLLING    `tail` and `head`, both in the rank's own segment, by two lanes of the first warp.
// REUSE      slot = step mod slots. A slot is written again only when its credit has come back.
#pragma once

#include "cuda/copy.cuh"

namespace ringkern::cuda {

template <class A, class AnyPost = Post>
class SimpleLink {
 public:
  RK_DEVICE SimpleLink(Ends<Protocol::simple, AnyPost>& ends, const A& arithmetic)
      : ends_(ends), arithmetic_(arithmetic), from_index_(slot_of(ends.received(), ends.slots())),
        to_index_(slot_of(ends.sent(), ends.slots())) {}

  RK_DEVICE Verdict perform(Verb verb, const Plan& plan, const Chunk& chunk) {
    // A chunk fits in two slots, so its bytes fit in an int.
    const int each = int(plan.slice_elements(chunk.count)) * A::kBytes;
    const std::byte* in = reads_input(verb) ? Post::get(post().in) + chunk.in * A::kBytes : nullptr;
    std::byte* out = copies(verb) ? Post::get(post().out) + chunk.out * A::kBytes : nullptr;
    if (verb == Verb::copy_send && out == in && !arithmetic_.multiplies(verb)) out = nullptr;
    int left = int(chunk.count) * A::kBytes;
    // An empty chunk is also a slice: its step has to be taken.
    for (;;) {
      Verdict verdict = Verdict::ok;
      if (is_worker()) verdict = move_slice(verb, in, out, left < each ? left : each);
      verdict = complete(verb, verdict);
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
         {receives(verb) ? Post::get(post().from) + offset_of(from_index_) : nullptr, in, out,
          sends(verb) ? Post::get(post().to) + offset_of(to_index_) : nullptr, bytes});
    return Verdict::ok;
  }

  // Ends a step: what was filled is published, and what was read goes back.
  RK_DEVICE Verdict complete(Verb verb, Verdict verdict) {
    ends_.count(verb);
    if (receives(verb)) from_index_ = from_index_ + 1 == ends_.slots() ? 0 : from_index_ + 1;
    if (sends(verb)) to_index_ = to_index_ + 1 == ends_.slots() ? 0 : to_index_ + 1;
    return ends_.meet(sends(verb) ? ends_.sent() : 0, receives(verb) ? ends_.received() : 0,
                      verdict);
  }

  RK_DEVICE const AnyPost& post() const { return ends_.post(); }
  RK_DEVICE int64_t offset_of(int slot) const { return int64_t(slot) * ends_.slot_bytes(); }

  Ends<Protocol::simple, AnyPost>& ends_;
  const A& arithmetic_;
  int from_index_, to_index_;  // the slots of the next step
};

}  // namespace ringkern::cuda
