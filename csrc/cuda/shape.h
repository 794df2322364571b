// How many channels and threads a collective is run with. Channels follow from what all ranks know;
// threads are a rank's own business.
#pragma once

#include "comm/ports.h"

namespace ringkern::cuda {

struct Shape {
  int channels = 1;
  int threads = 0;
};
Shape shape_of(const Task& task, int ranks, const Geometry& geometry);

}  // namespace ringkern::cuda
