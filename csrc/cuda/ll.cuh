// LL on a GPU: the lowest latency, at half of the bandwidth.
//
// MAPPING    8 bytes of data a line of 16; line i of a chunk belongs to worker i mod workers, so
//            that a warp reads and writes 512 bytes in a row.
// ORDERING   none between lines: each 64-bit word holds 32 bits of data and the flag of its step,
//            and is stored and loaded whole, so that a reader that sees the flag has the data. A
//            warp acquires its credit before its first line. `head` is posted behind a barrier, to
//            which a thread comes with all its lines read, and a fence.
// POLLING    the data itself, in the rank's own segment: one transfer in place of two. `head`, by
//            one lane of each warp, and only when what it last saw is used up.
// REUSE      a slot is written again only when `head` has given it back; flags do not repeat within
//            kLLFlagPeriod steps, and a slot is rewritten whole twice in that time. Such a step is
//            published by `tail`, too: without an acquire, nothing in the memory model keeps a load
//            from returning a line of a period ago.
#pragma once

#include "cuda/lines.cuh"

namespace ringkern::cuda {

template <class A, class AnyPost = Post>
class LLLink {
 public:
  RK_DEVICE LLLink(LineEnds<Protocol::ll, AnyPost>& ends, const A& arithmetic)
      : ends_(ends), arithmetic_(arithmetic) {
    from_flag_ = ll_flag(ends.received());
    to_flag_ = ll_flag(ends.sent());
  }

  RK_DEVICE Verdict perform(Verb verb, const Plan&, const Chunk& chunk) {
    const int bytes = int(chunk.count) * A::kBytes;
    const bool data = receives(verb) && ll_rewrites_slot(ends_.received(), ends_.slots());
    if (data || (sends(verb) && !ends_.has_credit())) ends_.wait_slots(data, sends(verb));
    if (bytes > ends_.first()) move_lines(verb, chunk, bytes);
    if (receives(verb)) {
      from_flag_ = ll_next_flag(from_flag_);
      ends_.took_slot();
    }
    if (sends(verb)) {
      if (ll_rewrites_slot(ends_.sent(), ends_.slots())) rewrite_slot(bytes);
      to_flag_ = ll_next_flag(to_flag_);
      ends_.filled_slot();
    }
    return ends_.complete();
  }

 private:
  static constexpr int kData = line_data_bytes(Protocol::ll);
  static constexpr int kLine = line_bytes(Protocol::ll);

  // The warps call it for which there are lines.
  RK_DEVICE void move_lines(Verb verb, const Chunk& chunk, int bytes) {
    // Where the first line of this thread is; then its next one.
    const std::byte* in = ends_.in() + chunk.in * A::kBytes;
    std::byte* out = ends_.out() + chunk.out * A::kBytes;
    const std::byte* from = ends_.from();
    std::byte* to = ends_.to();
    const bool whole = aligned(in, out, kData);
    // A warp's lanes go through the loop together, also those that are past the end.
    RK_NO_UNROLL for (;;) {
      const int left = bytes - place_;
      const bool active = left > 0, full = whole && left >= kData;
      uint64_t value = 0;
      if (reads_input(verb)) {
        // On its way while the line is awaited.
        value = full ? ld_weak<kData>(in) : load_elements<A::kBytes>(in, left);
        if (arithmetic_.multiplies()) value = arithmetic_.multiply(value);
      }
      if (receives(verb)) {
        const uint32_t flag = from_flag_;
        uint64_t incoming = 0;
        const auto arrived = [&] {
          if (!active) return true;
          const Words w = ld_relaxed16(from);
          incoming = (w.hi << 32) | uint32_t(w.lo);
          return uint32_t(w.lo >> 32) == flag && uint32_t(w.hi >> 32) == flag;
        };
        // Mostly it is there by now: a branch, and no loop. A lane uses its own line alone, so the
        // vote need not order anything.
        if (!all_lanes(arrived()) &&
            wait(ends_.post(), Protocol::ll, WaitFor::data, ends_.received() + 1, arrived,
                 [&] { return ends_.received(); }) != Verdict::ok)
          return ends_.give_up();
        value = reads_input(verb) ? arithmetic_.combine(incoming, value) : incoming;
        if (arithmetic_.divides() && copies(verb) && reads_input(verb))
          value = arithmetic_.divide(value);
      }
      if (copies(verb)) {
        if (full) st_weak<kData>(out, value);
        else store_elements<A::kBytes>(out, value, left);
      }
      if (sends(verb) && active) write_line(to, value);
      bytes -= stride_;
      if (bytes <= ends_.first()) return;
      in += stride_, out += stride_;
      from += stride_ / kData * kLine, to += stride_ / kData * kLine;
    }
  }

  // All threads call it. Lines that this step did not need keep an older flag; before it could come
  // back they are written again, and the slot is published by `tail`, too.
  RK_DEVICE void rewrite_slot(int bytes) {
    if (ends_.moves()) {
      const int written = (bytes + kData - 1) / kData, all = int(ends_.slot_bytes() / kLine);
      RK_NO_UNROLL for (int i = written; i + thread_index() < all; i += worker_count())
        write_line(ends_.to() + kLine * i, 0);
    }
    if (ends_.meet(ends_.sent() + 1, 0, ends_.verdict()) != Verdict::ok) ends_.give_up();
  }

  RK_DEVICE void write_line(std::byte* line, uint64_t data) const {
    const uint64_t flag = uint64_t(to_flag_) << 32;
    st_relaxed16(line, {flag | uint32_t(data), flag | (data >> 32)});
  }

  LineEnds<Protocol::ll, AnyPost>& ends_;
  const A& arithmetic_;
  uint32_t from_flag_, to_flag_;                           // of the step
  const int place_ = in_register(kData * thread_index());  // of this thread's lines in a chunk
  const int stride_ = in_register(kData * worker_count());
};

}  // namespace ringkern::cuda
