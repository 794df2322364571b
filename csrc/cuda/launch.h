// Arguments of a launch of the kernels, and their mailbox to the host. Seen by both.
#pragma once

#include <type_traits>

#include "core/status.h"
#include "core/timeline.h"
#include "cuda/mesh.h"

namespace ringkern::cuda {

inline constexpr int kMaxThreads = 384;    // of a block
inline constexpr int kMaxLocalRanks = 32;  // ranks whose blocks share one launch
inline constexpr int kBlocksPerSM = 2;     // the registers of the kernels are limited to allow this
inline constexpr int kLL128Unit = 8;       // lines that a warp moves at once; a slot is a multiple

// The last warp posts counters and moves no data: its fence then overlaps the next step. A block
// too small for that has its last thread post beside its work.
RK_HD constexpr int workers_of(int threads) { return threads >= 96 ? threads - 32 : threads; }

// The number of workers that plans assume, whatever a launch has: ranks with the same plan may have
// different launches.
inline constexpr int kPlanWorkers = workers_of(kMaxThreads);

// 32 channels of 4 slots. The slots suit a block of 11 working warps: in Simple each moves two
// tiles of 2 KiB, in LL each thread four lines, in LL128 ten warps two units. 10.8 MiB a rank, and
// 4 MiB for the mesh. Between processes, a ring has fewer channels if its devices hold fewer
// (cuda/residency.h). Otherwise the geometry is the same on every GPU, because the ranks must
// agree. On an H100 that the ranks share, 8 slots were slower, because the FIFOs then leave the L2,
// and slots of 22 or 88 KiB were no faster. Between GPUs nothing was measured.
constexpr Geometry default_geometry() {
  Geometry g;
  g.channels = 32;
  g.slots = 4;
  g.slot_bytes[int(Protocol::simple)] = 44 << 10;
  g.slot_bytes[int(Protocol::ll)] = 4 * kPlanWorkers * int64_t(sizeof(LLLine));
  g.slot_bytes[int(Protocol::ll128)] = 20 << 10;
  return g;
}

// The bytes that the Simple FIFOs of all ranks of a ring may use on one device. If they use more,
// their data leaves the L2 for memory and comes back (an H100 has 50 MB of L2).
inline constexpr int64_t kFifoBudget = 22 << 20;

// The number of failed polls after which a wait checks whether to give up. A check reads host
// memory over PCIe: about 2 us, so not at every poll. A thousand polls take less than 1 ms.
#ifndef RK_POLLS_PER_LOOK
#define RK_POLLS_PER_LOOK 1024
#endif
inline constexpr uint32_t kPollsPerLook = RK_POLLS_PER_LOOK;

// A rank that gives up writes this value over the counters that a neighbour polls. No step reaches
// it.
inline constexpr uint64_t kPoisoned = ~uint64_t(0);

// Host memory of one rank that the device sees. The first failed wait fills in the report, its
// verdict last.
struct Mailbox {
  uint32_t aborted;  // by the host: every wait of this rank ends
  alignas(kCacheLine) WaitReport report;
  // The number of the last call whose blocks have all ended well.
  alignas(kCacheLine) uint64_t done;
};

// One rank of this launch.
struct RankArgs {
  int rank = 0;
  uint32_t on_host = 0;  // a bit for each rank that writes to `host` and not to `mine`
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::byte* mine = nullptr;  // segments, in the geometry's layout
  std::byte* host = nullptr;  // this rank's, in host memory; null: there is none
  std::byte* next = nullptr;  // the neighbours in the order 0, 1, ..., k-1
  std::byte* prev = nullptr;
  std::byte* const* all = nullptr;  // by rank, this one's among them; in device memory
  Mailbox* mailbox = nullptr;
  uint32_t* failed = nullptr;  // in device memory; once set, every launch of this rank ends at once
  uint32_t* ended = nullptr;   // beside it: ended blocks of this launch; 0 between launches
};

// Block b runs channel b % plan.channels of ranks[b / plan.channels].
struct LaunchArgs {
  Plan plan;
  Geometry geometry;
  Reduction reduction;
  uint64_t timeout_ns = 0;  // for each wait; 0: none
  uint64_t seq = 0;         // of the call, posted to the host when it has ended; 0: not posted
  RankArgs ranks[kMaxLocalRanks];
};
// The same for calls in the mesh, of one kind of plan.
template <class AnyPlan>
struct MeshArgs {
  AnyPlan plan;
  RingOrders orders;  // of the calls on the ring before and after this one
  Geometry geometry;  // of the part of a segment before the mesh
  MeshGeometry mesh;
  Reduction reduction;
  uint64_t timeout_ns = 0;
  uint64_t seq = 0;
  RankArgs ranks[kMaxLocalRanks];
};
using DirectArgs = MeshArgs<DirectPlan>;
// The arguments for a norm after it (RmsNormLoop of cpu/simd.h). A rank's `out` is the sum over the
// ranks plus the rank's residual, and `normalised` has its rows divided by their root mean squares.
struct RankNorm {
  const std::byte* residual = nullptr;
  const std::byte* weight = nullptr;  // of a row
  std::byte* normalised = nullptr;
};
struct NormArgs : DirectArgs {
  RowPlan rows;  // `plan` is a part of it
  float eps = 0;
  RankNorm norms[kMaxLocalRanks];
};
// LaunchArgs with a clock.
struct TimedArgs : LaunchArgs {
  Timeline timelines[kMaxLocalRanks];  // of the ranks, in device memory
};

// The tensors of all ranks, by rank, for an all-reduce that reads and writes them themselves.
struct Tensors {
  int64_t bytes = 0;  // of each
  int ranks = 0;
  bool aligned = false;  // all allow an access of 16 bytes at their start
  const std::byte* in[MeshGeometry::kMostRanks] = {};
  std::byte* out[MeshGeometry::kMostRanks] = {};
};
struct AcrossPlan {
  int channels = 1;  // of each rank
  Tensors tensors;
  // Between processes a rank has only its own tensor. It publishes the tensor's place, and finds
  // the others' tensors in their regions.
  bool told = false;
  uint64_t place = 0;                   // RegionPlace::word() of this rank's
  const PeerRegion* regions = nullptr;  // by rank and region; in device memory
};
using AcrossArgs = MeshArgs<AcrossPlan>;

static_assert(sizeof(TimedArgs) <= 4096 && sizeof(NormArgs) <= 4096, "kernel parameters");
static_assert(sizeof(AcrossArgs) <= 4096, "kernel parameters");
static_assert(std::is_trivially_copyable_v<TimedArgs>);
static_assert(std::is_trivially_copyable_v<NormArgs>);
static_assert(std::is_trivially_copyable_v<AcrossArgs>);

// The kernel for a collective: a host function that cudaLaunchKernel takes, with one LaunchArgs.
// Never null.
const void* kernel_for(Protocol protocol, DType dtype, Combine combine);
// The same with a clock, for float32 and the sum alone; takes one TimedArgs.
const void* timed_kernel_for(Protocol protocol);
// The same for the direct all-reduces, with one DirectArgs. `tree`: floats are added in the order
// of core/tree.h.
const void* direct_kernel_for(DType dtype, Combine combine, bool tree = false);
// The same and then a norm, with one NormArgs; null where the dtype has none.
const void* norm_kernel_for(DType dtype);

// The all-reduce over the tensors themselves, of ranks that are all in one launch: takes one
// InPlaceArgs, and a thread for each 16 bytes of a tensor, or by the tree for each 8.
inline constexpr int kMostInPlaceThreads = 512;  // of a block; by the tree half as many
struct InPlaceArgs {
  Reduction reduction;
  Tensors tensors;
};
const void* in_place_kernel(DType dtype, Combine combine, bool tree = false);
// The same for ranks in several launches, each with one AcrossArgs. Smaller blocks leave a thread
// registers for more loads.
inline constexpr int kMostAcrossThreads = 256;
const void* across_kernel(DType dtype, Combine combine, bool tree = false);

// A ring of one: out = in, multiplied if the reduction does so. Takes one AloneArgs.
struct AloneArgs {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t count = 0;
  Reduction reduction;
};
const void* alone_kernel(DType dtype);

}  // namespace ringkern::cuda
