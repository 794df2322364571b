// The limit: what an all-reduce of two ranks costs that only moves its bytes.
//
// Bare data movement of five designs, for float32 sums in place: no deadline, no abort, no sleep,
// no check of anything. It spins by itself, not by wait.h: a rank whose neighbour dies waits for
// ever, and is ended by the benchmark. Nothing of the library uses it. The benchmark runs it beside
// the contenders, as one more of them, so that a time can be read as a share of what this machine
// allows at this moment.
#pragma once

#include <array>
#include <cstdint>

#include "comm/memory_file.h"

namespace ringkern::cpu {

#define RK_MOVEMENTS(X) \
  X(flag_in_line)       \
  X(one_shot)           \
  X(scatter_gather)     \
  X(scatter_gather_c)   \
  X(shared)

// flag_in_line: lines of 64 bytes, 56 of data and a flag of 8, one journey; both ranks add it all.
// one_shot: a chunk to the own slot, a counter, and the other's chunk is added; pipelined.
// scatter_gather: half of a chunk to the own slot; the other rank adds its own to it, in place and
//   in the tensor, and the result is copied out of the slot.
// scatter_gather_c: the same with the C library's memcpy, which on some processors overwrites lines
//   without fetching them first.
// shared: both tensors are in shared memory; each rank writes its half of the sum to both.
enum class Movement : uint8_t {
#define RK_MOVEMENT(name) name,
  RK_MOVEMENTS(RK_MOVEMENT)
#undef RK_MOVEMENT
};
constexpr auto kMovements = std::to_array<const char*>({
#define RK_MOVEMENT(name) #name,
    RK_MOVEMENTS(RK_MOVEMENT)
#undef RK_MOVEMENT
});

// One of two ranks, each a process pinned to a core of its own.
class Bare {
 public:
  static constexpr int64_t kLongestChunk = 256 << 10;  // bytes of one slot
  // Bytes of a tensor that flag_in_line takes.
  static constexpr int64_t kLongestInLines = 512 << 10;

  // Bytes of the memory file that both ranks map; all zero at first.
  static int64_t file_bytes();

  // `rank`: 0 or 1. `fd`: the memory file, of at least file_bytes(); may be closed afterwards.
  Bare(int rank, int fd);

  // Sums `count` floats of both ranks in place. `theirs`: the other rank's tensor, for `shared`;
  // else ignored. `chunk`: bytes, up to kLongestChunk and a multiple of kChunkGrain, for one_shot
  // and both of scatter_gather; else ignored. Both ranks make the same calls, or wait for ever.
  void all_reduce(Movement movement, float* mine, float* theirs, int64_t count, int64_t chunk);

  // A cache line there and back between the two cores, in ns: the best of a few hundred rounds.
  // Both ranks call it.
  double round_trip_ns();

  static constexpr int64_t kChunkGrain = 128;

 private:
  struct Shared;

  char* slot(Movement movement, int rank, uint64_t chunk) const;
  void in_lines(float* mine, int64_t count);
  void one_shot(float* mine, int64_t count, int64_t chunk);
  void scatter_gather(Movement movement, float* mine, int64_t count, int64_t chunk);
  void in_shared(float* mine, float* theirs, int64_t count);

  int rank_;
  Mappings mappings_;
  Shared* shared_;
  char* lines_;
  char* slots_;
  // Calls and chunks so far: the same on both ranks, and never reset.
  uint64_t exchanges_ = 0;
  uint64_t one_shots_ = 0;
  uint64_t halves_ = 0;
  uint64_t meetings_ = 0;
  uint64_t rounds_ = 0;
};

}  // namespace ringkern::cpu
