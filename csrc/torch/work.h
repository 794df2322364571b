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

class CallWork : public c10d::Work {
 public:
  using Future = c10::ivalue::Future;
  using Elsewhere = std::function<void(std::function<void()>)>;

  // `parts`: how often `end_part` will be called. `elsewhere`: runs what is given to it on another
  // thread, for the callbacks of the future, where they must not keep the thread that ends a part.
  CallWork(Call call, int parts, Elsewhere elsewhere = nullptr)
      : Work(/*rank=*/-1, call.type, call.title, call.inputs), call_(std::move(call)),
        device_(call_.device), outputs_(call_.outputs), elsewhere_(std::move(elsewhere)),
        parts_(parts) {}

  // The memory of what nobody has waited for may be in use for a while yet.
  ~CallWork() override;

  // A part has its result (CPU), or has it enqueued on the current stream (CUDA); or failed. From
  // any thread; the first failure is what the call ends in. The last part finishes the call.
  void end_part(std::exception_ptr error);

  // CUDA: what becomes of the call with this number, which was enqueued.
  void follow(std::shared_ptr<EnqueuedCalls> enqueued, uint64_t seq);

  // True where the future is done, too. CUDA: when the device has done it, or it has failed there.
  bool isCompleted() override;
  // CUDA: a failure on the device, too, once the device has shown it.
  std::exception_ptr exception() const override;
  bool isSuccess() const override { return !exception(); }
  // CUDA: the current stream waits for what is enqueued on others, once all is.
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  // CUDA: where there is a timeout, the host waits for the device, too.
  bool wait(std::chrono::milliseconds timeout) override;
  // Sets what ends the call if a signal interrupts somebody who waits for it; until it has ended.
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

  // Waits as torch does, but looks out for signals; returns what is left of the time to wait.
  std::chrono::milliseconds wait_for_end(std::chrono::milliseconds timeout);
  void wait_for_device(Clock::time_point end);
  void abort_for(const std::string& reason) {
    std::lock_guard lock(ending_);
    if (abort_) abort_(reason);
  }

  void complete();

  // Once, by whoever comes second: the end of the call, or whoever asks for the future.
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

// Does what CallWork::abort_by() does, for whatever is waited for.
inline void abort_by(c10d::Work& work, const Abort& abort) {
  if (auto* const one = dynamic_cast<CallWork*>(&work)) one->abort_by(abort);
  if (auto* const several = dynamic_cast<JointWork*>(&work))
    for (const auto& part : several->works()) abort_by(*part, abort);
}

}  // namespace ringkern::torch_ext
