// The mesh over LL, by one_shot: the flag is in the line, next to the data.
#pragma once

#include <cstring>

#include "cpu/mesh_call.h"

namespace ringkern::cpu {

// Like call_word, for one round of a one_shot over lines, in fewer bits: the length of its chunk,
// and whether it is the last one. Calls that agree on these in all rounds have the same size.
inline constexpr int kLineCallBits = kReductionBits + 12;
inline uint64_t line_call_bits(uint64_t reduction, const DirectPlan& plan, const Span& chunk,
                               int64_t i) {
  constexpr int64_t kMost = MeshGeometry::line_slot_data();
  static_assert(kMost + kMost / DirectPlan::kGrainBytes < 1 << (kLineCallBits - kReductionBits));
  const int64_t size = i + 1 == plan.rounds ? chunk.count : kMost + chunk.count / plan.grain;
  return reduction | uint64_t(size) << kReductionBits;
}

class MeshLines {
 public:
  MeshLines(MeshCall& call, const Task& task)
      : x_(call), reduction_(reduction_bits(task.reduction)) {}

  Verdict stage(const DirectPlan& plan, const Span& chunk, int64_t i) {
    x_.flag = (x_.base + uint64_t(i) + 1) << kLineCallBits |  // 0 is fresh memory
              line_call_bits(reduction_, plan, chunk, i);
    const int64_t total = x_.bytes(chunk.count);
    const std::byte* in = x_.in + x_.bytes(chunk.first);
    if (x_.reducer.scales_input()) {
      x_.reducer.input(mine_, in, chunk.count);
      in = mine_;
    }
    DirectLine* line = slot(x_.rank, i);
    int64_t done = 0;
    for (; done + kData <= total; done += kData, ++line) {
      std::memcpy(line->data, in + done, kData);
      store_release(line->flag, x_.flag);
    }
    if (done < total) {
      std::memcpy(line->data, in + done, size_t(total - done));
      store_release(line->flag, x_.flag);
    }
    x_.wake_all();
    return Verdict::ok;
  }

  Verdict reduce(const DirectPlan&, const Span& chunk, int64_t i) {
    if (x_.reducer.by_tree(x_.ranks)) return reduce_by_tree(chunk, i);
    if (x_.reducer.widens(x_.ranks)) return reduce_wide(chunk, i);
    const int64_t total = x_.bytes(chunk.count);
    const std::byte* const mine = mine_of(chunk);
    const void* sum = nullptr;
    for (int p = 0; p < x_.ranks; ++p) {
      const std::byte* theirs = mine;
      if (p != x_.rank) {
        const Verdict verdict = unpack(p, i, 0, total, incoming_);
        if (verdict != Verdict::ok) return verdict;
        theirs = incoming_;
      }
      const bool last = p + 1 == x_.ranks;
      void* const to = last ? x_.out + x_.bytes(chunk.first) : sum_;
      if (sum == nullptr) {
        // The next unpack() overwrites incoming_.
        if (theirs == incoming_ && x_.ranks > 2) std::memcpy(sum_, incoming_, size_t(total));
        sum = theirs == incoming_ && x_.ranks > 2 ? sum_ : theirs;
      } else {
        x_.reducer.combine(to, nullptr, sum, theirs, chunk.count, last);
        sum = to;
      }
    }
    return Verdict::ok;
  }

  Verdict collect(const DirectPlan&, const Span&, int64_t) { return Verdict::ok; }

 private:
  static constexpr int64_t kData = sizeof(DirectLine::data);

  DirectLine* slot(int peer, int64_t i) const {
    const uint64_t place = (x_.base + uint64_t(i)) % DirectPlan::slots(MeshGeometry::kLineAhead);
    return x_.peers[size_t(peer)].lines + int64_t(place) * MeshGeometry::kLines;
  }

  const std::byte* mine_of(const Span& chunk) const {
    return x_.reducer.scales_input() ? mine_ : x_.in + x_.bytes(chunk.first);
  }

  // Not inlined: only calls that need it use this much of the stack.
  [[gnu::noinline]] Verdict reduce_wide(const Span& chunk, int64_t i) {
    alignas(64) float sum[MeshGeometry::line_slot_data() + kPartialRoom];
    for (int p = 0; p < x_.ranks; ++p) {
      if (p != x_.rank) {
        const Verdict verdict = unpack(p, i, 0, x_.bytes(chunk.count), incoming_);
        if (verdict != Verdict::ok) return verdict;
      }
      x_.reducer.add_wide(sum, p == x_.rank ? mine_of(chunk) : incoming_, chunk.count, p == 0);
    }
    x_.reducer.narrow(x_.out + x_.bytes(chunk.first), sum, chunk.count);
    return Verdict::ok;
  }

  // Not inlined, as reduce_wide().
  [[gnu::noinline]] Verdict reduce_by_tree(const Span& chunk, int64_t i) {
    TreeSum tree(x_.reducer, x_.ranks);
    const int64_t block = x_.bytes(tree.block()) / kData * kData;  // whole lines
    static_assert(kData % 8 == 0);                                 // and whole elements
    const int64_t total = x_.bytes(chunk.count);
    const std::byte* const mine = mine_of(chunk);
    std::byte* const out = x_.out + x_.bytes(chunk.first);
    Verdict verdict = Verdict::ok;
    for (int64_t at = 0; at < total; at += block) {
      const int64_t some = min64(block, total - at);
      const auto version_of = [&](int p) -> const std::byte* {
        if (p == x_.rank) return mine + at;
        std::byte* const to = p % 2 == 0 ? sum_ : incoming_;  // the one before is still read
        verdict = unpack(p, i, at, some, to);
        return verdict == Verdict::ok ? to : nullptr;
      };
      if (!tree.add(out + at, version_of, some / x_.bytes(1))) return verdict;
    }
    return Verdict::ok;
  }

  // Waits for `bytes` of a peer's lines, from `first` on, and copies them to `to`. Copies whole
  // lines, even if only a part of the last one is used.
  Verdict unpack(int peer, int64_t i, int64_t first, int64_t bytes, std::byte* to) {
    DirectLine* line = slot(peer, i) + first / kData;
    for (int64_t done = 0; done < bytes; done += kData, ++line) {
      const auto ready = [&] { return load_acquire(line->flag) == x_.flag; };
      if (!ready()) [[unlikely]] {
        const Verdict verdict = x_.await(peer, Protocol::ll, x_.flag >> kLineCallBits, ready,
                                         [&] { return load_acquire(line->flag) >> kLineCallBits; });
        if (verdict != Verdict::ok) return verdict;
      }
      std::memcpy(to + done, line->data, kData);
    }
    return Verdict::ok;
  }

  MeshCall& x_;
  const uint64_t reduction_;
  alignas(64) std::byte mine_[MeshGeometry::line_slot_data()];
  alignas(64) std::byte incoming_[MeshGeometry::line_slot_data()];
  alignas(64) std::byte sum_[MeshGeometry::line_slot_data()];
};

}  // namespace ringkern::cpu
