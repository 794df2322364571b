// Constants of the library, and the macro for functions that run on the host and on a device.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define RK_HD __host__ __device__
#else
#define RK_HD
#endif

// Set by the build where the CUDA kernels are compiled in.
#ifndef RK_WITH_CUDA
#define RK_WITH_CUDA 0
#endif

// Number of bits of the LL flag that vary with the step. A test build reduces it, so that the flag
// wraps within a few calls and the rewriting of stale slots is tested.
#ifndef RK_LL_FLAG_BITS
#define RK_LL_FLAG_BITS 32
#endif

namespace ringkern {

// Two 64-byte lines: the adjacent-line prefetcher of x86 would cause false sharing between them.
inline constexpr int kCacheLine = 128;
inline constexpr int kDefaultSlots = 8;
inline constexpr int kMaxSlots = 64;
inline constexpr int kSlicesPerChunk = 2;
inline constexpr int kMaxChannels = 64;
inline constexpr int kMaxRanks = 1024;

RK_HD constexpr int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
RK_HD constexpr int64_t align_up(int64_t a, int64_t b) { return div_up(a, b) * b; }
RK_HD constexpr int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
RK_HD constexpr int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace ringkern
