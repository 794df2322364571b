// The communicator as torch sees it: tensors in, collectives run, Work out.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/calls.h"
#include "torch/devices.h"
#include "torch/runner.h"
#include "torch/store.h"
#include "torch/tensors.h"
#include "torch/work.h"

namespace ringkern::torch_ext {

// A call of one task.
inline Call call_of(c10d::OpType type, const at::Tensor& output, Prepared task) {
  Call call;
  call.type = type;
  call.device = task.device;
  call.outputs = {output};
  call.tasks.push_back(std::move(task));
  return call;
}

// Nanoseconds that each of so many calls took.
template <class F>
std::vector<int64_t> timed(int64_t calls, F&& call) {
  std::vector<int64_t> times(static_cast<size_t>(calls));
  for (int64_t& time : times) {
    const auto start = Clock::now();
    call();
    time = std::chrono::nanoseconds(Clock::now() - start).count();
  }
  return times;
}

class TorchCommunicator final : public Runner {
 public:
  // `numbers`: of the ranks in errors; none: their own.
  TorchCommunicator(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank, int ranks,
                    double timeout_s, std::vector<int> numbers = {});

  // Python frees it under the GIL, which callbacks of calls in flight need to finish.
  ~TorchCommunicator() override;

  void set_roster(Roster roster) override { comm_->set_roster(std::move(roster)); }
  void set_on_fault(OnFault policy) override { on_fault_ = policy; }
  void check_enqueued() override { comm_->check_enqueued(); }
  // Tells the work what becomes of its calls, the last of which was enqueued just now.
  void follow(RingWork& work, c10::Device on) {
    const Device& device = device_on(on);
    work.follow(comm_->enqueued_on(device), comm_->last_seq_on(device));
  }
  // Before the first call on such a device.
  void set_table(const std::string& device, const WayTables::Lists& lists) override {
    tables_.set(device, lists);
  }

  WorkPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, const Wish& wish,
                     bool async_op);
  // The same for a dense tensor on a CPU, synchronous and by "auto", once the ring is connected; in
  // a tenth of the time. Otherwise nothing happens, and the answer is false. With the GIL.
  bool all_reduce_now(const at::Tensor& tensor, Op op, const Wish& wish = {}) {
    return all_reduce_now(tensor, tensor, op, wish);
  }
  // The same from one tensor into another one like it.
  bool all_reduce_now(const at::Tensor& out, const at::Tensor& in, Op op, const Wish& wish) {
    const at::TensorImpl& t = *out.unsafeGetTensorImpl();
    if (cpu_ == nullptr || !is_ordinary(t)) return false;
    if (!in.is_same(out) && !is_ordinary(*in.unsafeGetTensorImpl())) return false;
    const auto dtype = dtype_of(c10::typeMetaToScalarType(t.dtype()));
    if (!dtype || !accepts(op, kind_of(*dtype))) return false;
    Task task;
    task.reduction = Reduction::of(op, *dtype, ranks());
    task.count = t.numel();
    task.out = out.mutable_data_ptr();
    task.in = in.const_data_ptr();
    choose_way(task, wish, c10::DeviceType::CPU);
    // Where it ends within microseconds, letting the GIL go would take a good part of them.
    Rest rest{*this};
    task.rests = [](void* with) { static_cast<Rest*>(with)->begin(); };
    task.with = &rest;
    if (task.count * size_of(*dtype) > kKeepsGil) std::exchange(task.rests, nullptr)(task.with);
    bool done = false;
    try {
      done = comm_->run_now(*cpu_, task);
    } catch (...) {
      bump_version(out);  // a part of it may have changed
      rest.rethrow();
      throw;
    }
    if (done) bump_version(out);
    rest.rethrow();
    return done;
  }

  // Returns the sum of `x` over all ranks, contiguous; on CUDA perhaps with `norm`.
  at::Tensor sum_of(const at::Tensor& x, const Wish& wish, RowNorm* norm = nullptr);

  // Returns the lists that calls on this kind of device are chosen from: rank 0's once the ranks
  // are connected, until then this rank's.
  WayTables::Lists table(const std::string& device);
  // Returns the two parts of SharedMemory, on its GPU.
  std::pair<std::string, std::vector<std::string>> shared_memory();

  // Nanoseconds that each of so many calls of all_reduce took.
  std::vector<int64_t> time_all_reduce(const at::Tensor& tensor, int64_t calls, const Wish& wish);

  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const c10d::ReduceOp& op, const Wish& wish, bool async_op);
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const Wish& wish,
                     bool async_op);

  WorkPtr launch(Call call, const Wish& wish, bool async_op, Milliseconds timeout,
                 std::optional<c10::Stream> stream) override;
  // Ends the calls that a signal interrupts.
  Abort aborter() {
    return [this](const std::string& reason) { abort(reason); };
  }

  // Runs a task on memory that the caller keeps, as launch() does, without the GIL.
  void run(c10::Device on, Task task, const Wish& wish, Milliseconds timeout);
  // The same as those of the Communicator.
  void check_callable() { comm_->check_callable(); }
  void give_up(const Fault& why) { comm_->give_up(why); }
  std::optional<Fault> trouble() { return comm_->trouble(); }

  // Called first when this ends, with the GIL.
  void on_end(void (*tell)(const TorchCommunicator*)) { on_end_ = tell; }

  Callers& callers() { return callers_; }
  int rank() const { return comm_->rank(); }
  int ranks() const { return comm_->ranks(); }
  Geometry geometry_on(c10::Device device) { return comm_->geometry_on(device_on(device)); }
  double timeout_s() const { return double(comm_->timeout().count()) / 1000; }
  bool failed() override { return comm_->failed(); }
  void abort(const std::string& reason) override { comm_->abort(reason); }
  void close(double patience_s) override { callers_.close(*comm_, patience_s); }

 private:
  // The part of a quick call that begins when it rests, if it does.
  struct Rest {
    TorchCommunicator& communicator;
    std::optional<Callers::Scope> no_gil{};
    std::optional<Signals> signals{};

    void begin() {
      no_gil.emplace(communicator.callers_);
      signals.emplace(&communicator.callers_, communicator.aborter());
    }
    void rethrow() const {
      if (signals) signals->rethrow();
    }
  };

  void start(const Device& device, const Task& task);
  WorkPtr launch_uninterrupted(Call call, const Wish& wish, bool async_op, Milliseconds timeout,
                               std::optional<c10::Stream> stream);

  // The quick way, of one task.
  WorkPtr launch(c10d::OpType type, const at::Tensor& output, Prepared task, const Wish& wish,
                 bool async_op);

  // A contiguous tensor of a CPU, and nothing else besides.
  static bool is_ordinary(const at::TensorImpl& t) {
    static constexpr c10::DispatchKeySet all(
        {c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradCPU,
         c10::DispatchKey::AutocastCPU});
    return (t.key_set() | all) == all && t.is_cpu() && t.is_contiguous();
  }

  // Made once for each device.
  const Device& device_on(c10::Device device);

  void (*on_end_)(const TorchCommunicator*) = nullptr;
  Callers callers_;
  std::atomic<const Device*> cpu_{nullptr};  // once there was a call on it
  WayTables tables_;
  OnFault on_fault_ = OnFault::by_device;
  std::mutex devices_mutex_;
  std::unordered_map<c10::Device, Device> devices_;  // outlives the communicator that uses them
  std::unique_ptr<Communicator> comm_;
};

// A roster in the form that Python gives it: `departures`, each rank's process, and seconds that
// this rank has waited.
using RosterParts = std::tuple<std::string, std::vector<std::pair<int64_t, uint64_t>>, double>;

Roster roster_of(const RosterParts& parts);

}  // namespace ringkern::torch_ext
