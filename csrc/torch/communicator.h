// The communicator as torch sees it: tensors in, collectives run, Work out.
#pragma once

#include <c10/core/DeviceGuard.h>

#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "torch/calls.h"
#include "torch/devices.h"
#include "torch/store.h"
#include "torch/tensors.h"
#include "torch/work.h"

namespace ringkern::torch_ext {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class TorchCommunicator {
 public:
  TorchCommunicator(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank, int ranks,
                    double timeout_s)
      : comm_(std::make_unique<Communicator>(std::make_shared<C10dStore>(std::move(store)),
                                             std::move(name), rank, ranks,
                                             milliseconds(timeout_s))) {}

  // Python frees it under the GIL, which callbacks of calls in flight need to finish.
  ~TorchCommunicator() {
    const WithoutGil no_gil;
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

  WorkPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                     const std::string& protocol, bool async_op) {
    return launch(c10d::OpType::ALLREDUCE, tensor, prepare_all_reduce(tensor, op_of(op), ranks()),
                  protocol, async_op);
  }
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const c10d::ReduceOp& op, const std::string& protocol, bool async_op) {
    return launch(c10d::OpType::_REDUCE_SCATTER_BASE, output,
                  prepare_reduce_scatter(output, input, op_of(op), rank(), ranks()), protocol,
                  async_op);
  }
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input,
                     const std::string& protocol, bool async_op) {
    return launch(c10d::OpType::_ALLGATHER_BASE, output,
                  prepare_all_gather(output, input, rank(), ranks()), protocol, async_op);
  }

  const Thresholds& thresholds() const { return thresholds_; }

  // Runs the tasks of a call; `timeout`: for each wait; 0: the communicator's. Synchronous on a
  // CPU: returns when it is done; on CUDA: when it is enqueued on the current stream, or,
  // asynchronous, on `stream`.
  WorkPtr launch(Call call, const std::string& protocol, bool async_op, Milliseconds timeout,
                 std::optional<c10::Stream> stream) {
    const Device& device = device_on(call.device);
    for (Prepared& task : call.tasks) {
      choose_protocol(task, protocol);
      task.task.timeout = timeout;
    }
    const Callers::Scope no_gil(callers_);
    const auto tasks = tasks_of(call);
    const c10::Device on = call.device;
    if (on.is_cpu() && async_op) {
      auto work = c10::make_intrusive<RingWork>(std::move(call), int(tasks.size()));
      for (const Task& task : tasks)
        comm_->run_async(device, task, [work](std::exception_ptr e) { work->end_part(e); });
      return work;
    }
    const c10::OptionalStreamGuard stream_guard(stream);
    const c10::OptionalDeviceGuard device_guard(on.is_cpu() ? std::nullopt : std::optional(on));
    auto work = c10::make_intrusive<RingWork>(std::move(call), 1);
    for (Task task : tasks) {
      task.stream = current_stream(on);
      comm_->run(device, task);
    }
    work->end_part(nullptr);
    return work;
  }

  int rank() const { return comm_->rank(); }
  int ranks() const { return comm_->ranks(); }
  double timeout_s() const { return double(comm_->timeout().count()) / 1000; }
  bool failed() { return comm_->failed(); }
  void abort(const std::string& reason) { comm_->abort(reason); }
  void close(double patience_s) { callers_.close(*comm_, patience_s); }

 private:
  // The quick way, of one task.
  WorkPtr launch(c10d::OpType type, const at::Tensor& output, Prepared task,
                 const std::string& protocol, bool async_op) {
    if (async_op)
      return launch(call_of(type, output, std::move(task)), protocol, true, Milliseconds(0), {});
    choose_protocol(task, protocol);
    const Device& device = device_on(task.device);
    const Callers::Scope no_gil(callers_);
    const c10::DeviceGuard device_guard(task.device);
    task.task.stream = current_stream(task.device);
    comm_->run(device, task.task);
    task.finish();
    return nullptr;
  }

  static Call call_of(c10d::OpType type, const at::Tensor& output, Prepared task) {
    Call call;
    call.type = type;
    call.device = task.device;
    call.outputs = {output};
    call.tasks.push_back(std::move(task));
    return call;
  }

  static std::vector<Task> tasks_of(const Call& call) {
    std::vector<Task> tasks;
    for (const Prepared& task : call.tasks) tasks.push_back(task.task);
    return tasks;
  }

  void choose_protocol(Prepared& task, const std::string& protocol) const {
    task.task.protocol = thresholds_.choose(protocol, task.device.type(),
                                            task.task.reduction.dtype, task.task.count);
  }

  // Made once for each device.
  const Device& device_on(c10::Device device) {
    std::lock_guard lock(devices_mutex_);
    auto found = devices_.find(device);
    if (found == devices_.end())
      found = devices_.emplace(device, device_for(device, rank(), ranks(), comm_->timeout())).first;
    return found->second;
  }

  Callers callers_;
  Thresholds thresholds_;
  std::mutex devices_mutex_;
  std::unordered_map<c10::Device, Device> devices_;  // outlives the communicator that uses them
  std::unique_ptr<Communicator> comm_;
};

}  // namespace ringkern::torch_ext
