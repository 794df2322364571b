// An engine: a backend of torch.distributed that moves data between hosts, over one rank of each
// host or over all ranks of a group; and the collectives that ringkern composes where the engine
// cannot reduce as asked.
//
// On CPUs, a second backend over the same ranks carries slots: messages of one size, each with the
// call of its rank. Data up to a slot's payload travel in it. Larger data go by the first backend,
// after the ranks have compared their calls in slots, because Gloo ends the process if two sizes
// differ. A call that all ranks predict (hosts/forecast.h) skips the comparison: a rank that makes
// another call compares, and finds the difference.
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

// Returns `count` elements of a tensor's memory, from `offset` on, as a separate tensor. It keeps
// the memory: an engine may hold on to it after a call that failed.
inline at::Tensor slice_of(const at::Tensor& owner, const void* base, int64_t offset, int64_t count,
                           DType dtype) {
  auto* at = const_cast<char*>(static_cast<const char*>(base)) + offset * size_of(dtype);
  // Holds only the memory: it may be released on a thread of the engine. To release a tensor that
  // Python knows, that thread would need the GIL, and would be killed if Python has ended.
  return at::from_blob(
      at, {count}, [memory = owner.storage()](void*) {},
      at::TensorOptions().dtype(scalar_of(dtype)).device(owner.device()));
}

// Returns a view of a plain tensor of any shape. A tensor of one element may have any stride: torch
// calls it contiguous, and yet does not view it as bytes.
inline at::Tensor as_bytes(const at::Tensor& t) {
  return t.as_strided({t.numel()}, {1}).view(at::kByte);
}

// Returns the text of an error without the place in torch that torch's texts name.
inline std::string what_of(const std::exception& e) {
  const auto* const c10_error = dynamic_cast<const c10::Error*>(&e);
  return c10_error != nullptr ? c10_error->what_without_backtrace() : e.what();
}

// Returns `t` in float32, the dtype for sums of small floats, rounded as the ring rounds: a float
// without infinity has no value beyond its largest.
inline at::Tensor rounded(const at::Tensor& t, at::ScalarType type) {
  constexpr double kLargest = 448;
  return type == at::kFloat8_e4m3fn ? t.clamp(-kLargest, kLargest).to(type) : t.to(type);
}

// Returns the smaller or the larger of two; NaN if either is, and -0 is less than 0.
inline at::Tensor extreme(const at::Tensor& a, const at::Tensor& b, bool smaller) {
  const at::Tensor found = smaller ? at::minimum(a, b) : at::maximum(a, b);
  if (!found.is_floating_point()) return found;
  // Equal numbers differ at most in the sign of zero.
  const auto bits = a.element_size() == 8 ? at::kLong : at::kInt;
  const at::Tensor x = a.view(bits), y = b.view(bits);
  const at::Tensor of_equals = (smaller ? x.bitwise_or(y) : x.bitwise_and(y)).view(a.scalar_type());
  return at::where(a.eq(b), of_equals, found)
      .masked_fill_(found.isnan(), std::numeric_limits<double>::quiet_NaN());
}

// Combines the values of all hosts, `parts` [hosts, n], in the order of the hosts; may overwrite
// them. Small floats are added up in float32 and rounded once.
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

// Divides in place, for an average; small floats in float32.
inline void divide(const at::Tensor& t, double by) {
  const auto dtype = dtype_of(t.scalar_type());
  if (dtype && is_small(*dtype)) t.copy_(t.to(at::kFloat).div_(by));
  else t.div_(by);
}

// Maximum characters of an engine's text that an error quotes.
inline constexpr size_t kEngineSays = 200;

// Payload of a slot.
inline constexpr int64_t kSlotBytes = 1024;

class InterHostEngine {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  // Waits for a work, and throws its error.
  using Await = std::function<void(const WorkPtr&)>;
  // Throws: the engine's rank `place` makes this call, which differs from this rank's.
  using Differ = std::function<void(int place, const CallRecord& theirs)>;
  // Finishes an operation that was begun; called once.
  using Finish = std::function<void()>;

  // `slots`: the backend that carries slots; null: calls are not compared.
  InterHostEngine(BackendPtr backend, BackendPtr slots, Milliseconds timeout, Await await,
                  Differ differ)
      : backend_(std::move(backend)), slots_(std::move(slots)), ranks_(backend_->getSize()),
        timeout_(timeout), await_(std::move(await)), differ_(std::move(differ)) {}

  c10d::Backend& backend() { return *backend_; }
  c10d::Backend& slots() { return *slots_; }

  // Sets the call to which the next operations belong; setting the same call again changes nothing.
  void set_call(const CallRecord& call);
  // Begins to compare the call, for data that do not fit in a slot; the data wait for the
  // comparison.
  void begin_comparing() {
    if (!agreed_ && !agreeing_) agreeing_ = begin_slots({}, [](const at::Tensor&) {});
  }
  // Compares a call that moves no data.
  void compare() {
    if (slots_) begin_slots({}, [](const at::Tensor&) {})();
  }

  // Returns true if the engine has this reduction with ringkern's results: min and max propagate
  // NaN.
  bool reduces(const Reduction& r) const;

  // Reduces a tensor over the engine's ranks, in place, in any of the ways.
  Finish begin_all_reduce(const at::Tensor& t, const Reduction& r, bool in_rank_order);

  // The same, by moving bytes only. Each rank gets its part from all ranks, combines the versions
  // in the order of the ranks, and gives the result to all. It moves as many bytes as a ring
  // all-reduce.
  Finish begin_exchange(const at::Tensor& t, Combine combine);

  // Sends part i of `in` to rank i, and receives part i of `out` from it.
  Finish begin_all_to_all(const at::Tensor& out, const at::Tensor& in);

  Finish begin_all_gather(const at::Tensor& out, const at::Tensor& in);

  Finish begin_broadcast(const at::Tensor& t, int root);

  // Reduces to `root`; the other ranks' tensors have no meaning afterwards.
  Finish begin_reduce(const at::Tensor& t, const Reduction& r, int root);

 private:
  static c10d::ReduceOp::RedOpType op_for(Combine combine);
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
  // `take` with the payloads of all ranks [ranks, n], in the dtype of this rank's.
  Finish begin_slots(const at::Tensor& payload, std::function<void(const at::Tensor&)> take);
  void check_header(int place, const void* slot) const;
  // Returns when all ranks are known to make this call.
  void agree();

  const BackendPtr backend_, slots_;
  const int ranks_;
  const Milliseconds timeout_;
  const Await await_;
  const Differ differ_;
  CallRecord call_;
  Forecast forecast_;   // the same on all ranks: it notes calls that were compared or expected
  Finish agreeing_;     // the comparison of that call, if it has begun
  bool agreed_ = true;  // the data of the call may go by `backend_`
};

}  // namespace ringkern::torch_ext
