// How a collective is run: over how many channels, which follow from what all ranks know, with how
// many threads, which are a rank's own business but over tensors in place, and over which tensors.
#pragma once

#include <span>

#include "comm/ports.h"
#include "cuda/launch.h"

namespace ringkern::cuda {

struct Shape {
  int channels = 1;
  int threads = 0;
};
Shape shape_of(const Task& task, int ranks, const Geometry& geometry);

// The tensors of all ranks, whose tasks these are, in order.
Tensors tensors_of(std::span<const Task> all);

// Threads of a block of the all-reduce over the tensors themselves, each of `bytes`. There are as
// many blocks as it takes.
int in_place_threads(int64_t bytes);

}  // namespace ringkern::cuda
