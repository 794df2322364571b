// A barrier that says who did not come: rank 0 hears of each rank through the store, and tells all.
// Slow, for debugging.
#pragma once

#include <string>
#include <vector>

#include "comm/interfaces.h"
#include "torch/checks.h"

namespace ringkern::torch_ext {

// `number`: how many there have been on this group. `wait_all_ranks`: name all who are missing, and
// not the first alone. Throws TimeoutError on every rank that came.
void monitored_barrier(Store& store, const Seat& seat, uint64_t number, Milliseconds timeout,
                       bool wait_all_ranks);

}  // namespace ringkern::torch_ext
