#include "torch/tensors.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

namespace ringkern::torch_ext {

std::string torch_name(at::ScalarType type) {
  try {
    return std::string(c10::getDtypeNames(type).first);
  } catch (const std::exception&) {
    return c10::toString(type);
  }
}

int moved_of(at::ScalarType type) {
  static const auto table = [] {
    std::array<int, size_t(at::ScalarType::NumOptions)> t{};
    for (size_t i = 0; i < t.size(); ++i) {
      const std::string name = torch_name(at::ScalarType(i));
      for (t[i] = 1; t[i] < kMovedDTypes - 1 && name != kMoved[t[i]].name;) ++t[i];
    }
    return t;
  }();
  return table[size_t(type)];
}

std::string dtype_names() {
  std::string names;
  for (int d = 0; d < kDTypes; ++d) names += std::string(d ? ", " : "") + name_of(DType(d));
  return names;
}

OpCall op_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return {Op::sum};
    case c10d::ReduceOp::AVG: return {Op::avg};
    case c10d::ReduceOp::PRODUCT: return {Op::prod};
    case c10d::ReduceOp::MIN: return {Op::min};
    case c10d::ReduceOp::MAX: return {Op::max};
    case c10d::ReduceOp::BAND: return {Op::band};
    case c10d::ReduceOp::BOR: return {Op::bor};
    case c10d::ReduceOp::BXOR: return {Op::bxor};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* s = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (s == nullptr)
        throw py::value_error(
            "ReduceOp.PREMUL_SUM needs a factor; make it with "
            "torch.distributed._make_nccl_premul_sum(factor)");
      return {Op::premul_sum,
              s->tensor_factor.defined() ? s->tensor_factor.item<double>() : s->double_factor};
    }
    default: break;
  }
  throw py::value_error(
      "unknown ReduceOp; ringkern takes SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, "
      "BXOR and PREMUL_SUM");
}

DType check_tensor(const at::Tensor& t, const char* role) {
  const std::string who = std::string(role) + " is ";
  if (!t.defined()) throw py::type_error(who + "undefined; give a tensor");
  if (t.is_nested())  // has no sizes to speak of, so this comes first
    throw py::type_error(who + "nested; reduce its parts, or .to_padded_tensor()");
  if (t.layout() != at::kStrided)
    throw py::type_error(who + "a tensor of layout " + c10::str(t.layout()) +
                         "; ringkern takes dense tensors: call .to_dense() first");
  if (t.is_quantized())
    throw py::type_error(who + "quantized; reduce .int_repr() or .dequantize()");
  const auto dtype = dtype_of(t.scalar_type());
  if (!dtype)
    throw py::type_error(
        who + "of dtype torch." + torch_name(t.scalar_type()) + "; ringkern takes " +
        dtype_names() +
        (t.is_complex() ? ": reduce torch.view_as_real(tensor)" : ": convert it first"));
  return *dtype;
}

void check_written(const at::Tensor& t, const char* role) {
  if (at::has_internal_overlap(t) == at::MemOverlap::Yes)
    throw py::value_error(std::string(role) +
                          " has elements that share memory (an expanded "
                          "tensor); call .contiguous() or .clone() first");
}

Reduction reduction_for(const OpCall& call, DType dtype, int ranks) {
  if (!accepts(call.op, kind_of(dtype))) {
    const Kind kind = kind_of(dtype);
    throw py::type_error(std::string("op ") + name_of(call.op) + " is not defined for dtype " +
                         name_of(dtype) +
                         (kind == Kind::floating  ? ": bitwise ops take integer dtypes"
                          : kind == Kind::integer ? ": sum and divide, or convert to a float first"
                                                  : ": convert to a float first"));
  }
  return Reduction::of(call.op, dtype, ranks, call.factor);
}

void copy_all(const Copies& copies) {
  if (copies.empty()) return;
  at::AutoDispatchBelowADInplaceOrView guard;
  for (const Copy& copy : copies) copy.to.copy_(copy.from);
}

Prepared prepare(Collective collective, const at::Tensor& out, const at::Tensor& in,
                 const Reduction& reduction, int64_t count) {
  at::AutoDispatchBelowADInplaceOrView guard;
  Prepared p;
  p.device = out.device();
  p.in = plain(in);
  // Elements are matched in logical order, through a copy: in memory, ranks may have the same
  // values in different orders.
  p.out = is_plain(out) ? out : out.is_same(in) ? p.in : at::empty(out.sizes(), out.options());
  if (!is_plain(out)) p.copies.push_back({out, p.out});
  p.task.collective = collective;
  p.task.reduction = reduction;
  p.task.in = p.in.const_data_ptr();
  p.task.out = p.out.mutable_data_ptr();
  p.task.count = count;
  if (count > 0 && p.device.type() != at::kMeta && (p.task.in == nullptr || p.task.out == nullptr))
    throw py::type_error(
        "a tensor has no memory: it only stands for one, as a FakeTensor does "
        "while a program is traced");
  bump_version(out);
  return p;
}

Reduction check_all_reduce(const at::Tensor& t, const OpCall& op, int ranks) {
  const DType dtype = check_tensor(t, "tensor");
  check_written(t, "tensor");
  return reduction_for(op, dtype, ranks);
}

Prepared prepare_all_reduce(const at::Tensor& t, const OpCall& op, int ranks) {
  return prepare(Collective::all_reduce, t, t, check_all_reduce(t, op, ranks), t.numel());
}

void check_apart(const at::Tensor& output, const at::Tensor& input, const at::Tensor& shard,
                 const at::Tensor& whole, const std::string& shard_name,
                 const std::string& whole_name, int rank) {
  if (output.is_contiguous() && input.is_contiguous() && shard.numel() > 0) {
    const auto* s = static_cast<const char*>(shard.const_data_ptr());
    const auto* w = static_cast<const char*>(whole.const_data_ptr());
    const bool in_place = s == w + rank * int64_t(shard.nbytes());
    if (!in_place && s < w + whole.nbytes() && w < s + shard.nbytes())
      throw py::value_error("output and input overlap; in place, " + shard_name +
                            " must be exactly this rank's part of " + whole_name);
  } else if (at::get_overlap_status(output, input) == at::MemOverlapStatus::Partial) {
    throw py::value_error("output and input overlap; give tensors of their own memory");
  }
}

// Checks the tensors of a reduce-scatter or an all-gather: `whole` holds a shard for each rank.
static DType check_pair(const at::Tensor& output, const at::Tensor& input, const at::Tensor& shard,
                        const at::Tensor& whole, const char* shard_name, const char* whole_name,
                        int rank, int ranks) {
  const DType dtype = check_tensor(output, "output");
  check_tensor(input, "input");
  check_written(output, "output");
  if (output.scalar_type() != input.scalar_type())
    throw py::type_error(std::string("output is torch.") + name_of(dtype) + " and input is torch." +
                         torch_name(input.scalar_type()) + "; they must have the same dtype");
  if (output.device() != input.device())
    throw py::value_error("output is on " + output.device().str() + " and input on " +
                          input.device().str() + "; they must be on the same device");
  if (whole.numel() != shard.numel() * ranks)
    throw py::value_error(std::string(whole_name) + " has " + std::to_string(whole.numel()) +
                          " elements and " + shard_name + " has " + std::to_string(shard.numel()) +
                          "; with " + std::to_string(ranks) + " ranks " + whole_name +
                          " must have " + std::to_string(shard.numel() * ranks));
  check_apart(output, input, shard, whole, shard_name, whole_name, rank);
  return dtype;
}

Reduction check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, const OpCall& op,
                               int rank, int ranks) {
  const DType dtype = check_pair(output, input, output, input, "output", "input", rank, ranks);
  return reduction_for(op, dtype, ranks);
}

Prepared prepare_reduce_scatter(const at::Tensor& output, const at::Tensor& input, const OpCall& op,
                                int rank, int ranks) {
  return prepare(Collective::reduce_scatter, output, input,
                 check_reduce_scatter(output, input, op, rank, ranks), output.numel());
}

Reduction check_all_gather(const at::Tensor& output, const at::Tensor& input, int rank, int ranks) {
  return {check_pair(output, input, input, output, "input", "output", rank, ranks)};
}

Prepared prepare_all_gather(const at::Tensor& output, const at::Tensor& input, int rank,
                            int ranks) {
  return prepare(Collective::all_gather, output, input,
                 check_all_gather(output, input, rank, ranks), input.numel());
}

}  // namespace ringkern::torch_ext
