// The layout of the memory that neighbours on the ring share: lines, the counters of a link, and
// the flags that tell which step a line belongs to.
//
// A rank owns the FIFO that it receives from, and `prev` writes into it. Each rank polls only its
// own memory; everything that crosses a link is a write.
#pragma once

#include "core/types.h"

namespace ringkern {

// LL: a line holds 8 bytes of data. Each half is one 64-bit word that is written and read whole and
// has its own flag. The memory needs no guarantee beyond 8-byte atomicity.
struct LLLine {
  uint64_t half[2];  // low 32 bits: data, high 32 bits: flag
};

// LL128: a line holds 120 bytes of data and one flag for all of them. The 128 bytes must become
// visible together (NVLink, the L2 of one GPU), or the flag must be stored with release (CPU).
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

// Flag 0 means fresh memory and is never valid. The LL flag has 32 bits and wraps. Lines that a
// short chunk does not write keep an old flag, which must not become valid again one period later.
// The sender therefore rewrites the whole slot at least twice per period.
inline constexpr uint64_t kLLFlagPeriod = (uint64_t(1) << RK_LL_FLAG_BITS) - 1;
inline constexpr uint64_t kLLRewriteEvery = (kLLFlagPeriod + 1) / 2;

// Returns step % kLLFlagPeriod + 1 without a division: modulo the period, 2^RK_LL_FLAG_BITS is 1.
RK_HD constexpr uint32_t ll_flag(uint64_t step) {
  while (step > kLLFlagPeriod) step = (step & kLLFlagPeriod) + (step >> RK_LL_FLAG_BITS);
  return step == kLLFlagPeriod ? 1 : uint32_t(step) + 1;
}
// Returns ll_flag(step + 1), given ll_flag(step).
RK_HD constexpr uint32_t ll_next_flag(uint32_t flag) {
  const uint32_t next = (flag + 1) & uint32_t(kLLFlagPeriod);
  return next > 1 ? next : 1;
}
RK_HD constexpr bool ll_rewrites_slot(uint64_t step, int slots) {
  return uint32_t(~step % kLLRewriteEvery) < uint32_t(slots);  // the last steps before it
}
RK_HD constexpr uint64_t ll128_flag(uint64_t step) { return step + 1; }

// A counter of steps on its own cache line. It has one writer and one reader, and is never reset
// while the communicator lives.
struct alignas(kCacheLine) StepCounter {
  uint64_t value;
};
static_assert(sizeof(StepCounter) == kCacheLine);

// The counters of one rank, channel and protocol. They are in the memory of the link, not in launch
// arguments, so that a captured CUDA graph replays correctly.
struct LinkCounters {
  StepCounter tail;      // written by prev: steps that it has filled in this rank's FIFO (Simple)
  StepCounter head;      // written by next: steps that it has consumed; this rank's credit
  StepCounter sent;      // written by this rank: steps that it has filled at next
  StepCounter received;  // written by this rank: steps that it has consumed
};
static_assert(sizeof(LinkCounters) == 4 * kCacheLine);

}  // namespace ringkern
