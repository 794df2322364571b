// The kernel that probes links (comm/probe.h), and its arguments. Seen by host and device.
#pragma once

#include <type_traits>

#include "core/wire.h"
#include "cuda/launch.h"

namespace ringkern::cuda {

inline constexpr int kProbeThreads = 128;
inline constexpr int kMostLinks = 64;  // of a launch

// The state of a block's wait besides data, in this rank's own memory: no other rank writes there.
struct alignas(kCacheLine) ProbeScratch {
  uint64_t answer;  // received; 0: none
  Mailbox mailbox;
  alignas(kCacheLine) uint32_t failed;
  LinkCounters counters;
};

// A link, by one block. Pointers are null if unused. The peer answers in the word behind those that
// it writes.
struct ProbeEnds {
  uint64_t* theirs = nullptr;       // in the peer's memory
  const uint64_t* sends = nullptr;  // the rest in this rank's
  uint64_t* mine = nullptr;
  uint64_t* receives = nullptr;
  ProbeScratch* scratch = nullptr;
};

struct ProbeArgs {
  int words = 0;            // even
  uint64_t timeout_ns = 0;  // for each of two waits
  ProbeEnds links[kMostLinks];
};
static_assert(sizeof(ProbeArgs) <= 4096, "kernel parameters");
static_assert(std::is_trivially_copyable_v<ProbeArgs>);

// A host function that cudaLaunchKernel takes, with one ProbeArgs and a block a link. Never null.
const void* probe_kernel();

}  // namespace ringkern::cuda
