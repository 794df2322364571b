// All-reduce of sparse tensors: every rank gathers what all have, and adds it up.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "torch/tensors.h"

namespace ringkern::torch_ext {

// All ranks' `in`, which have one shape, behind each other: [ranks, ...].
using Gather = std::function<at::Tensor(const at::Tensor& in)>;

// Returns the words that must be alike on all ranks, then the number of this rank's elements.
at::Tensor describe_sparse(const at::Tensor& t, int64_t nnz);

// `t`, of one rank, to the length that the longest has.
at::Tensor padded(const at::Tensor& t, int64_t rows);

// Leaves the sum of all ranks in `t`.
void sum_sparse(const at::Tensor& t, int rank, int ranks, const Gather& gather);

}  // namespace ringkern::torch_ext
