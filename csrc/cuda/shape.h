// The shape of a launch: its channels, which all ranks derive alike; its threads, which each rank
// chooses, except over tensors in place; and its tensors.
#pragma once

#include <span>

#include "comm/interfaces.h"
#include "cuda/launch.h"

namespace ringkern::cuda {

struct Shape {
  int channels = 1;
  int threads = 0;
};
Shape shape_of(const Task& task, int ranks, const Geometry& geometry);

// The tensors of all ranks, whose tasks these are, in order.
Tensors tensors_of(std::span<const Task> all);

// Returns the threads of a block of the all-reduce over the tensors themselves, each of `bytes`.
// There are as many blocks as needed.
int in_place_threads(int64_t bytes, bool tree);

}  // namespace ringkern::cuda
