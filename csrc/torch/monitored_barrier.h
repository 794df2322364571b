// A barrier that names the ranks that did not come: rank 0 hears from each rank through the store,
// and tells all. It is slow, and meant for debugging.
#pragma once

#include <string>
#include <vector>

#include "comm/interfaces.h"
#include "torch/checks.h"

namespace ringkern::torch_ext {

// Waits for all ranks; throws TimeoutError on every rank that came if one did not. `number`: the
// number of earlier calls on this group. `wait_all_ranks`: the error names all missing ranks, not
// only the first.
void monitored_barrier(Store& store, const Seat& seat, uint64_t number, Milliseconds timeout,
                       bool wait_all_ranks);

}  // namespace ringkern::torch_ext
