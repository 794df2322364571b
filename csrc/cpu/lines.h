// A link whose data carries its own flags: LL and LL128 on a CPU differ only in their lines.
//
// `Line` offers kData (bytes of data), kPerBlock, `flag_of(step)`, computed once for all lines of a
// step, `write(data, flag)` and `read(data, flag)`, which returns false while the line still
// belongs to an older step. `Context` is a LinkContext, or one that measures its waits
// (cpu/timed.cpp).
#pragma once

#include "cpu/link.h"

namespace ringkern::cpu {

template <class Line, class Context = LinkContext>
class LineLink {
 public:
  explicit LineLink(const Context& context) : x_(context) {}

  Verdict perform(Verb verb, const Plan&, const Chunk& chunk) {
    if (sends(verb)) {
      const Verdict verdict = x_.wait_credit(Line::kProtocol);
      if (verdict != Verdict::ok) return verdict;
    }
    const int64_t bytes = x_.reducer.element_bytes();
    const int64_t total = chunk.count * bytes;
    auto* from = receives(verb) ? reinterpret_cast<Line*>(x_.ends.from_slot()) : nullptr;
    auto* to = sends(verb) ? reinterpret_cast<Line*>(x_.ends.to_slot()) : nullptr;
    int64_t line = 0;
    for (int64_t done = 0; done < total; done += kBlock, line += Line::kPerBlock) {
      const int64_t n = min64(kBlock, total - done);
      Block block;
      if (from) {
        const Verdict verdict = unpack(from + line, n);
        if (verdict != Verdict::ok) return verdict;
        block.incoming = incoming_;
      }
      if (reads_input(verb)) block.in = x_.in + chunk.in * bytes + done;
      if (copies(verb)) block.out = x_.out + chunk.out * bytes + done;
      if (to) block.to = outgoing_;
      block.count = n / bytes;
      move(x_.reducer, verb, block);
      if (to) pack(to + line, n);
    }
    if (to) finish_slot(to, div_up(total, Line::kData));
    x_.ends.advance(verb, false);
    return Verdict::ok;
  }

  // Returns whether `perform` can run without a wait: the sender writes the last line last.
  bool ready(Verb verb, const Plan&, const Chunk& chunk) {
    if (sends(verb) && !x_.ends.has_credit()) return false;
    const int64_t lines = div_up(chunk.count * x_.reducer.element_bytes(), Line::kData);
    if (!receives(verb) || lines == 0) return true;
    auto* const from = reinterpret_cast<Line*>(x_.ends.from_slot());
    return from[lines - 1].read(incoming_, Line::flag_of(x_.ends.received()));
  }

 private:
  // A block is a whole number of lines and of elements, and stays in the first-level cache.
  static constexpr int64_t kBlock = int64_t(Line::kData) * Line::kPerBlock;
  static_assert(kBlock % 8 == 0);

  Verdict unpack(Line* lines, int64_t bytes) {
    const auto flag = Line::flag_of(x_.ends.received());
    const int64_t n = div_up(bytes, Line::kData);
    for (int64_t i = 0; i < n; ++i) {
      std::byte* data = incoming_ + i * Line::kData;
      const auto ready = [&] { return lines[i].read(data, flag) && x_.same_call.holds(); };
      if (ready()) continue;
      x_.ends.wake_next();  // it may sleep on lines that this step has already written
      const Verdict verdict = x_.until(WaitFor::data, ready);
      if (verdict != Verdict::ok) return x_.checked(verdict, Line::kProtocol, WaitFor::data);
    }
    return Verdict::ok;
  }

  void pack(Line* lines, int64_t bytes) {
    const auto flag = Line::flag_of(x_.ends.sent());
    const int64_t n = div_up(bytes, Line::kData);
    for (int64_t i = 0; i < n; ++i) lines[i].write(outgoing_ + i * Line::kData, flag);
  }

  // Writes the lines that this step does not use, in some steps only: they keep an older flag and
  // must be written again before that flag repeats.
  void finish_slot(Line* lines, int64_t written) {
    if (!Line::rewrites_slot(x_.ends.sent(), x_.ends.slots)) return;
    static constexpr std::byte zeros[Line::kData] = {};
    const int64_t all = x_.ends.slot_bytes / int64_t(sizeof(Line));
    const auto flag = Line::flag_of(x_.ends.sent());
    for (int64_t i = written; i < all; ++i) lines[i].write(zeros, flag);
  }

  Context x_;
  alignas(64) std::byte incoming_[kBlock];
  alignas(64) std::byte outgoing_[kBlock];
};

}  // namespace ringkern::cpu
