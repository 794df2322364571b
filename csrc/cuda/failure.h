// A wait that failed on the device, as its rank has reported it.
#pragma once

#include "comm/interfaces.h"

namespace ringkern::cuda {

Fault fault_in(const WaitReport& report, int rank, int ranks, const RingOrders& orders = {},
               const RankNames& names = {});

}  // namespace ringkern::cuda
