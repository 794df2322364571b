// LL on a CPU: the lowest latency, at half of the bandwidth.
//
// MAPPING    8 bytes of data a line of 16; the calling thread writes and reads line after line.
// ORDERING   none between lines: each 64-bit word holds 32 bits of data and the flag of its step,
//            and is stored and loaded whole, so that a reader that sees the flag has the data.
// POLLING    the data itself: one transfer of a cache line in place of two.
// REUSE      a slot is written again only when `head` has returned it; flags do not repeat within
//            kLLFlagPeriod steps, and a slot is rewritten whole twice in that time.
#pragma once

#include <cstring>

#include "cpu/lines.h"

namespace ringkern::cpu {

struct LL : LLLine {
  static constexpr Protocol kProtocol = Protocol::ll;
  static constexpr int kData = line_data_bytes(kProtocol);
  static constexpr int kPerBlock = 128;

  static uint32_t flag_of(uint64_t step) { return ll_flag(step); }

  void write(const std::byte* data, uint32_t flag) {
    uint32_t word[2];
    std::memcpy(word, data, sizeof word);
    for (int i = 0; i < 2; ++i)
      std::atomic_ref<uint64_t>(half[i]).store(uint64_t(flag) << 32 | word[i],
                                               std::memory_order_relaxed);
  }

  bool read(std::byte* data, uint32_t flag) {
    const uint64_t a = std::atomic_ref<uint64_t>(half[0]).load(std::memory_order_relaxed);
    const uint64_t b = std::atomic_ref<uint64_t>(half[1]).load(std::memory_order_relaxed);
    if (uint32_t(a >> 32) != flag || uint32_t(b >> 32) != flag) return false;
    const uint32_t word[2] = {uint32_t(a), uint32_t(b)};
    std::memcpy(data, word, sizeof word);
    return true;
  }

  static bool rewrites_slot(uint64_t step, int slots) { return ll_rewrites_slot(step, slots); }
};

using LLLink = LineLink<LL>;

}  // namespace ringkern::cpu
