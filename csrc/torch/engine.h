// An engine: a backend of torch.distributed that moves data between hosts, over ranks of which each
// is on another one, or over all of a group; and what is made of it where it cannot reduce as
// asked.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "torch/runner.h"
#include "torch/tensors.h"

namespace ringkern::torch_ext {

inline at::ScalarType scalar_of(DType dtype) {
  static const auto table = [] {
    std::array<at::ScalarType, kDTypes> t{};
    for (size_t i = 0; i < size_t(at::ScalarType::NumOptions); ++i)
      if (const auto d = dtype_of(at::ScalarType(i))) t[size_t(*d)] = at::ScalarType(i);
    return t;
  }();
  return table[size_t(dtype)];
}

// `count` elements of a tensor's memory, from one on, as a tensor of their own. It keeps the
// memory: an engine may hold on to it after a call that failed.
inline at::Tensor slice_of(const at::Tensor& owner, const void* base, int64_t offset, int64_t count,
                           DType dtype) {
  auto* at = const_cast<char*>(static_cast<const char*>(base)) + offset * size_of(dtype);
  // The memory alone: it may end on a thread of the engine's, and for the end of a tensor that
  // Python has known that thread would need the GIL, for which it would be killed where Python has
  // ended.
  return at::from_blob(
      at, {count}, [memory = owner.storage()](void*) {},
      at::TensorOptions().dtype(scalar_of(dtype)).device(owner.device()));
}

// Of a plain tensor of any shape.
inline at::Tensor as_bytes(const at::Tensor& t) { return t.reshape({-1}).view(at::kByte); }

// What torch throws says where in torch it was.
inline std::string what_of(const std::exception& e) {
  const auto* const c10_error = dynamic_cast<const c10::Error*>(&e);
  return c10_error != nullptr ? c10_error->what_without_backtrace() : e.what();
}

// In float32, where sums of small floats are: rounded as the ring rounds them, which has no value
// beyond the largest for a float without infinity.
inline at::Tensor rounded(const at::Tensor& t, at::ScalarType type) {
  constexpr double kLargest = 448;
  return type == at::kFloat8_e4m3fn ? t.clamp(-kLargest, kLargest).to(type) : t.to(type);
}

// The smaller or the larger of two; NaN if either is, and -0 is less than 0.
inline at::Tensor extreme(const at::Tensor& a, const at::Tensor& b, bool smaller) {
  const at::Tensor found = smaller ? at::minimum(a, b) : at::maximum(a, b);
  if (!found.is_floating_point()) return found;
  // Equal numbers differ in the sign of zero at most.
  const auto bits = a.element_size() == 8 ? at::kLong : at::kInt;
  const at::Tensor x = a.view(bits), y = b.view(bits);
  const at::Tensor of_equals = (smaller ? x.bitwise_or(y) : x.bitwise_and(y)).view(a.scalar_type());
  return at::where(a.eq(b), of_equals, found)
      .masked_fill_(found.isnan(), std::numeric_limits<double>::quiet_NaN());
}

// Combines what all hosts have, `parts` [hosts, n], in the order of the hosts. Small floats are
// added up in float32 and rounded once.
inline at::Tensor combined(const at::Tensor& parts, Combine combine) {
  const auto type = parts.scalar_type();
  const auto dtype = dtype_of(type);
  const bool small = dtype && is_small(*dtype);
  const auto part = [&](int64_t h) {
    const at::Tensor p = parts.select(0, h);
    return small ? p.to(at::kFloat) : p;
  };
  at::Tensor all = small ? part(0) : part(0).clone();
  for (int64_t h = 1; h < parts.size(0); ++h) {
    const at::Tensor next = part(h);
    switch (combine) {
      case Combine::sum: all.add_(next); break;
      case Combine::prod: all.mul_(next); break;
      case Combine::min: all = extreme(all, next, true); break;
      case Combine::max: all = extreme(all, next, false); break;
      case Combine::band: all.bitwise_and_(next); break;
      case Combine::bor: all.bitwise_or_(next); break;
      case Combine::bxor: all.bitwise_xor_(next); break;
    }
  }
  return small ? rounded(all, type) : all;
}

// Divides in place, as an average is: small floats in float32.
inline void divide(const at::Tensor& t, double by) {
  const auto dtype = dtype_of(t.scalar_type());
  if (dtype && is_small(*dtype)) t.copy_(t.to(at::kFloat).div_(by));
  else t.div_(by);
}

// So much of what an engine says is in an error, in characters.
inline constexpr size_t kEngineSays = 200;

class Engine {
 public:
  // Waits for a work, and throws what it failed with.
  using Await = std::function<void(const WorkPtr&)>;
  // What is left to do of something begun; call it once.
  using Finish = std::function<void()>;

  Engine(c10::intrusive_ptr<c10d::Backend> backend, Milliseconds timeout, Await await)
      : backend_(std::move(backend)), ranks_(backend_->getSize()), timeout_(timeout),
        await_(std::move(await)) {}

  c10d::Backend& backend() { return *backend_; }

  // Whether it reduces so itself, and as ringkern does: NaN is the least and the greatest of all.
  bool reduces(const Reduction& r) const {
    const bool floating = kind_of(r.dtype) == Kind::floating;
    if (floating && (r.combine == Combine::min || r.combine == Combine::max)) return false;
    const std::string name = backend_->getBackendName();
    const bool bitwise =
        r.combine == Combine::band || r.combine == Combine::bor || r.combine == Combine::bxor;
    if (name == "gloo") return size_of(r.dtype) > 1 || !floating;
    if (name == "nccl") return !bitwise && (size_of(r.dtype) > 1 || !floating);
    return !is_small(r.dtype) && !bitwise;  // what every engine has
  }

  // Reduces a tensor over the engine's ranks, in place, however it is asked to.
  Finish begin_all_reduce(const at::Tensor& t, const Reduction& r, bool in_rank_order) {
    if (in_rank_order || !reduces(r)) return begin_exchange(t, r.combine);
    std::vector<at::Tensor> tensors{t};
    c10d::AllreduceOptions o;
    o.reduceOp = op_for(r.combine);
    o.timeout = timeout_;
    return waiting(backend_->allreduce(tensors, o));
  }

  // The same by moving bytes alone: each rank gets a part of it from all, combines it in the order
  // of the ranks, and gives it to all. As many bytes travel as for an all-reduce round a ring.
  Finish begin_exchange(const at::Tensor& t, Combine combine) {
    const int64_t n = t.numel(), part = (n + ranks_ - 1) / ranks_;
    at::Tensor whole = t;
    if (part * ranks_ != n) {
      whole = at::zeros({part * ranks_}, t.options());
      whole.narrow(0, 0, n).copy_(t);
    }
    const at::Tensor parts = at::empty({ranks_, part}, t.options());
    Finish exchanged = begin_all_to_all(parts.view({-1}), whole);
    return [this, t, whole, parts, combine, exchanged] {
      exchanged();
      at::AutoDispatchBelowADInplaceOrView guard;
      const at::Tensor mine = combined(parts, combine);
      begin_all_gather(whole, mine)();
      if (!whole.is_same(t)) t.copy_(whole.narrow(0, 0, t.numel()));
    };
  }

  // Part i of `in` goes to rank i, and what comes from it is part i of `out`.
  Finish begin_all_to_all(const at::Tensor& out, const at::Tensor& in) {
    at::Tensor to = as_bytes(out), from = as_bytes(in);
    std::vector<int64_t> equal;
    c10d::AllToAllOptions o;
    o.timeout = timeout_;
    return waiting(backend_->alltoall_base(to, from, equal, equal, o));
  }

  Finish begin_all_gather(const at::Tensor& out, const at::Tensor& in) {
    at::Tensor to = as_bytes(out), from = as_bytes(in);
    c10d::AllgatherOptions o;
    o.timeout = timeout_;
    return waiting(backend_->_allgather_base(to, from, o));
  }

  Finish begin_broadcast(const at::Tensor& t, int root) {
    std::vector<at::Tensor> tensors{as_bytes(t)};
    c10d::BroadcastOptions o;
    o.rootRank = root;
    o.timeout = timeout_;
    return waiting(backend_->broadcast(tensors, o));
  }

  // To `root`; the others' tensors have no meaning afterwards.
  Finish begin_reduce(const at::Tensor& t, const Reduction& r, int root) {
    if (!reduces(r)) return begin_exchange(t, r.combine);
    std::vector<at::Tensor> tensors{t};
    c10d::ReduceOptions o;
    o.reduceOp = op_for(r.combine);
    o.rootRank = root;
    o.timeout = timeout_;
    return waiting(backend_->reduce(tensors, o));
  }

 private:
  static c10d::ReduceOp::RedOpType op_for(Combine combine) {
    switch (combine) {
      case Combine::sum: return c10d::ReduceOp::SUM;
      case Combine::prod: return c10d::ReduceOp::PRODUCT;
      case Combine::min: return c10d::ReduceOp::MIN;
      case Combine::max: return c10d::ReduceOp::MAX;
      case Combine::band: return c10d::ReduceOp::BAND;
      case Combine::bor: return c10d::ReduceOp::BOR;
      case Combine::bxor: return c10d::ReduceOp::BXOR;
    }
    return c10d::ReduceOp::UNUSED;
  }
  Finish waiting(WorkPtr work) {
    return [this, work = std::move(work)] { await_(work); };
  }

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const int ranks_;
  const Milliseconds timeout_;
  const Await await_;
};

}  // namespace ringkern::torch_ext
