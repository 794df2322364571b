// How many blocks of the kernels a device holds at once. Those that wait for each other must all be
// resident, or those that are would wait for ever for those that are not.
#pragma once

namespace ringkern::cuda {

// Of any of the kernels, which are all loaded then: the first launch of one that is not may wait
// for the kernels that run, and those may be waiting for this one.
int resident_blocks(int device);

}  // namespace ringkern::cuda
