// Conversion of tensors to tasks, with checks, and with copies of tensors that are not contiguous.
// Errors are raised here, on the rank that made the call, before anything is published.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <pybind11/pytypes.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "comm/interfaces.h"

namespace ringkern::torch_ext {

namespace py = pybind11;

// Returns the name in Python, such as "float32" of torch.float32, or the internal name of a type
// that has none.
std::string torch_name(at::ScalarType type);

inline std::optional<DType> dtype_of(at::ScalarType type) {
  static const auto table = [] {
    std::array<std::optional<DType>, size_t(at::ScalarType::NumOptions)> t{};
    for (size_t i = 0; i < t.size(); ++i) {
      const std::string name = torch_name(at::ScalarType(i));
      for (int d = 0; d < kDTypes; ++d)
        if (name == name_of(DType(d))) t[i] = DType(d);
    }
    return t;
  }();
  return table[size_t(type)];
}

// Returns the type's index in kMoved; the last one for a type that is not listed.
int moved_of(at::ScalarType type);

std::string dtype_names();

struct OpCall {
  Op op = Op::sum;
  double factor = 1.0;
};

OpCall op_of(const c10d::ReduceOp& op);

// Throws TypeError or ValueError unless `t` can take part in a collective.
DType check_tensor(const at::Tensor& t, const char* role);
void check_written(const at::Tensor& t, const char* role);
Reduction reduction_for(const OpCall& call, DType dtype, int ranks);

// A user's tensor, and the tensor from which its value is copied.
struct Copy {
  at::Tensor to, from;
};
using Copies = std::vector<Copy>;

void copy_all(const Copies& copies);

// A task and the tensors that it works on.
struct Prepared {
  Task task;
  at::Tensor in, out;
  Copies copies;  // to be made afterwards
  c10::Device device = at::kCPU;

  void finish() const { copy_all(copies); }
};

// Returns true if memory holds the elements in logical order and unchanged. A view by torch's
// negative or conjugate bit has its sign elsewhere.
inline bool is_plain(const at::Tensor& t) {
  return t.is_contiguous() && !t.is_neg() && !t.is_conj();
}

// Returns the elements of `t` in logical order: `t` itself, or a copy.
inline at::Tensor plain(const at::Tensor& t) { return t.resolve_conj().resolve_neg().contiguous(); }

// Tells torch that a tensor was written to.
inline void bump_version(const at::Tensor& t) {
  if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

Prepared prepare(Collective collective, const at::Tensor& out, const at::Tensor& in,
                 const Reduction& reduction, int64_t count);

Reduction check_all_reduce(const at::Tensor& t, const OpCall& op, int ranks);
Prepared prepare_all_reduce(const at::Tensor& t, const OpCall& op, int ranks);

// Throws ValueError if the tensors overlap in any way but in place. In place, as torch defines it,
// the shard is this rank's part of the whole.
void check_apart(const at::Tensor& output, const at::Tensor& input, const at::Tensor& shard,
                 const at::Tensor& whole, const std::string& shard_name,
                 const std::string& whole_name, int rank);

Reduction check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, const OpCall& op,
                               int rank, int ranks);
Prepared prepare_reduce_scatter(const at::Tensor& output, const at::Tensor& input, const OpCall& op,
                                int rank, int ranks);
Reduction check_all_gather(const at::Tensor& output, const at::Tensor& input, int rank, int ranks);
Prepared prepare_all_gather(const at::Tensor& output, const at::Tensor& input, int rank, int ranks);

}  // namespace ringkern::torch_ext
