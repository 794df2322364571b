#include "torch/backend_base.h"

namespace ringkern::torch_ext {

BackendBase::BackendBase(const Place& place, double timeout_s, const WayRequest& request,
                         Maker maker, Members members)
    : Backend(place.seat.rank, place.seat.ranks), timeout_(milliseconds(timeout_s)),
      request_(request), maker_(std::move(maker)), first_(place) {
  become(place, std::move(members));
  init();
  OpenBackends::all().add(this, [this](Milliseconds patience) { close(patience); });
}

void BackendBase::startCoalescing() {
  called_by_torch([&] { check_members(); });
  messenger_->hold();
  std::lock_guard lock(mutex_);
  coalescing_ = true;
}

WorkPtr BackendBase::endCoalescing() {
  called_by_torch([&] {
    check_members();
    messenger_->release();
  });
  std::lock_guard lock(mutex_);
  coalescing_ = false;
  return c10::make_intrusive<JointWork>(std::exchange(coalesced_, {}));
}

void BackendBase::close(Milliseconds patience) {
  if (Signals::interrupts(this)) return abort_for("it was closed in a signal handler");
  const Members now = members();
  if (now.ring == nullptr) return;
  const WithoutGil no_gil;
  now.messenger->close(patience);
  now.ring->close(seconds(patience));
}

c10d::ErrorType BackendBase::getError() {
  const Members now = members();
  if (now.ring == nullptr || !now.ring->failed()) return c10d::ErrorType::SUCCESS;
  const auto why = now.ring->trouble();
  return why && why->cause == Cause::timed_out ? c10d::ErrorType::TIMEOUT
                                               : c10d::ErrorType::COMM_ERROR;
}

bool BackendBase::has_cuda() {
#if RK_WITH_CUDA
  return cuda::device_count() > 0;
#else
  return false;
#endif
}

void BackendBase::wait_for_devices(const c10d::BarrierOptions& o) {
  called_by_torch([&] { check_members(); });
  std::unordered_set<c10::Device> devices;
  std::vector<c10::Stream> streams;
  const auto add = [&](c10::Device device) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    if (!device.has_index()) device = guard.getDevice();
    if (devices.insert(device).second) streams.push_back(guard.getStream(device));
  };
  for (const auto& device : {o.device, getBoundDeviceId()})
    if (device) add(*device);
  // Wrappers give `device_ids` also where there is no CUDA, and Gloo ignores them.
  if (!o.device_ids.empty() && has_cuda()) add({c10::kCUDA, c10::DeviceIndex(o.device_ids[0])});
  {
    std::lock_guard lock(mutex_);  // not during the waits: other threads make calls meanwhile
    for (const auto& [device, side] : cuda_) {
      add(device);
      if (side) streams.push_back(*side);
    }
  }
  for (const c10::Stream& stream : streams) stream.synchronize();
  messenger_->wait_for_exchanges();
  called_by_torch([&] {
    ring_->check_enqueued();
    messenger_->check_enqueued();
  });
}

Call BackendBase::begin(c10d::OpType type, const char* title, const Tensors& ins, Tensors outs) {
  called_by_torch([&] { check_members(); });
  Call call;
  call.type = type;
  call.title = title;
  if (at::hasCallbacks()) call.inputs = ins;
  for (const at::Tensor& t : outs.empty() ? ins : outs)
    if (t.defined()) call.device = t.device();
  if (call.device.is_cuda()) {
    std::lock_guard lock(mutex_);
    cuda_.try_emplace(call.device);
  }
  call.outputs = std::move(outs);
  return call;
}

WorkPtr BackendBase::post(Call call, uint64_t tag, Milliseconds timeout) {
  WorkPtr work =
      called_by_torch([&] { return messenger_->post(std::move(call), tag, request_, timeout); });
  abort_by(*work, aborter());
  return work;
}

WorkPtr BackendBase::noted(WorkPtr work) {
  std::lock_guard lock(mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

c10::Stream BackendBase::side_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl impl(device.type());
  c10::Event called(device.type());
  called.record(impl.getStream(device));
  std::lock_guard lock(mutex_);
  std::shared_ptr<const c10::Stream>& side = cuda_[device];
  if (!side) side = own_stream(device);
  called.block(*side);
  return *side;
}

}  // namespace ringkern::torch_ext
