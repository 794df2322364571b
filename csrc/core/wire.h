// What lies in the memory that neighbours on the ring map from each other: the bytes of a line, the
// counters of a link, and the flags that say which step a line belongs to.
//
// A rank owns the FIFO it receives from; `prev` writes into it. Each side polls its own memory
// only: everything that travels is a write.
#pragma once

#include "core/types.h"

namespace ringkern {

// LL: 8 bytes of data a line. Each half is one 64-bit word, written and read whole, and carries its
// own flag, so that nothing but 8-byte atomicity is asked of the memory.
struct LLLine {
  uint64_t half[2];  // low 32 bits: data, high 32 bits: flag
};

// LL128: 120 bytes of data a line, and one flag for all. Asks that the 128 bytes become visible
// together (NVLink and one GPU's L2), or, on a CPU, that the flag is stored with release.
struct LL128Line {
  uint64_t data[15];
  uint64_t flag;
};

static_assert(sizeof(LLLine) == 16);
static_assert(sizeof(LL128Line) == 128);

RK_HD constexpr int line_bytes(Protocol p) {
  return p == Protocol::ll      ? int(sizeof(LLLine))
         : p == Protocol::ll128 ? int(sizeof(LL128Line))
                                : 1;
}
RK_HD constexpr int line_data_bytes(Protocol p) {
  return p == Protocol::ll ? 8 : p == Protocol::ll128 ? int(sizeof(LL128Line::data)) : 1;
}

// Flag 0 is fresh memory and never valid. The LL flag has 32 bits and wraps: lines that a short
// chunk did not touch keep an old flag, which must not come back within a period. So the sender
// rewrites a slot whole at least twice a period.
inline constexpr uint64_t kLLFlagPeriod = (uint64_t(1) << RK_LL_FLAG_BITS) - 1;
inline constexpr uint64_t kLLRewriteEvery = (kLLFlagPeriod + 1) / 2;

// step % kLLFlagPeriod + 1, without a division: 2^RK_LL_FLAG_BITS leaves 1.
RK_HD constexpr uint32_t ll_flag(uint64_t step) {
  while (step > kLLFlagPeriod) step = (step & kLLFlagPeriod) + (step >> RK_LL_FLAG_BITS);
  return step == kLLFlagPeriod ? 1 : uint32_t(step) + 1;
}
// ll_flag(step + 1) of ll_flag(step).
RK_HD constexpr uint32_t ll_next_flag(uint32_t flag) {
  const uint32_t next = (flag + 1) & uint32_t(kLLFlagPeriod);
  return next > 1 ? next : 1;
}
RK_HD constexpr bool ll_rewrites_slot(uint64_t step, int slots) {
  return uint32_t(~step % kLLRewriteEvery) < uint32_t(slots);  // the last ones
}
RK_HD constexpr uint64_t ll128_flag(uint64_t step) { return step + 1; }

// A counter of steps on a cache line of its own: one writer, one reader, never reset while the
// communicator lives.
struct alignas(kCacheLine) StepCounter {
  uint64_t value;
};
static_assert(sizeof(StepCounter) == kCacheLine);

// The counters of one rank, one channel, one protocol. They are in the memory of the link and not
// in launch arguments, so that a captured CUDA graph replays correctly.
struct LinkCounters {
  StepCounter tail;      // written by prev: steps it has filled in my FIFO (Simple)
  StepCounter head;      // written by next: steps it has consumed of what I sent: my credit
  StepCounter sent;      // mine: steps that I have filled at next
  StepCounter received;  // mine: steps that I have consumed
};
static_assert(sizeof(LinkCounters) == 4 * kCacheLine);

}  // namespace ringkern
