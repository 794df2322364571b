// All-reduce of sparse tensors: every rank gathers the elements of all ranks, and adds them.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "torch/tensors.h"

namespace ringkern::torch_ext {

// Returns the `in` of all ranks, which have one shape, as one tensor: [ranks, ...].
using Gather = std::function<at::Tensor(const at::Tensor& in)>;

// Returns the words that must be alike on all ranks, then the number of this rank's elements.
at::Tensor describe_sparse(const at::Tensor& t, int64_t nnz);

// Returns `t` with zeros added at its end, up to `rows` rows: the most that a rank has.
at::Tensor padded(const at::Tensor& t, int64_t rows);

// Leaves the sum of all ranks in `t`.
void sum_sparse(const at::Tensor& t, int rank, int ranks, const Gather& gather);

}  // namespace ringkern::torch_ext
