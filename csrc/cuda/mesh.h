// The memory of a rank that other ranks write directly (core/direct.h), behind the FIFOs of its
// segment. Seen by the host and by the kernels.
#pragma once

#include "core/direct.h"
#include "core/plan.h"

namespace ringkern::cuda {

// The counters of one channel; behind them is a counter of rounds for each peer.
struct MeshCounters {
  StepCounter count[2];  // mine, over the life of the communicator
  StepCounter poisoned;  // kPoisoned once a rank has given up; that rank writes it
};
// The counts of a rank: finished rounds over lines, and meetings that it has reached
// (cuda/across.cuh). The two are separate, because flags of lines depend on the number of rounds.
enum class MeshCount : uint8_t { rounds, meetings };
// A peer's count of meetings, and the place of its tensor: RegionPlace::word().
struct alignas(kCacheLine) PeerMeetings {
  uint64_t count;
  uint64_t place;
};

// The place of a tensor in the memory that its rank has registered (cuda/regions.h): the region
// and the offset in it.
struct RegionPlace {
  int region = -1;  // -1: in none
  int64_t offset = 0;

  static constexpr int kMostRegions = 128;
  static constexpr int kOffsetBits = 48;

  // 0: in no region.
  RK_HD constexpr uint64_t word() const {
    return region < 0 ? 0 : uint64_t(region + 1) << kOffsetBits | uint64_t(offset);
  }
  RK_HD static constexpr RegionPlace of(uint64_t word) {
    return {int(word >> kOffsetBits) - 1, int64_t(word & ((uint64_t(1) << kOffsetBits) - 1))};
  }
};
// A region of a peer, as mapped by this rank; null: not mapped.
struct PeerRegion {
  std::byte* base = nullptr;
  int64_t bytes = 0;
};

// For each channel the counters, slots for each peer, and each peer's meetings. A peer writes the
// data of a round into one of its slots: the first half holds its staged data, and by two_shot the
// second half its reduced data.
struct MeshGeometry {
  static constexpr int kMostRanks = 32;  // a lane polls for each
  // Without the meetings. With the FIFOs of cuda/launch.h, less than 16 MiB a rank.
  static constexpr int64_t kChannelBytes = 128 << 10;

  int ranks = 1;
  int channels = 1;
  int slots = DirectPlan::slots(0);
  int64_t slot_bytes = 0;  // on the wire; both halves are whole grains of the plan

  // More ranks have smaller slots. All ranks get the same result.
  static constexpr MeshGeometry make(int ranks, int channels) {
    MeshGeometry g;
    g.ranks = ranks;
    g.channels = channels;
    if (!g.possible()) return g;
    const int64_t room = kChannelBytes - g.peer_slots_offset();
    g.slot_bytes = room / (g.slots * (ranks - 1)) / kSlotGrain * kSlotGrain;
    return g;
  }

  // Returns whether this many ranks can write to each other directly. A ring of one cannot.
  RK_HD constexpr bool possible() const { return ranks > 1 && ranks <= kMostRanks; }
  RK_HD constexpr int64_t channel_bytes() const { return meetings_offset(ranks - 1); }
  RK_HD constexpr int64_t bytes() const { return possible() ? channels * channel_bytes() : 0; }

  // Offsets within the memory of one channel. `index`: of a peer among those of a rank.
  RK_HD static constexpr int index(int peer, int rank) { return peer < rank ? peer : peer - 1; }
  RK_HD static constexpr int64_t peer_counter_offset(int index) {
    return int64_t(sizeof(MeshCounters)) + index * int64_t(sizeof(StepCounter));
  }
  RK_HD constexpr int64_t peer_slots_offset() const { return peer_counter_offset(ranks - 1); }
  RK_HD constexpr int64_t peer_slots_bytes() const { return slots * slot_bytes; }
  RK_HD constexpr int64_t meetings_offset(int index) const {
    return peer_slots_offset() + align_up((ranks - 1) * peer_slots_bytes(), kCacheLine) +
           index * int64_t(sizeof(PeerMeetings));
  }
  RK_HD constexpr int64_t peer_offset(MeshCount of, int index) const {
    return of == MeshCount::rounds ? peer_counter_offset(index) : meetings_offset(index);
  }

  RK_HD constexpr int64_t half_bytes() const { return slot_bytes / 2; }
  // The bytes of user data that a chunk may have.
  constexpr int64_t chunk_bytes(Algorithm algorithm) const {
    const int64_t data = slot_bytes / line_bytes(Protocol::ll) * line_data_bytes(Protocol::ll);
    return algorithm == Algorithm::two_shot ? ranks * (data / 2) : data;
  }

  static constexpr int64_t kSlotGrain =
      2 * DirectPlan::kGrainBytes * line_bytes(Protocol::ll) / line_data_bytes(Protocol::ll);
};

// Returns true if an all-reduce takes the tensors themselves.
constexpr bool is_in_place(Algorithm a, Protocol p) {
  return a == Algorithm::two_shot && p == Protocol::simple;
}
// Returns true if CUDA has the algorithm over this protocol.
constexpr bool direct_runs_over(Algorithm a, Protocol p) {
  return (a != Algorithm::ring && p == Protocol::ll) || is_in_place(a, p);
}

}  // namespace ringkern::cuda
