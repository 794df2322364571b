// What is said of a wait that failed on the device.
#pragma once

#include "comm/ports.h"

namespace ringkern::cuda {

// Throws TimeoutError or AbortedError, with who waited for whom.
[[noreturn]] void throw_failure(const WaitReport& report, int rank, int ranks, Milliseconds timeout,
                                const RingOrders& orders = {}, const RankNames& names = {});

}  // namespace ringkern::cuda
