// An all-reduce with two steps of a transformer's layer: it adds a residual to the sum, and divides
// each row by its root mean square. A CPU does them in one pass over the rows that the all-reduce
// has just written. CUDA does them in the kernel of the all-reduce, or by torch's own operations
// after it if the ring has one rank or several hosts.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rms_norm.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "cpu/simd.h"
#include "torch/callers.h"
#include "torch/checks.h"
#include "torch/runner.h"

namespace ringkern::torch_ext {

inline void check_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                       double eps) {
  const DType dtype = check_tensor(x, "x");
  if (kernels().add_rms_norm[int(dtype)] == nullptr)
    throw py::type_error(std::string("x is of dtype torch.") + name_of(dtype) +
                         ", which has no norm; float32, float16 and bfloat16 have: convert it "
                         "first");
  if (x.dim() == 0)
    throw py::value_error("x has no dimension; give a tensor whose last one is a row's");
  const std::pair<const at::Tensor&, const char*> others[] = {{residual, "residual"},
                                                              {weight, "weight"}};
  for (const auto& [tensor, role] : others) {
    check_dense(tensor, role);
    check_same_kind(tensor, role, x, "x");
  }
  if (residual.sizes() != x.sizes())
    throw py::value_error("residual has shape " + shape_text(residual) + " and x " + shape_text(x) +
                          "; they must have the same shape");
  if (weight.dim() != 1 || weight.size(0) != x.size(-1))
    throw py::value_error("weight has shape " + shape_text(weight) + " and x " + shape_text(x) +
                          "; weight must have one dimension, of the size of x's last one");
  if (!std::isfinite(eps) || eps < 0)
    throw py::value_error("eps is " + std::to_string(eps) + "; give a number of 0 or more");
}

// Adds `residual` to `total`, a contiguous tensor, and returns the norm of the sum.
inline at::Tensor add_rms_norm(const at::Tensor& total, const at::Tensor& residual,
                               const at::Tensor& weight, double eps, Callers& callers) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (!total.is_cpu()) {
    total.add_(residual);
    return at::rms_norm(total, weight.sizes(), weight, eps);
  }
  const at::Tensor added = plain(residual), factors = plain(weight);
  at::Tensor out = at::empty_like(total);
  const int64_t row = total.size(-1), bytes = row * total.element_size();
  const int64_t rows = row == 0 ? 0 : total.numel() / row;
  auto* const to = static_cast<std::byte*>(out.mutable_data_ptr());
  auto* const sum = static_cast<std::byte*>(total.mutable_data_ptr());
  const auto* const from = static_cast<const std::byte*>(added.const_data_ptr());
  const RmsNormLoop loop = kernels().add_rms_norm[int(*dtype_of(total.scalar_type()))];
  std::optional<Callers::Scope> no_gil;
  if (rows * bytes > kKeepsGil) no_gil.emplace(callers);
  for (int64_t at = 0; at < rows * bytes; at += bytes)
    loop(to + at, sum + at, from + at, factors.const_data_ptr(), row, float(eps));
  return out;
}

// Sums `x` over all ranks and adds `residual`. Returns the norm of that total, and the total.
inline std::pair<at::Tensor, at::Tensor> all_reduce_residual_rms_norm(
    Runner& c, const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
    double eps, const WayRequest& request) {
  check_norm(x, residual, weight, eps);
  const int64_t row = x.size(-1);
  // The kernel counts the bytes of a row in an int.
  if (x.is_cpu() || x.numel() == 0 || row * x.element_size() > std::numeric_limits<int>::max()) {
    const at::Tensor total = c.sum_of(x, request, nullptr);
    return {add_rms_norm(total, residual, weight, eps, c.callers()), total};
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor added = plain(residual), factors = plain(weight);
  at::Tensor out = at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous));
  const auto* const from = static_cast<const std::byte*>(added.const_data_ptr());
  const auto* const by = static_cast<const std::byte*>(factors.const_data_ptr());
  auto* const to = static_cast<std::byte*>(out.mutable_data_ptr());
  RowNorm norm{row, from, by, to, float(eps)};
  const at::Tensor total = c.sum_of(x, request, &norm);
  if (!norm.done) out = add_rms_norm(total, residual, weight, eps, c.callers());
  return {out, total};
}

}  // namespace ringkern::torch_ext
