// The communicator as Python sees it: tensors in, collectives run, Work out.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <thread>
#include <unordered_map>

#include "torch/calls.h"
#include "torch/devices.h"
#include "torch/store.h"
#include "torch/tensors.h"

namespace ringkern::torch_ext {

// An asynchronous collective: `wait()`, `is_completed()` and `get_future()` as torch has them.
class RingWork final : public c10d::Work {
 public:
  RingWork(c10d::OpType type, Prepared call)
      : Work(/*rank=*/-1, type), call_(std::move(call)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()),
            call_.device.is_cpu() ? std::vector<c10::Device>{}
                                  : std::vector<c10::Device>{call_.device})) {}

  // Called once: when the result is there (CPU), or enqueued on the current stream (CUDA).
  void complete(std::exception_ptr error) {
    if (!error) {
      try {
        call_.finish();
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

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override {
    return {call_.result.defined() ? call_.result : call_.out};
  }

 private:
  const Prepared call_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class TorchCommunicator {
 public:
  TorchCommunicator(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank, int ranks,
                    double timeout_s)
      : comm_(std::make_unique<Communicator>(std::make_shared<C10dStore>(std::move(store)),
                                             std::move(name), rank, ranks,
                                             milliseconds(timeout_s))) {}

  // Python frees it under the GIL, which callbacks of calls in flight need to finish.
  ~TorchCommunicator() {
    py::gil_scoped_release no_gil;
    if (!comm_->in_callback()) {
      comm_->close();
      return;
    }
    // A callback was the last to hold it, and its thread cannot wait for itself.
    std::thread([devices = std::move(devices_), comm = std::move(comm_)]() mutable {
      comm.reset();
    }).detach();
  }

  void set_thresholds(const std::string& device, int64_t ll_below, int64_t ll128_below) {
    thresholds_.set(device, ll_below, ll128_below);
  }

  c10::intrusive_ptr<c10d::Work> all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                                            const std::string& protocol, bool async_op) {
    return launch(c10d::OpType::ALLREDUCE, prepare_all_reduce(tensor, op_of(op), ranks()), protocol,
                  async_op);
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                const c10d::ReduceOp& op,
                                                const std::string& protocol, bool async_op) {
    return launch(c10d::OpType::_REDUCE_SCATTER_BASE,
                  prepare_reduce_scatter(output, input, op_of(op), rank(), ranks()), protocol,
                  async_op);
  }
  c10::intrusive_ptr<c10d::Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                            const std::string& protocol, bool async_op) {
    return launch(c10d::OpType::_ALLGATHER_BASE,
                  prepare_all_gather(output, input, rank(), ranks()), protocol, async_op);
  }

  int rank() const { return comm_->rank(); }
  int ranks() const { return comm_->ranks(); }
  double timeout_s() const { return double(comm_->timeout().count()) / 1000; }
  void abort(const std::string& reason) { comm_->abort(reason); }
  void close(double patience_s) { callers_.close(*comm_, patience_s); }

 private:
  c10::intrusive_ptr<c10d::Work> launch(c10d::OpType type, Prepared call,
                                        const std::string& protocol, bool async_op) {
    call.task.protocol = thresholds_.choose(protocol, call.device.type(),
                                            call.task.reduction.dtype, call.task.count);
    const Device& device = device_on(call.device);
    const Callers::Scope no_gil(callers_);
    if (call.device.is_cpu() && async_op) return launch_on_worker(type, std::move(call), device);
    c10::DeviceGuard device_guard(call.device);
    call.task.stream = current_stream(call.device);
    comm_->run(device, call.task);
    if (!async_op) {
      call.finish();
      return nullptr;
    }
    auto work = c10::make_intrusive<RingWork>(type, std::move(call));
    work->complete(nullptr);
    return work;
  }

  c10::intrusive_ptr<c10d::Work> launch_on_worker(c10d::OpType type, Prepared call,
                                                  const Device& device) {
    const Task task = call.task;
    auto work = c10::make_intrusive<RingWork>(type, std::move(call));
    comm_->run_async(device, task, [work](std::exception_ptr error) { work->complete(error); });
    return work;
  }

  // Made once for each device, under the GIL.
  const Device& device_on(c10::Device device) {
    auto found = devices_.find(device);
    if (found == devices_.end())
      found = devices_.emplace(device, device_for(device, rank(), ranks(), comm_->timeout())).first;
    return found->second;
  }

  Callers callers_;
  Thresholds thresholds_;
  std::unordered_map<c10::Device, Device> devices_;  // outlives the communicator that uses them
  std::unique_ptr<Communicator> comm_;
};

}  // namespace ringkern::torch_ext
