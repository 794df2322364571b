// Several messages in one launch, each between this rank and another. Seen by host and device.
#pragma once

#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>  // for its version
#endif

#include "cuda/launch.h"

namespace ringkern::cuda {

// Parameters of a kernel take 4 KiB before CUDA 12.1, and 32,764 bytes since. With 16, an exchange
// of 8 ranks is one launch.
#if defined(CUDART_VERSION) && CUDART_VERSION >= 12010
inline constexpr int kMostMessages = 16;
#else
inline constexpr int kMostMessages = 9;
#endif

// Threads of a block. Larger ones leave a thread too few registers for all three links.
inline constexpr int kMostMessageThreads = 256;

// LaunchArgs of a single rank.
struct MessageArgs {
  Plan plan;
  Geometry geometry;
  Reduction reduction;
  uint64_t timeout_ns = 0;
  uint64_t seq = 0;
  uint64_t after = 0;        // begins when the call with this number has ended; 0: at once
  uint64_t* last = nullptr;  // the number of the last call that has ended; in device memory
  RankArgs ranks[1];
};
// The first blocks run the channels of the first message, and so on.
struct MessagesArgs {
  MessageArgs messages[kMostMessages];
};
static_assert(std::is_trivially_copyable_v<MessagesArgs>);
static_assert(sizeof(MessageArgs) * 9 <= 4096 && sizeof(MessagesArgs) <= 32764);

// Takes one MessagesArgs, with a block for each channel of each message.
const void* message_kernel();

}  // namespace ringkern::cuda
