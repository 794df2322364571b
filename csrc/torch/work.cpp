#include "torch/work.h"

namespace ringkern::torch_ext {

CallWork::~CallWork() {
  if (streams_.empty()) return;
  const c10::impl::VirtualGuardImpl impl(device_.type());
  call_.for_each_tensor([&](const at::Tensor& t) {
    if (!t.defined()) return;
    for (const c10::Stream& s : streams_) impl.recordDataPtrOnStream(t.storage().data_ptr(), s);
  });
}

void CallWork::end_part(std::exception_ptr error) {
  std::unique_lock lock(state_);
  if (error && !error_) error_ = for_torch(error);
  const bool last = --parts_ == 0, ok = !error_;
  lock.unlock();
  try {
    if (last && ok) call_.finish();
    note_stream();
  } catch (...) {
    lock.lock();
    if (!error_) error_ = std::current_exception();
    lock.unlock();
  }
  if (last) complete();
}

void CallWork::follow(std::shared_ptr<EnqueuedCalls> enqueued, uint64_t seq) {
  if (!enqueued) return;
  std::lock_guard lock(state_);
  enqueued_.emplace_back(std::move(enqueued), seq);
}

bool CallWork::isCompleted() {
  if (captured_)  // an event of a capture cannot be queried, and a query would end the capture
    called_by_torch([] {
      throw UsageError(
          "is_completed() was called on the work of a captured call, which each replay of the "
          "CUDA graph makes again: ask an event that is recorded after a replay");
    });
  const bool failed = exception() != nullptr;
  std::lock_guard lock(state_);
  if (failed) return true;
  for (const c10::Event& event : events_)
    if (!event.query()) return false;
  return ended_;
}

std::exception_ptr CallWork::exception() const {
  std::vector<Followed> calls;
  {
    std::lock_guard lock(state_);
    if (!ended_) return nullptr;
    if (error_) return error_;
    calls = enqueued_;
  }
  for (const auto& [enqueued, seq] : calls)
    if (const auto error = enqueued->error_of(seq)) return for_torch(error);
  return nullptr;
}

void CallWork::synchronize() {
  if (device_.is_cpu()) return;
  std::unique_lock lock(state_);
  all_ended_.wait(lock, [this] { return ended_; });
  const c10::impl::VirtualGuardImpl impl(device_.type());
  for (const c10::Event& event : events_) event.block(impl.getStream(device_));
  lock.unlock();
  if (const auto error = exception()) std::rethrow_exception(error);
}

bool CallWork::wait(std::chrono::milliseconds timeout) {
  // torch ends the work after the callbacks, so a callback that waited for it would wait for
  // itself.
  if (calling_back_ == std::this_thread::get_id()) {
    if (const auto error = exception()) std::rethrow_exception(error);
    synchronize();
    return true;
  }
  const auto left = wait_for_end(timeout);
  Work::wait(left);  // synchronizes
  if (left != kNoTimeout && !device_.is_cpu()) wait_for_device(Clock::now() + left);
  release();
  return true;
}

c10::intrusive_ptr<CallWork::Future> CallWork::getFuture() {
  std::unique_lock lock(state_);
  if (future_) return future_;
  future_ = c10::make_intrusive<Future>(c10::ListType::ofTensors(),
                                        device_.is_cpu() ? std::vector<c10::Device>{}
                                                         : std::vector<c10::Device>{device_});
  const bool ended = ended_;
  lock.unlock();
  if (ended) fulfil();
  return future_;
}

int CallWork::sourceRank() const {
  if (source_ < 0)
    throw py::value_error("source_rank() is known of a receive, once it has completed");
  return source_;
}

void CallWork::note_stream() {
  if (device_.is_cpu()) return;
  const c10::impl::VirtualGuardImpl impl(device_.type());
  const c10::Stream stream = impl.getStream(device_);
  c10::Event event(device_.type());
  event.record(stream);
  if (is_captured(stream.native_handle())) captured_ = true;
  std::lock_guard lock(state_);
  events_.push_back(std::move(event));
  streams_.push_back(stream);
}

std::chrono::milliseconds CallWork::wait_for_end(std::chrono::milliseconds timeout) {
  const bool for_ever = timeout == kNoTimeout;
  const auto end = Clock::now() + timeout;
  const Signals signals(this, [this](const std::string& reason) { abort_for(reason); });
  std::unique_lock lock(state_);
  while (!ended_ && (for_ever || Clock::now() < end)) {
    const auto next = Clock::now() + kLookOutEvery;
    all_ended_.wait_until(lock, for_ever ? next : std::min(next, end));
    lock.unlock();
    look_out();
    signals.rethrow();
    lock.lock();
  }
  if (for_ever) return timeout;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

void CallWork::wait_for_device(Clock::time_point end) {
  const Signals signals(this, [this](const std::string& reason) { abort_for(reason); });
  while (!captured_ && !isCompleted()) {
    if (Clock::now() >= end) C10_THROW_ERROR(DistBackendError, "Operation timed out!");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    look_out();
    signals.rethrow();
  }
  if (const auto error = exception()) std::rethrow_exception(error);
}

void CallWork::complete() {
  {
    std::lock_guard lock(ending_);  // the owner of abort_ may end from here on
    over_ = true;
    abort_ = nullptr;
  }
  if (device_.is_cpu()) release();
  std::unique_lock lock(state_);
  ended_ = true;
  const bool asked = bool(future_);
  lock.unlock();
  all_ended_.notify_all();
  if (asked && elsewhere_)
    return elsewhere_([self = c10::intrusive_ptr<CallWork>::reclaim_copy(this)] {
      self->fulfil();
      self->finish(self->error_);
    });
  if (asked) fulfil();
  finish(error_);
}

void CallWork::fulfil() {
  calling_back_ = std::this_thread::get_id();
  set_future();
  calling_back_ = std::thread::id();
}

void CallWork::set_future() {
  if (error_) return future_->setError(error_);
  if (device_.is_cpu()) return future_->markCompleted(c10::IValue(outputs_));
  // A future takes one stream for each device, so one of torch's pool waits for all parts.
  const c10::impl::VirtualGuardImpl impl(device_.type());
  const c10::Stream joint = impl.getStreamFromGlobalPool(device_);
  for (const c10::Event& event : events_) event.block(joint);
  const c10::StreamGuard guard(joint);
  future_->markCompleted(c10::IValue(outputs_));
}

void CallWork::release() {
  Call over;  // freed after the lock, because freeing a tensor may wait for the GIL
  std::lock_guard lock(state_);
  std::swap(over, call_);
  streams_.clear();
}

bool JointWork::isCompleted() {
  for (const auto& work : works_)
    if (!work->isCompleted()) return false;
  return true;
}

bool JointWork::isSuccess() const {
  for (const auto& work : works_)
    if (!work->isSuccess()) return false;
  return true;
}

std::exception_ptr JointWork::exception() const {
  for (const auto& work : works_)
    if (const auto error = work->exception()) return error;
  return nullptr;
}

std::vector<at::Tensor> JointWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_)
    for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> JointWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::ofTensors()));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [results = result()](c10::ivalue::Future& all) {
        if (all.hasError()) std::rethrow_exception(all.exception_ptr());
        return c10::IValue(results);
      },
      c10::ListType::ofTensors());
}

}  // namespace ringkern::torch_ext
