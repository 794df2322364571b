// What torch holds of a call in progress: `wait()`, `is_completed()` and `get_future()` as torch
// has them.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/enqueued.h"
#include "torch/devices.h"
#include "torch/errors.h"
#include "torch/signals.h"
#include "torch/tensors.h"

namespace ringkern::torch_ext {

// A message to or from another rank.
struct Transfer {
  bool sends = true;
  int peer = 0;
  at::Tensor buffer;  // plain
  Copies copies;      // that bring what has come to the user's tensor
};

// One call: what it is, the parts that it is done in, and what it gives back. It has tasks or
// transfers, never both.
struct Call {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  c10::Device device = at::kCPU;
  std::vector<Prepared> tasks;      // over the ring, one after the other
  std::vector<Transfer> transfers;  // between pairs of ranks, all at once
  std::vector<at::Tensor> outputs;  // the user's
  Copies copies;                    // that fill them when everything else is done
  const char* title = nullptr;      // in a profile; null: none
  std::vector<at::Tensor> inputs;   // shown there
  std::vector<at::Tensor> held;     // in use until it is done, besides those of its parts

  void finish() const {
    for (const Prepared& task : tasks) task.finish();
    for (const Transfer& transfer : transfers) copy_all(transfer.copies);
    copy_all(copies);
  }

  // All whose memory is in use until the call is done.
  template <class F>
  void for_each_tensor(F&& f) const {
    const auto both = [&](const Copies& c) {
      for (const Copy& copy : c) f(copy.to), f(copy.from);
    };
    for (const Prepared& task : tasks) f(task.in), f(task.out), both(task.copies);
    for (const Transfer& transfer : transfers) f(transfer.buffer), both(transfer.copies);
    both(copies);
    for (const at::Tensor& t : held) f(t);
  }
};

class RingWork : public c10d::Work {
 public:
  using Future = c10::ivalue::Future;
  using Elsewhere = std::function<void(std::function<void()>)>;

  // `parts`: how often `end_part` will be called. `elsewhere`: runs what is given to it on another
  // thread, for the callbacks of the future, where they must not keep the thread that ends a part.
  RingWork(Call call, int parts, Elsewhere elsewhere = nullptr)
      : Work(/*rank=*/-1, call.type, call.title, call.inputs), call_(std::move(call)),
        device_(call_.device), outputs_(call_.outputs), elsewhere_(std::move(elsewhere)),
        parts_(parts) {}

  // The memory of what nobody has waited for may be in use for a while yet.
  ~RingWork() override {
    if (streams_.empty()) return;
    const c10::impl::VirtualGuardImpl impl(device_.type());
    call_.for_each_tensor([&](const at::Tensor& t) {
      if (!t.defined()) return;
      for (const c10::Stream& s : streams_) impl.recordDataPtrOnStream(t.storage().data_ptr(), s);
    });
  }

  // A part has its result (CPU), or has it enqueued on the current stream (CUDA); or failed. From
  // any thread; the first failure is what the call ends in. The last part finishes the call.
  void end_part(std::exception_ptr error) {
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

  // CUDA: what becomes of the call with this number, which was enqueued.
  void follow(std::shared_ptr<EnqueuedCalls> enqueued, uint64_t seq) {
    if (!enqueued) return;
    std::lock_guard lock(state_);
    enqueued_.emplace_back(std::move(enqueued), seq);
  }

  // True where the future is done, too. CUDA: when the device has done it, or it has failed there.
  bool isCompleted() override {
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
  // CUDA: a failure on the device, too, once the device has shown it.
  std::exception_ptr exception() const override {
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
  bool isSuccess() const override { return !exception(); }
  // CUDA: the current stream waits for what is enqueued on others, once all is.
  void synchronize() override {
    if (device_.is_cpu()) return;
    std::unique_lock lock(state_);
    all_ended_.wait(lock, [this] { return ended_; });
    const c10::impl::VirtualGuardImpl impl(device_.type());
    for (const c10::Event& event : events_) event.block(impl.getStream(device_));
    lock.unlock();
    if (const auto error = exception()) std::rethrow_exception(error);
  }
  void blockCurrentStream() override { synchronize(); }
  // CUDA: where there is a timeout, the host waits for the device, too.
  bool wait(std::chrono::milliseconds timeout) override {
    // torch's own end comes after the callbacks: one of them would wait for itself.
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
  // Sets what ends the call if a signal interrupts somebody who waits for it; until it has ended.
  void abort_by(Abort abort) {
    std::lock_guard lock(ending_);
    if (!over_) abort_ = std::move(abort);
  }

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<Future> getFuture() override {
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

  int sourceRank() const override {
    if (source_ < 0)
      throw py::value_error("source_rank() is known of a receive, once it has completed");
    return source_;
  }
  void set_source(int rank) { source_ = rank; }

 private:
  using Followed = std::pair<std::shared_ptr<EnqueuedCalls>, uint64_t>;  // with the call's number

  void note_stream() {
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

  // Waits as torch does, but looks out for signals; returns what is left of the time to wait.
  std::chrono::milliseconds wait_for_end(std::chrono::milliseconds timeout) {
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
  void wait_for_device(Clock::time_point end) {
    const Signals signals(this, [this](const std::string& reason) { abort_for(reason); });
    while (!captured_ && !isCompleted()) {
      if (Clock::now() >= end) C10_THROW_ERROR(DistBackendError, "Operation timed out!");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      look_out();
      signals.rethrow();
    }
    if (const auto error = exception()) std::rethrow_exception(error);
  }
  void abort_for(const std::string& reason) {
    std::lock_guard lock(ending_);
    if (abort_) abort_(reason);
  }

  void complete() {
    {
      std::lock_guard lock(ending_);  // whoever is to abort it may end from here on
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
      return elsewhere_([self = c10::intrusive_ptr<RingWork>::reclaim_copy(this)] {
        self->fulfil();
        self->finish(self->error_);
      });
    if (asked) fulfil();
    finish(error_);
  }

  // Once, by whoever comes second: the end of the call, or whoever asks for the future.
  void fulfil() {
    calling_back_ = std::this_thread::get_id();
    set_future();
    calling_back_ = std::thread::id();
  }
  void set_future() {
    if (error_) return future_->setError(error_);
    if (device_.is_cpu()) return future_->markCompleted(c10::IValue(outputs_));
    // A future has one stream of a device, and that is torch's for those who ask.
    const c10::impl::VirtualGuardImpl impl(device_.type());
    const c10::Stream joint = impl.getStreamFromGlobalPool(device_);
    for (const c10::Event& event : events_) event.block(joint);
    const c10::StreamGuard guard(joint);
    future_->markCompleted(c10::IValue(outputs_));
  }

  // Of what is over only the outputs are kept.
  void release() {
    Call over;  // goes after the lock: the end of a tensor may have to wait for the GIL
    std::lock_guard lock(state_);
    std::swap(over, call_);
    streams_.clear();
  }

  Call call_;
  const c10::Device device_;
  const std::vector<at::Tensor> outputs_;
  const Elsewhere elsewhere_;
  mutable std::mutex state_;  // guards what follows; torch holds its own around synchronize()
  int parts_;                 // not ended yet
  bool ended_ = false;
  std::condition_variable all_ended_;
  std::exception_ptr error_;                     // the first part's that failed
  c10::intrusive_ptr<Future> future_;            // made when somebody asks for it
  std::atomic<std::thread::id> calling_back_{};  // on which the future's callbacks run
  std::atomic<int> source_{-1};
  std::atomic<bool> captured_{false};  // in a CUDA graph
  std::vector<c10::Event> events_;     // CUDA: of the streams that the parts are on
  std::vector<c10::Stream> streams_;
  std::vector<Followed> enqueued_;
  std::mutex ending_;  // guards what follows
  Abort abort_;
  bool over_ = false;
};

// Several calls that are waited for as one.
class JointWork : public c10d::Work {
 public:
  explicit JointWork(std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(/*rank=*/-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    for (const auto& work : works_)
      if (!work->isCompleted()) return false;
    return true;
  }
  bool isSuccess() const override {
    for (const auto& work : works_)
      if (!work->isSuccess()) return false;
    return true;
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_)
      if (const auto error = work->exception()) return error;
    return nullptr;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) work->wait(timeout);
    return true;
  }
  void synchronize() override {
    for (const auto& work : works_) work->synchronize();
  }
  void blockCurrentStream() override { synchronize(); }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& work : works_)
      for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
    return all;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
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

  const std::vector<c10::intrusive_ptr<c10d::Work>>& works() const { return works_; }

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// Does what RingWork::abort_by() does, for whatever is waited for.
inline void abort_by(c10d::Work& work, const Abort& abort) {
  if (auto* const one = dynamic_cast<RingWork*>(&work)) one->abort_by(abort);
  if (auto* const several = dynamic_cast<JointWork*>(&work))
    for (const auto& part : several->works()) abort_by(*part, abort);
}

}  // namespace ringkern::torch_ext
