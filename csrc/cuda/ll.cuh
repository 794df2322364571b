// LL on a GPU: the lowest latency, at half of the bandwidth.
//
// MAPPING    8 bytes of data a line of 16; line i of a chunk belongs to worker i mod workers, so
//            that a warp reads and writes 512 bytes in a row.
// ORDERING   none between lines: each 64-bit word holds 32 bits of data and the flag of its step,
//            and is stored and loaded whole, so that a reader that sees the flag has the data. A
//            warp acquires its credit before its first line. `head` is posted behind a barrier, to
//            which a thread comes with all its lines read, and a fence.
// POLLING    the data itself, in the rank's own segment: one journey in place of two. `head`, by
//            one lane of each warp, and only when what it last saw is used up.
// REUSE      a slot is written again only when `head` has given it back; flags do not repeat within
//            kLLFlagPeriod steps, and a slot is rewritten whole twice in that time. Such a step is
//            published by `tail`, too: without an acquire, nothing in the memory model keeps a load
//            from returning a line of a period ago.
#pragma once

#include "cuda/copy.cuh"

namespace ringkern::cuda {

template <class A, class AnyPost = Post>
class LLLink {
 public:
  RK_DEVICE LLLink(Ends<Protocol::ll, AnyPost>& ends, const A& arithmetic)
      : ends_(ends), arithmetic_(arithmetic) {}

  RK_DEVICE Verdict perform(Verb verb, const Plan&, const Chunk& chunk) {
    Verdict verdict = Verdict::ok;
    if (is_worker() && !ends_.gave_up()) verdict = move_lines(verb, chunk);
    return ends_.complete(verb, /*publish_tail=*/rewrites(ends_.sent()), verdict);
  }

 private:
  static constexpr int kData = line_data_bytes(Protocol::ll);
  static constexpr int kLine = line_bytes(Protocol::ll);

  RK_DEVICE bool rewrites(uint64_t step) const { return ll_rewrites_slot(step, ends_.slots()); }

  RK_DEVICE Verdict move_lines(Verb verb, const Chunk& chunk) {
    Verdict verdict =
        ends_.wait_slots(/*data=*/receives(verb) && rewrites(ends_.received()), sends(verb));
    if (verdict != Verdict::ok) return verdict;
    const std::byte* in = reads_input(verb) ? ends_.in() + chunk.in * A::kBytes : nullptr;
    std::byte* out = copies(verb) ? ends_.out() + chunk.out * A::kBytes : nullptr;
    const std::byte* from = ends_.from_slot();
    std::byte* to = ends_.to_slot();
    const bool whole = aligned(in, out, kData);
    const int bytes = int(chunk.count * A::kBytes);
    const int lines = (bytes + kData - 1) / kData;
    // A warp's lanes go through the loop together, also those that are past the end.
    RK_NO_UNROLL for (int base = kWarp * warp_index(); base < lines; base += worker_count()) {
      const int line = base + lane_index(), left = bytes - kData * line;
      uint64_t value = 0;
      if (in != nullptr) {
        value = load_word(in + kData * line, whole, left);  // on its way while the line is awaited
        if (arithmetic_.multiplies(verb)) value = arithmetic_.multiply(value);
      }
      if (receives(verb)) {
        uint64_t incoming = 0;
        verdict = read_line(from + kLine * line, left > 0, incoming);
        if (verdict != Verdict::ok) return verdict;
        value = in != nullptr ? arithmetic_.combine(incoming, value) : incoming;
        if (arithmetic_.divides(verb)) value = arithmetic_.divide(value);
      }
      if (out != nullptr) store_word(out + kData * line, value, whole, left);
      if (sends(verb) && left > 0) write_line(to + kLine * line, value);
    }
    if (sends(verb)) finish_slot(to, lines);
    return Verdict::ok;
  }

  // Lines that this step did not need keep an older flag; before it could come back they are
  // written again.
  RK_DEVICE void finish_slot(std::byte* to, int written) const {
    if (!rewrites(ends_.sent())) return;
    const int all = int(ends_.slot_bytes() / kLine);
    RK_NO_UNROLL for (int line = written + thread_index(); line < all; line += worker_count())
      write_line(to + kLine * line, 0);
  }

  RK_DEVICE Verdict read_line(const std::byte* line, bool active, uint64_t& data) {
    const uint32_t flag = ll_flag(ends_.received());
    const auto arrived = [&] {
      if (!active) return true;
      const Words w = ld_relaxed16(line);
      data = (w.hi << 32) | uint32_t(w.lo);
      return uint32_t(w.lo >> 32) == flag && uint32_t(w.hi >> 32) == flag;
    };
    return wait(ends_.post(), Protocol::ll, WaitFor::data, ends_.received() + 1, arrived,
                [&] { return ends_.received(); });
  }
  RK_DEVICE void write_line(std::byte* line, uint64_t data) const {
    const uint64_t flag = uint64_t(ll_flag(ends_.sent())) << 32;
    st_relaxed16(line, {flag | uint32_t(data), flag | (data >> 32)});
  }

  RK_DEVICE static uint64_t load_word(const std::byte* p, bool whole, int left) {
    return whole && left >= kData ? ld_weak<kData>(p) : load_elements<A::kBytes>(p, left);
  }
  RK_DEVICE static void store_word(std::byte* p, uint64_t word, bool whole, int left) {
    if (whole && left >= kData) return st_weak<kData>(p, word);
    store_elements<A::kBytes>(p, word, left);
  }

  Ends<Protocol::ll, AnyPost>& ends_;
  const A& arithmetic_;
};

}  // namespace ringkern::cuda
