// What torch holds of a call in progress: `wait()`, `is_completed()` and `get_future()` as torch has
// them.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "torch/tensors.h"

namespace ringkern::torch_ext {

// A message to or from another rank. The buffer is plain.
struct Transfer {
  bool sends = true;
  int peer = 0;
  at::Tensor buffer;
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

  void finish() const {
    for (const Prepared& task : tasks) task.finish();
    copy_all(copies);
  }
};

class RingWork : public c10d::Work {
 public:
  // `parts`: how often `end_part` will be called.
  RingWork(Call call, int parts)
      : Work(/*rank=*/-1, call.type, call.title, call.inputs), call_(std::move(call)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()),
            call_.device.is_cpu() ? std::vector<c10::Device>{}
                                  : std::vector<c10::Device>{call_.device})),
        parts_(parts) {}

  // A part has its result (CPU), or has it enqueued on the current stream (CUDA); or failed. From
  // any thread; the first failure is what the call ends in.
  void end_part(std::exception_ptr error) {
    if (error) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = error;
    }
    if (parts_.fetch_sub(1) == 1) complete(error_);
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return call_.outputs; }
  int sourceRank() const override {
    if (source_ < 0)
      throw py::value_error("source_rank() is known of a receive from any source only, and once it "
                            "has completed");
    return source_;
  }
  void set_source(int rank) { source_ = rank; }

  // CUDA: the current stream waits for what was enqueued on another one.
  void synchronize() override {
    if (!event_) return;
    const c10::impl::VirtualGuardImpl guard(call_.device.type());
    event_->block(guard.getStream(call_.device));
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = Work::wait(timeout);
    synchronize();
    return done;
  }
  void blockCurrentStream() override { synchronize(); }

 private:
  void complete(std::exception_ptr error) {
    if (!error) {
      try {
        call_.finish();
        note_stream();
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (error) {
      future_->setError(error);
    } else {
      future_->markCompleted(c10::IValue(result()));
    }
    finish(error);
  }

  void note_stream() {
    if (call_.device.is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(call_.device.type());
    event_.emplace(call_.device.type());
    event_->record(guard.getStream(call_.device));
  }

  const Call call_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<int> parts_;
  std::exception_ptr error_;  // the first part's that failed
  std::atomic<int> source_{-1};
  std::optional<c10::Event> event_;  // of the stream that has the result
};

// Several calls that are waited for as one.
class JointWork final : public c10d::Work {
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
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& work : works_) futures.push_back(work->getFuture());
    return c10::collectAll(futures)->then(
        [results = result()](c10::ivalue::Future& all) {
          if (all.hasError()) std::rethrow_exception(all.exception_ptr());
          return c10::IValue(results);
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace ringkern::torch_ext
