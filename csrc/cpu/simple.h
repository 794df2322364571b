// Simple on a CPU: whole slices, published by a counter.
//
// MAPPING    a chunk is cut in slices, a slice fills one slot; the calling thread moves it.
// ORDERING   data first, then `tail` with release; the receiver acquires `tail` before it reads.
//            `head` goes back with release after the last read of the slot, and the sender acquires
//            it before it writes there again.
// POLLING    `tail` and `head`, both in the rank's own segment.
// REUSE      slot = step mod slots; a slot is written again only when its credit has come back.
#pragma once

#include "cpu/link.h"

namespace ringkern::cpu {

// `Context` is a LinkContext, or one that measures its waits (cpu/timed.cpp).
template <class Context = LinkContext>
class SimpleLinkOver {
 public:
  explicit SimpleLinkOver(const Context& context) : x_(context) {}

  Verdict perform(Verb verb, const Plan& plan, const Chunk& chunk) {
    const int slices = plan.slices(chunk.count);
    for (int i = 0; i < slices; ++i) {
      const Verdict verdict = perform(verb, chunk, plan.slice(chunk.count, i));
      if (verdict != Verdict::ok) return verdict;
    }
    return Verdict::ok;
  }

  // Returns whether `perform` can run without a wait.
  bool ready(Verb verb, const Plan& plan, const Chunk& chunk) {
    const int slices = plan.slices(chunk.count);
    Ends& e = x_.ends;
    return (!sends(verb) || e.has_credit(slices)) &&
           (!receives(verb) || load_acquire(e.mine.tail.value) >= e.received() + uint64_t(slices));
  }

 private:
  Verdict perform(Verb verb, const Chunk& chunk, const Slice& slice) {
    Verdict verdict = Verdict::ok;
    if (receives(verb)) verdict = wait_data();
    if (verdict == Verdict::ok && sends(verb)) verdict = x_.wait_credit(Protocol::simple);
    if (verdict != Verdict::ok) return verdict;
    const int64_t bytes = x_.reducer.element_bytes();
    Block block;
    if (receives(verb)) block.incoming = x_.ends.from_slot();
    if (reads_input(verb)) block.in = x_.in + (chunk.in + slice.first) * bytes;
    if (copies(verb)) block.out = x_.out + (chunk.out + slice.first) * bytes;
    if (sends(verb)) block.to = x_.ends.to_slot();
    block.count = slice.count;
    move(x_.reducer, verb, block);
    x_.ends.advance(verb, true);
    return Verdict::ok;
  }

  Verdict wait_data() {
    Ends& e = x_.ends;
    const auto ready = [&] {
      return load_acquire(e.mine.tail.value) > e.received() && x_.same_call.holds();
    };
    return x_.checked(x_.until(WaitFor::data, ready), Protocol::simple, WaitFor::data);
  }

  Context x_;
};

using SimpleLink = SimpleLinkOver<>;

}  // namespace ringkern::cpu
