// How many blocks of the kernels a device holds at once. Those that wait for each other must all be
// resident, or those that are would wait for ever for those that are not.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "comm/ports.h"

namespace ringkern::cuda {

// The blocks of any kernel; loads all of them, because the first launch of one that is not may wait
// for the kernels that run, and those may be waiting for this one.
int resident_blocks(int device);
// How many channels each of the ranks has that share a device of so many blocks, with a block each;
// 0: not one. Their FIFOs keep to kFifoBudget.
int channels_of(int64_t blocks, int ranks);

// Returns a description of the device, for the other ranks.
DeviceRoom room_of(int device);
// Channels of a ring whose ranks are processes with these devices, by rank: what the fullest device
// holds beside the other ranks', at most the default. Throws UsageError where that is not one.
// Processes that take turns on a GPU (without MPS) would not have to divide it.
int channels_of(const std::vector<DeviceRoom>& rooms, const RankNames& names);

// Returns what a launch has whose blocks wait for each other and, unless `together`, for blocks of
// other launches.
std::vector<cudaLaunchAttribute> attributes_of_waiting(int device, bool together);

}  // namespace ringkern::cuda
