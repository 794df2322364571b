// An engine: a backend of torch.distributed that moves data between hosts, over ranks of which each
// is on another one, or over all of a group; and what is made of it where it cannot reduce as
// asked.
//
// On CPUs a second backend over the same ranks carries slots: messages of one size, which begin
// with the call that their rank makes. Data of up to a slot's payload travel in it. More data go by
// the first backend, once the ranks have compared their calls in slots; for a call that all expect
// after those before they need not, since a rank that makes another one has to compare. So nothing
// of a call meets anything of another one: neither its values, nor its size, for which Gloo would
// end the process.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "comm/control.h"
#include "hosts/forecast.h"
#include "torch/runner.h"
#include "torch/tensors.h"

namespace ringkern::torch_ext {

inline at::ScalarType scalar_of(DType dtype) {
  static const auto table = [] {
    std::array<at::ScalarType, kDTypes> t{};
    for (size_t i = 0; i < size_t(at::ScalarType::NumOptions); ++i)
      if (const auto d = dtype_of(at::ScalarType(i)))  // not every engine has booleans
        t[size_t(*d)] = kind_of(*d) == Kind::logical ? at::kByte : at::ScalarType(i);
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

// Views a plain tensor of any shape. One of a single element may have any stride: torch calls it
// contiguous, and does not view it as bytes.
inline at::Tensor as_bytes(const at::Tensor& t) {
  return t.as_strided({t.numel()}, {1}).view(at::kByte);
}

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

// Combines what all hosts have, `parts` [hosts, n], in the order of the hosts; what is there may be
// overwritten. Small floats are added up in float32 and rounded once.
inline at::Tensor combined(const at::Tensor& parts, Combine combine) {
  const auto type = parts.scalar_type();
  const auto dtype = dtype_of(type);
  const bool small = dtype && is_small(*dtype);
  const auto part = [&](int64_t h) {
    const at::Tensor p = parts.select(0, h);
    return small ? p.to(at::kFloat) : p;
  };
  at::Tensor all = part(0);
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

// Payload of a slot.
inline constexpr int64_t kSlotBytes = 1024;

class Engine {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  // Waits for a work, and throws what it failed with.
  using Await = std::function<void(const WorkPtr&)>;
  // The engine's rank `place` makes this call, which differs from this rank's. Throws.
  using Differ = std::function<void(int place, const ringkern::Call& theirs)>;
  // What is left to do of something begun; call it once.
  using Finish = std::function<void()>;

  // `slots`: for slots; null: calls are not compared.
  Engine(BackendPtr backend, BackendPtr slots, Milliseconds timeout, Await await, Differ differ)
      : backend_(std::move(backend)), slots_(std::move(slots)), ranks_(backend_->getSize()),
        timeout_(timeout), await_(std::move(await)), differ_(std::move(differ)) {}

  c10d::Backend& backend() { return *backend_; }
  c10d::Backend& slots() { return *slots_; }

  // The call that whatever follows is a part of; the same one again changes nothing.
  void set_call(const ringkern::Call& call) {
    if (call.seq == call_.seq) return;
    // Its number, too, is to be expected: calls over two rails have an order.
    agreed_ = forecast_.note(call.seq, call.words) || !slots_;
    call_ = call;
  }
  // Begins to compare the call, for data that do not fit in a slot, and will wait for it.
  void begin_comparing() {
    if (!agreed_ && !agreeing_) agreeing_ = begin_slots({}, [](const at::Tensor&) {});
  }
  // Compares the call, of which nothing is to be moved.
  void compare() {
    if (slots_) begin_slots({}, [](const at::Tensor&) {})();
  }

  // Whether it reduces so itself, and as ringkern does: NaN is the least and the greatest of all.
  bool reduces(const Reduction& r) const {
    const bool floating = kind_of(r.dtype) == Kind::floating;
    if (floating && (r.combine == Combine::min || r.combine == Combine::max)) return false;
    const std::string name = backend_->getBackendName();
    const bool bitwise =
        r.combine == Combine::band || r.combine == Combine::bor || r.combine == Combine::bxor;
    // Gloo and NCCL have neither floats of 1 byte nor integers of 2.
    const bool has = size_of(r.dtype) != (floating ? 1 : 2);
    if (name == "gloo") return has;
    if (name == "nccl") return !bitwise && has;
    return !is_small(r.dtype) && !bitwise && has;  // what every engine has
  }

  // Reduces a tensor over the engine's ranks, in place, however it is asked to.
  Finish begin_all_reduce(const at::Tensor& t, const Reduction& r, bool in_rank_order) {
    if (fits_slot(t))
      return begin_slots(t, [t, combine = r.combine](const at::Tensor& parts) {
        t.copy_(combined(parts, combine));
      });
    if (in_rank_order || !reduces(r)) return begin_exchange(t, r.combine);
    agree();
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
    if (fits_slot(in))
      return begin_slots(in, [this, out](const at::Tensor& parts) {
        const int64_t n = out.numel() / ranks_;
        out.view({ranks_, n}).copy_(parts.narrow(1, backend_->getRank() * n, n));
      });
    agree();
    at::Tensor to = as_bytes(out), from = as_bytes(in);
    std::vector<int64_t> equal;
    c10d::AllToAllOptions o;
    o.timeout = timeout_;
    return waiting(backend_->alltoall_base(to, from, equal, equal, o));
  }

  Finish begin_all_gather(const at::Tensor& out, const at::Tensor& in) {
    if (fits_slot(in))
      return begin_slots(in, [this, out](const at::Tensor& parts) {
        out.view({ranks_, out.numel() / ranks_}).copy_(parts);
      });
    agree();
    at::Tensor to = as_bytes(out), from = as_bytes(in);
    c10d::AllgatherOptions o;
    o.timeout = timeout_;
    return waiting(backend_->_allgather_base(to, from, o));
  }

  Finish begin_broadcast(const at::Tensor& t, int root) {
    if (fits_slot(t))
      return begin_slots(t, [t, root](const at::Tensor& parts) { t.copy_(parts.select(0, root)); });
    agree();
    std::vector<at::Tensor> tensors{as_bytes(t)};
    c10d::BroadcastOptions o;
    o.rootRank = root;
    o.timeout = timeout_;
    return waiting(backend_->broadcast(tensors, o));
  }

  // To `root`; the others' tensors have no meaning afterwards.
  Finish begin_reduce(const at::Tensor& t, const Reduction& r, int root) {
    if (fits_slot(t) || !reduces(r)) return begin_all_reduce(t, r, false);
    agree();
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

  // The head of a slot. Elements of any dtype may follow it.
  struct alignas(16) SlotHeader {
    uint64_t seq, what;
    int64_t count;
  };

  bool fits_slot(const at::Tensor& t) const { return slots_ && int64_t(t.nbytes()) <= kSlotBytes; }
  // Gives this rank's slot to all, with `payload`, if any. The end compares the calls, and calls
  // `take` with the payloads of all ranks [ranks, n], of the dtype of this rank's.
  Finish begin_slots(const at::Tensor& payload, std::function<void(const at::Tensor&)> take) {
    constexpr int64_t kHeader = sizeof(SlotHeader), kBytes = kHeader + kSlotBytes;
    const at::Tensor slot = at::zeros({kBytes}, at::kByte);
    const at::Tensor all = at::empty({ranks_, kBytes}, at::kByte);
    const SlotHeader mine{call_.seq, call_.words.what, call_.words.count};
    std::memcpy(slot.mutable_data_ptr(), &mine, kHeader);
    const int64_t bytes = payload.defined() ? int64_t(payload.nbytes()) : 0;
    if (bytes > 0) slot.narrow(0, kHeader, bytes).copy_(as_bytes(payload));
    at::Tensor to = all.view({-1}), from = slot;
    c10d::AllgatherOptions o;
    o.timeout = timeout_;
    const Finish come = waiting(slots_->_allgather_base(to, from, o));
    const auto type = payload.defined() ? payload.scalar_type() : at::kByte;
    return [this, come, all, bytes, type, take = std::move(take)] {
      come();
      at::AutoDispatchBelowADInplaceOrView guard;
      for (int r = 0; r < ranks_; ++r) check_header(r, all.select(0, r).const_data_ptr());
      take(bytes == 0 ? at::empty({ranks_, 0}, type)
                      : all.narrow(1, kHeader, bytes).contiguous().view(type));
    };
  }
  void check_header(int place, const void* slot) const {
    SlotHeader theirs;
    std::memcpy(&theirs, slot, sizeof theirs);
    const ringkern::Call call{theirs.seq, {theirs.what, theirs.count}};
    if (call.seq != call_.seq || call.words != call_.words) differ_(place, call);
  }
  // Returns when all ranks are known to make this call.
  void agree() {
    if (agreed_) return;
    begin_comparing();
    std::exchange(agreeing_, nullptr)();
    agreed_ = true;
  }

  const BackendPtr backend_, slots_;
  const int ranks_;
  const Milliseconds timeout_;
  const Await await_;
  const Differ differ_;
  ringkern::Call call_;
  Forecast forecast_;   // all ranks have noted the same: calls that were compared, or expected
  Finish agreeing_;     // the comparison of that call, if it has begun
  bool agreed_ = true;  // its data may go by `backend_`
};

}  // namespace ringkern::torch_ext
