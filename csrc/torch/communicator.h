// The communicator as torch sees it: tensors in, collectives run, Work out.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <pybind11/functional.h>

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
  TorchCommunicator(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank, int ranks,
                    double timeout_s)
      : comm_(std::make_unique<Communicator>(std::make_shared<C10dStore>(std::move(store)),
                                             std::move(name), rank, ranks,
                                             milliseconds(timeout_s))) {}

  // Python frees it under the GIL, which callbacks of calls in flight need to finish.
  ~TorchCommunicator() override {
    if (on_end_) on_end_(this);
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

  void set_roster(Roster roster) override { comm_->set_roster(std::move(roster)); }
  // Before the first call on such a device.
  void set_table(const std::string& device, const WayTables::Lists& lists) override {
    tables_.set(device, lists);
  }

  WorkPtr all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, const Wish& wish,
                     bool async_op) {
    return launch(c10d::OpType::ALLREDUCE, tensor, prepare_all_reduce(tensor, op_of(op), ranks()),
                  wish, async_op);
  }
  // The same for a dense tensor on a CPU, synchronous and by "auto", once the ring is connected; in
  // a tenth of the time. Otherwise nothing happens, and the answer is false. With the GIL.
  bool all_reduce_now(const at::Tensor& tensor, Op op, const Wish& wish = {}) {
    const at::TensorImpl& t = *tensor.unsafeGetTensorImpl();
    if (cpu_ == nullptr || !is_ordinary(t)) return false;
    const auto dtype = dtype_of(c10::typeMetaToScalarType(t.dtype()));
    if (!dtype || !accepts(op, kind_of(*dtype))) return false;
    Task task;
    task.reduction = Reduction::of(op, *dtype, ranks());
    task.count = t.numel();
    task.in = task.out = tensor.mutable_data_ptr();
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
      bump_version(tensor);  // a part of it may have changed
      rest.rethrow();
      throw;
    }
    if (done) bump_version(tensor);
    rest.rethrow();
    return done;
  }

  // What calls on this kind of device are chosen from: rank 0's lists once the ranks are connected,
  // until then this rank's.
  WayTables::Lists table(const std::string& device) {
    const auto type = c10::Device(device).type();
    std::lock_guard lock(devices_mutex_);
    for (const auto& [where, made] : devices_)
      if (where.type() == type) return lists_of(comm_->ways_on(made));
    return lists_of(tables_.of(type));
  }

  // Nanoseconds that each of so many calls of all_reduce took.
  std::vector<int64_t> time_all_reduce(const at::Tensor& tensor, int64_t calls, const Wish& wish) {
    return timed(calls, [&] {
      if (!all_reduce_now(tensor, Op::sum, wish))
        all_reduce(tensor, c10d::ReduceOp::SUM, wish, false);
    });
  }

  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const c10d::ReduceOp& op, const Wish& wish, bool async_op) {
    return launch(c10d::OpType::_REDUCE_SCATTER_BASE, output,
                  prepare_reduce_scatter(output, input, op_of(op), rank(), ranks()), wish,
                  async_op);
  }
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input, const Wish& wish,
                     bool async_op) {
    return launch(c10d::OpType::_ALLGATHER_BASE, output,
                  prepare_all_gather(output, input, rank(), ranks()), wish, async_op);
  }

  WorkPtr launch(Call call, const Wish& wish, bool async_op, Milliseconds timeout,
                 std::optional<c10::Stream> stream) override {
    return interruptible(&callers_, aborter(), [&] {
      return launch_uninterrupted(std::move(call), wish, async_op, timeout, stream);
    });
  }
  // Ends the calls that a signal interrupts.
  Abort aborter() {
    return [this](const std::string& reason) { abort(reason); };
  }

  // Runs a task on memory that the caller keeps, as launch() does, without the GIL.
  void run(c10::Device on, Task task, const Wish& wish, Milliseconds timeout) {
    choose_way(task, wish, on.type());
    const Device& device = device_on(on);
    task.timeout = timeout;
    task.stream = current_stream(on);
    if (!comm_->run_now(device, task)) comm_->run(device, task);
  }
  // As those of the Communicator.
  void check_callable() { comm_->check_callable(); }
  void give_up(const Failure& why) { comm_->give_up(why); }
  std::optional<Failure> trouble() { return comm_->trouble(); }

  // Called first when this ends, with the GIL.
  void on_end(void (*tell)(const TorchCommunicator*)) { on_end_ = tell; }

  int rank() const { return comm_->rank(); }
  int ranks() const { return comm_->ranks(); }
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

  WorkPtr launch_uninterrupted(Call call, const Wish& wish, bool async_op, Milliseconds timeout,
                               std::optional<c10::Stream> stream) {
    const Device& device = device_on(call.device);
    for (Prepared& prepared : call.tasks) {
      choose_way(prepared.task, wish, call.device.type());
      prepared.task.timeout = timeout;
    }
    const Callers::Scope no_gil(callers_);
    const auto tasks = tasks_of(call);
    const c10::Device on = call.device;
    if (on.is_cpu() && async_op) {
      auto work = c10::make_intrusive<RingWork>(std::move(call), int(tasks.size()));
      work->abort_by(aborter());
      for (const Task& task : tasks)
        comm_->run_async(device, task, [work](std::exception_ptr e) { work->end_part(e); });
      return work;
    }
    const c10::OptionalStreamGuard stream_guard(stream);
    const c10::OptionalDeviceGuard device_guard(on.is_cpu() ? std::nullopt : std::optional(on));
    auto work = c10::make_intrusive<RingWork>(std::move(call), 1);
    for (Task task : tasks) {
      task.stream = current_stream(on);
      if (!comm_->run_now(device, task)) comm_->run(device, task);
    }
    work->end_part(nullptr);
    return work;
  }

  // The quick way, of one task.
  WorkPtr launch(c10d::OpType type, const at::Tensor& output, Prepared task, const Wish& wish,
                 bool async_op) {
    if (async_op)
      return launch(call_of(type, output, std::move(task)), wish, true, Milliseconds(0), {});
    choose_way(task.task, wish, task.device.type());
    const Device& device = device_on(task.device);
    interruptible(&callers_, aborter(), [&] {
      const Callers::Scope no_gil(callers_);
      const c10::DeviceGuard device_guard(task.device);
      task.task.stream = current_stream(task.device);
      if (!comm_->run_now(device, task.task)) comm_->run(device, task.task);
      if (task.device.is_cpu()) cpu_ = &device;
      task.finish();
    });
    return nullptr;
  }

  static std::vector<Task> tasks_of(const Call& call) {
    std::vector<Task> tasks;
    for (const Prepared& task : call.tasks) tasks.push_back(task.task);
    return tasks;
  }

  // A contiguous tensor of a CPU, and nothing else besides.
  static bool is_ordinary(const at::TensorImpl& t) {
    static constexpr c10::DispatchKeySet all(
        {c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradCPU,
         c10::DispatchKey::AutocastCPU});
    return (t.key_set() | all) == all && t.is_cpu() && t.is_contiguous();
  }

  // Made once for each device.
  const Device& device_on(c10::Device device) {
    std::lock_guard lock(devices_mutex_);
    auto found = devices_.find(device);
    if (found == devices_.end()) {
      found = devices_.emplace(device, device_for(device, rank(), ranks(), comm_->timeout())).first;
      found->second.ways = tables_.of(device.type());
    }
    return found->second;
  }

  static constexpr int64_t kKeepsGil = 16 << 10;  // bytes

  void (*on_end_)(const TorchCommunicator*) = nullptr;
  Callers callers_;
  std::atomic<const Device*> cpu_{nullptr};  // once there was a call on it
  WayTables tables_;
  std::mutex devices_mutex_;
  std::unordered_map<c10::Device, Device> devices_;  // outlives the communicator that uses them
  std::unique_ptr<Communicator> comm_;
};

// A roster in the form that Python gives it: `departures`, each rank's process, and seconds that
// this rank has waited.
using RosterParts = std::tuple<std::string, std::vector<std::pair<int64_t, uint64_t>>, double>;

inline Roster roster_of(const RosterParts& parts) {
  const auto& [departures, processes, waited_s] = parts;
  Roster roster;
  for (const auto& [pid, started] : processes) {
    roster.numbers.push_back(int(roster.processes.size()));
    roster.processes.push_back({pid, started});
  }
  roster.departures = departures;
  roster.waited = milliseconds(waited_s);
  return roster;
}

// What Python sees of a communicator, of one host or of several.
template <class C>
void bind_calls(py::class_<C>& bound) {
  bound.def("set_table", &C::set_table, py::arg("device"), py::arg("lists"))
      .def(
          "set_roster", [](C& c, const RosterParts& roster) { c.set_roster(roster_of(roster)); },
          py::arg("roster"))
      .def(
          "all_reduce",
          [](C& c, const at::Tensor& tensor, const c10d::ReduceOp& op, const std::string& algorithm,
             const std::string& protocol, bool in_rank_order, bool wide, bool async_op) {
            return c.all_reduce(tensor, op, Wish::of(algorithm, protocol, in_rank_order, wide),
                                async_op);
          },
          py::arg("tensor"), py::arg("op"), py::arg("algorithm"), py::arg("protocol"),
          py::arg("in_rank_order"), py::arg("wide"), py::arg("async_op"))
      .def(
          "reduce_scatter",
          [](C& c, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op,
             const std::string& protocol, bool async_op) {
            return c.reduce_scatter(output, input, op, Wish::of("auto", protocol), async_op);
          },
          py::arg("output"), py::arg("input"), py::arg("op"), py::arg("protocol"),
          py::arg("async_op"))
      .def(
          "all_gather",
          [](C& c, const at::Tensor& output, const at::Tensor& input, const std::string& protocol,
             bool async_op) {
            return c.all_gather(output, input, Wish::of("auto", protocol), async_op);
          },
          py::arg("output"), py::arg("input"), py::arg("protocol"), py::arg("async_op"))
      .def(
          "time_all_reduce",
          [](C& c, const at::Tensor& tensor, int64_t calls, const std::string& algorithm,
             const std::string& protocol, bool in_rank_order, bool wide) {
            return c.time_all_reduce(tensor, calls,
                                     Wish::of(algorithm, protocol, in_rank_order, wide));
          },
          py::arg("tensor"), py::arg("calls"), py::arg("algorithm") = "auto",
          py::arg("protocol") = "auto", py::arg("in_rank_order") = false, py::arg("wide") = false)
      .def("table", &C::table, py::arg("device"))
      .def_property_readonly("rank", &C::rank)
      .def_property_readonly("size", &C::ranks)
      .def_property_readonly("timeout_s", &C::timeout_s)
      .def("abort", &C::abort, py::arg("reason"), py::call_guard<py::gil_scoped_release>())
      .def("close", &C::close, py::arg("patience_s") = -1.0,
           py::call_guard<py::gil_scoped_release>());
}

inline void bind_communicator(py::module_& m) {
  py::class_<TorchCommunicator> bound(m, "Communicator");
  bound.def(py::init<c10::intrusive_ptr<c10d::Store>, std::string, int, int, double>(),
            py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("size"),
            py::arg("timeout_s"));
  bind_calls(bound);
  m.def("this_process", [] {
    const Process mine = this_process();
    return std::pair(mine.pid, mine.started);
  });
  m.def(
      "find_gone",
      [](const RosterParts& roster, const std::function<std::string()>& left) {
        const auto gone = roster_of(roster).find_gone(left);
        return gone ? std::optional(std::pair(gone->rank, gone->text)) : std::nullopt;
      },
      py::arg("roster"), py::arg("left"));
}

}  // namespace ringkern::torch_ext
