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

// Threads of a block of the all-reduce over the tensors themselves, each of `bytes`. There are as
// many blocks as it takes.
int in_place_threads(int64_t bytes);

}  // namespace ringkern::cuda
