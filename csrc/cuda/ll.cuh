// LL on a GPU: the lowest latency, at half of the bandwidth.
//
// MAPPING    A line of 16 bytes holds 8 bytes of data. Line i of a chunk belongs to worker i mod
//            workers, so that a warp reads and writes 512 bytes in a row.
// ORDERING   None between lines: each 64-bit word holds 32 bits of data and the flag of its step,
//            and is stored and loaded whole, so that a reader that sees the flag has the data. A
//            warp acquires its credit before its first line. `head` is posted after a barrier,
//            which a thread reaches when it has read all its lines, and a fence.
// POLLING    The data itself, in the rank's own segment: one transfer in place of two. One lane of
//            each warp polls `head`, and only when the credit that it last saw is used up.
// REUSE      A slot is written again only when `head` has given it back. Flags do not repeat within
//            kLLFlagPeriod steps, and a slot is rewritten whole twice in that time. A step that
//            rewrites is also published by `tail`: without an acquire, nothing in the memory model
//            keeps a load from returning a line of a period ago.
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

  // Called by the warps that have lines to move.
  RK_DEVICE void move_lines(Verb verb, const Chunk& chunk, int bytes) {
    // The addresses of this thread's first line, and then of its next one.
    const std::byte* in = ends_.in() + chunk.in * A::kBytes;
    std::byte* out = ends_.out() + chunk.out * A::kBytes;
    const std::byte* from = ends_.from();
    std::byte* to = ends_.to();
    const bool whole = aligned(in, out, kData);
    // All lanes of a warp go through the loop together, including those past the end.
    RK_NO_UNROLL for (;;) {
      const int left = bytes - place_;
      const bool active = left > 0, full = whole && left >= kData;
      uint64_t value = 0;
      if (reads_input(verb)) {
        // Loaded before the wait for the line, so that the two overlap.
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
        // Mostly the line is there by now: this takes a branch and no loop. A lane uses only its
        // own line, so the vote need not order anything.
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

  // Rewrites the lines that this step did not use, before their older flag can become valid again,
  // and publishes the slot by `tail`, too. Called by all threads.
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
