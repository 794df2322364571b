// How many blocks of the kernels a device holds at once. Those that wait for each other must all be
// resident, or those that are would wait for ever for those that are not.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

namespace ringkern::cuda {

// Of any of the kernels, which are all loaded then: the first launch of one that is not may wait
// for the kernels that run, and those may be waiting for this one.
int resident_blocks(int device);

// Returns what a launch has whose blocks wait for each other and, unless `together`, for blocks of
// other launches.
std::vector<cudaLaunchAttribute> attributes_of_waiting(int device, bool together);

}  // namespace ringkern::cuda
