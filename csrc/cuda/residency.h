// The number of the kernels' blocks that a device holds at once. Blocks that wait for each other
// must all be resident, or the resident ones would wait forever.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "comm/interfaces.h"

namespace ringkern::cuda {

// Returns the resident blocks of any kernel. Loads all kernels, because the first launch of an
// unloaded one may wait for running kernels, which may wait for this launch.
int resident_blocks(int device);
// Returns the channels of each of the ranks that share a device of this many blocks, one block a
// channel; 0: none fits. Their FIFOs keep to kFifoBudget.
int channels_of(int64_t blocks, int ranks);

// Returns a description of the device, for the other ranks.
DeviceRoom room_of(int device);
// Returns the channels of a ring whose ranks are processes with these devices, by rank: as many as
// the fullest device holds for each of its ranks, at most the default. Throws UsageError if that is
// not one. Processes that take turns on a GPU (without MPS) would not have to divide it.
int channels_of(const std::vector<DeviceRoom>& rooms, const RankNames& names);

// Returns the attributes of a launch whose blocks wait for each other and, unless `together`, for
// blocks of other launches.
std::vector<cudaLaunchAttribute> attributes_of_waiting(int device, bool together);

}  // namespace ringkern::cuda
