#include "hosts/torch_engine.h"

namespace ringkern::torch_ext {

void InterHostEngine::set_call(const CallRecord& call) {
  if (call.seq == call_.seq) return;
  // The number must also be expected: calls over two rails have an order.
  agreed_ = forecast_.note(call.seq, call.words) || !slots_;
  call_ = call;
}

bool InterHostEngine::reduces(const Reduction& r) const {
  const bool floating = kind_of(r.dtype) == Kind::floating;
  if (floating && (r.combine == Combine::min || r.combine == Combine::max)) return false;
  const std::string name = backend_->getBackendName();
  const bool bitwise =
      r.combine == Combine::band || r.combine == Combine::bor || r.combine == Combine::bxor;
  // Gloo and NCCL have neither floats of 1 byte nor integers of 2.
  const bool has = size_of(r.dtype) != (floating ? 1 : 2);
  if (name == "gloo") return has;
  if (name == "nccl") return !bitwise && has;
  return !is_small(r.dtype) && !bitwise && has;  // supported by every engine
}

InterHostEngine::Finish InterHostEngine::begin_all_reduce(const at::Tensor& t, const Reduction& r,
                                                          bool in_rank_order) {
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

InterHostEngine::Finish InterHostEngine::begin_exchange(const at::Tensor& t, Combine combine) {
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

InterHostEngine::Finish InterHostEngine::begin_all_to_all(const at::Tensor& out,
                                                          const at::Tensor& in) {
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

InterHostEngine::Finish InterHostEngine::begin_all_gather(const at::Tensor& out,
                                                          const at::Tensor& in) {
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

InterHostEngine::Finish InterHostEngine::begin_broadcast(const at::Tensor& t, int root) {
  if (fits_slot(t))
    return begin_slots(t, [t, root](const at::Tensor& parts) { t.copy_(parts.select(0, root)); });
  agree();
  std::vector<at::Tensor> tensors{as_bytes(t)};
  c10d::BroadcastOptions o;
  o.rootRank = root;
  o.timeout = timeout_;
  return waiting(backend_->broadcast(tensors, o));
}

InterHostEngine::Finish InterHostEngine::begin_reduce(const at::Tensor& t, const Reduction& r,
                                                      int root) {
  if (fits_slot(t) || !reduces(r)) return begin_all_reduce(t, r, false);
  agree();
  std::vector<at::Tensor> tensors{t};
  c10d::ReduceOptions o;
  o.reduceOp = op_for(r.combine);
  o.rootRank = root;
  o.timeout = timeout_;
  return waiting(backend_->reduce(tensors, o));
}

c10d::ReduceOp::RedOpType InterHostEngine::op_for(Combine combine) {
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

InterHostEngine::Finish InterHostEngine::begin_slots(const at::Tensor& payload,
                                                     std::function<void(const at::Tensor&)> take) {
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

void InterHostEngine::check_header(int place, const void* slot) const {
  SlotHeader theirs;
  std::memcpy(&theirs, slot, sizeof theirs);
  const CallRecord call{theirs.seq, {theirs.what, theirs.count}};
  if (call.seq != call_.seq || call.words != call_.words) differ_(place, call);
}

void InterHostEngine::agree() {
  if (agreed_) return;
  begin_comparing();
  std::exchange(agreeing_, nullptr)();
  agreed_ = true;
}

}  // namespace ringkern::torch_ext
