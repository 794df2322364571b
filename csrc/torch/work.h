// The handles of calls in progress: `wait()`, `is_completed()` and `get_future()` as torch defines
// them.
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
  Copies copies;      // from the buffer to the user's tensor
};

// One call: its type, its parts and its results. Its parts are tasks or transfers, never both.
struct Call {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  c10::Device device = at::kCPU;
  std::vector<Prepared> tasks;      // over the ring, one after the other
  std::vector<Transfer> transfers;  // between pairs of ranks, all at once
  std::vector<at::Tensor> outputs;  // the user's
  Copies copies;                    // to the outputs, when all else is done
  const char* title = nullptr;      // in a profile; null: none
  std::vector<at::Tensor> inputs;   // shown in a profile
  std::vector<at::Tensor> held;     // others that are in use until the call is done

  void finish() const {
    for (const Prepared& task : tasks) task.finish();
    for (const Transfer& transfer : transfers) copy_all(transfer.copies);
    copy_all(copies);
  }

  // Calls f for each tensor that must stay alive until the call is done.
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

class CallWork : public c10d::Work {
 public:
  using Future = c10::ivalue::Future;
  using Elsewhere = std::function<void(std::function<void()>)>;

  // `parts`: the number of calls of end_part(). `elsewhere`: runs a function on another thread; it
  // is used for the future's callbacks if they must not hold up the thread that ends a part.
  CallWork(Call call, int parts, Elsewhere elsewhere = nullptr)
      : Work(/*rank=*/-1, call.type, call.title, call.inputs), call_(std::move(call)),
        device_(call_.device), outputs_(call_.outputs), elsewhere_(std::move(elsewhere)),
        parts_(parts) {}

  // Tells torch's allocator on which streams the tensors may still be in use, if nobody has waited.
  ~CallWork() override;

  // Notes that a part has its result (CPU), has it enqueued on the current stream (CUDA), or has
  // failed. Called from any thread. The first failure becomes the error of the call. The last part
  // finishes the call.
  void end_part(std::exception_ptr error);

  // CUDA: follows the enqueued call with this number, to report its failure on the device.
  void follow(std::shared_ptr<EnqueuedCalls> enqueued, uint64_t seq);

  // Returns true once the call has ended, also in the future's callbacks (CPU), or once the device
  // has done it or has shown its failure (CUDA).
  bool isCompleted() override;
  // Returns the error of the call; on CUDA also a failure on the device, once the device has shown
  // it.
  std::exception_ptr exception() const override;
  bool isSuccess() const override { return !exception(); }
  // CUDA: waits until all parts are enqueued, and makes the current stream wait for them.
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  // Waits as torch defines it. On CUDA with a timeout, the host also waits for the device.
  bool wait(std::chrono::milliseconds timeout) override;
  // Sets the function that ends the call if a signal interrupts a wait for it. Has no effect once
  // the call has ended.
  void abort_by(Abort abort) {
    std::lock_guard lock(ending_);
    if (!over_) abort_ = std::move(abort);
  }

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<Future> getFuture() override;

  int sourceRank() const override;
  void set_source(int rank) { source_ = rank; }

 private:
  using Followed = std::pair<std::shared_ptr<EnqueuedCalls>, uint64_t>;  // with the call's number

  void note_stream();

  // Waits as torch does, but looks out for signals. Returns the time that is left to wait.
  std::chrono::milliseconds wait_for_end(std::chrono::milliseconds timeout);
  void wait_for_device(Clock::time_point end);
  void abort_for(const std::string& reason) {
    std::lock_guard lock(ending_);
    if (abort_) abort_(reason);
  }

  void complete();

  // Completes the future. Called once: by the end of the call, or by getFuture() after that.
  void fulfil();
  void set_future();

  // Releases all but the outputs of a call that has ended.
  void release();

  Call call_;
  const c10::Device device_;
  const std::vector<at::Tensor> outputs_;
  const Elsewhere elsewhere_;
  mutable std::mutex state_;  // guards what follows; torch holds its own around synchronize()
  int parts_;                 // not ended yet
  bool ended_ = false;
  std::condition_variable all_ended_;
  std::exception_ptr error_;                     // of the first part that failed
  c10::intrusive_ptr<Future> future_;            // made by the first getFuture()
  std::atomic<std::thread::id> calling_back_{};  // the thread of the future's callbacks
  std::atomic<int> source_{-1};
  std::atomic<bool> captured_{false};  // in a CUDA graph
  std::vector<c10::Event> events_;     // CUDA: one for each part, on its stream
  std::vector<c10::Stream> streams_;
  std::vector<Followed> enqueued_;
  std::mutex ending_;  // guards what follows
  Abort abort_;
  bool over_ = false;
};

// The work of several calls that are waited for as one.
class JointWork : public c10d::Work {
 public:
  explicit JointWork(std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(/*rank=*/-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) work->wait(timeout);
    return true;
  }
  void synchronize() override {
    for (const auto& work : works_) work->synchronize();
  }
  void blockCurrentStream() override { synchronize(); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  const std::vector<c10::intrusive_ptr<c10d::Work>>& works() const { return works_; }

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// Calls CallWork::abort_by() for the work, or for each part of a JointWork.
inline void abort_by(c10d::Work& work, const Abort& abort) {
  if (auto* const one = dynamic_cast<CallWork*>(&work)) one->abort_by(abort);
  if (auto* const several = dynamic_cast<JointWork*>(&work))
    for (const auto& part : several->works()) abort_by(*part, abort);
}

}  // namespace ringkern::torch_ext
