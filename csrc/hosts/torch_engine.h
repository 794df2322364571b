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

// torch's error texts name the place in torch.
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
  // The rest of an operation that was begun; called once.
  using Finish = std::function<void()>;

  // `slots`: for slots; null: calls are not compared.
  Engine(BackendPtr backend, BackendPtr slots, Milliseconds timeout, Await await, Differ differ)
      : backend_(std::move(backend)), slots_(std::move(slots)), ranks_(backend_->getSize()),
        timeout_(timeout), await_(std::move(await)), differ_(std::move(differ)) {}

  c10d::Backend& backend() { return *backend_; }
  c10d::Backend& slots() { return *slots_; }

  // The call that whatever follows is a part of; the same one again changes nothing.
  void set_call(const ringkern::Call& call);
  // Begins to compare the call, for data that do not fit in a slot, and will wait for it.
  void begin_comparing() {
    if (!agreed_ && !agreeing_) agreeing_ = begin_slots({}, [](const at::Tensor&) {});
  }
  // Compares the call, of which nothing is to be moved.
  void compare() {
    if (slots_) begin_slots({}, [](const at::Tensor&) {})();
  }

  // Returns whether it has this reduction, with ringkern's results: NaN is the least and the
  // greatest of all.
  bool reduces(const Reduction& r) const;

  // Reduces a tensor over the engine's ranks, in place, however it is asked to.
  Finish begin_all_reduce(const at::Tensor& t, const Reduction& r, bool in_rank_order);

  // The same by moving bytes alone: each rank gets a part of it from all, combines it in the order
  // of the ranks, and gives it to all. It moves as many bytes as a ring all-reduce.
  Finish begin_exchange(const at::Tensor& t, Combine combine);

  // Part i of `in` goes to rank i, and what comes from it is part i of `out`.
  Finish begin_all_to_all(const at::Tensor& out, const at::Tensor& in);

  Finish begin_all_gather(const at::Tensor& out, const at::Tensor& in);

  Finish begin_broadcast(const at::Tensor& t, int root);

  // To `root`; the others' tensors have no meaning afterwards.
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
  // `take` with the payloads of all ranks [ranks, n], of the dtype of this rank's.
  Finish begin_slots(const at::Tensor& payload, std::function<void(const at::Tensor&)> take);
  void check_header(int place, const void* slot) const;
  // Returns when all ranks are known to make this call.
  void agree();

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
