// The plan of a call, made without a communicator.
#pragma once

#include <c10/core/Device.h>

#include "comm/interfaces.h"

namespace ringkern::torch_ext {

// Returns the plan of `task` round a ring of this many ranks on a kind of device.
Plan ring_plan(c10::DeviceType device, const Task& task, int ranks, const Geometry& g);

}  // namespace ringkern::torch_ext
