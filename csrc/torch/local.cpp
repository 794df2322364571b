// A ring whose ranks are all in this process, for Python. It takes lists of tensors, one a rank.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "comm/memory_store.h"
#include "cpu/local.h"
#include "torch/bindings.h"
#include "torch/callers.h"
#include "torch/devices.h"
#include "torch/tensors.h"
#if RK_WITH_CUDA
#include "cuda/local.h"
#endif

namespace ringkern::torch_ext {
namespace {

// A whole ring in the place of one rank. A communicator of one rank then provides turns, abort,
// close and the handling of forks.
template <class Ring>
class WholeRing final : public Executor {
 public:
  template <class Ranks>
  WholeRing(const Ranks& ranks, Milliseconds timeout) : ring_(ranks, timeout) {}

  RunResult run(const Task& first) override {
    if (first.count == 0) return {};
    std::vector<Task> tasks(first.of_ranks.begin(), first.of_ranks.end());
    for (Task& task : tasks) task.seq = first.seq;
    if constexpr (requires { ring_.progress(); }) return {.under_way = ring_.run(tasks)};
    ring_.run(tasks);
    return {};
  }
  void abort() override { ring_.abort(); }
  bool drain(Milliseconds patience) override { return ring_.drain(patience); }
  Progress progress() const override {
    if constexpr (requires { ring_.progress(); }) return ring_.progress();
    else return {};  // its calls have ended when they return
  }

 private:
  Ring ring_;
};

std::vector<int> indices_of(const std::vector<c10::Device>& devices) {
  std::vector<int> indices;
  for (const c10::Device device : devices) indices.push_back(device.index());
  return indices;
}

bool reach_each_other(const std::vector<c10::Device>& devices) {
#if RK_WITH_CUDA
  if (devices.front().is_cuda()) return cuda::reach_each_other(indices_of(devices));
#endif
  return true;
}
bool carry_lines(const std::vector<c10::Device>& devices) {
#if RK_WITH_CUDA
  if (devices.front().is_cuda()) return cuda::carry_lines(indices_of(devices));
#endif
  return true;
}

std::unique_ptr<Executor> whole_ring(const std::vector<c10::Device>& devices,
                                     Milliseconds timeout) {
  const c10::Device first = devices.front();
  if (first.is_cpu())
    return std::make_unique<WholeRing<cpu::LocalRing>>(int(devices.size()), timeout);
#if RK_WITH_CUDA
  if (first.is_cuda())
    return std::make_unique<WholeRing<cuda::LocalRing>>(indices_of(devices), timeout);
#endif
  throw_no_kernels(first);
}

// The memory of a tensor: from its first byte to behind its last.
struct Extent {
  const char *begin, *end;
  bool whole;  // it has every byte in between

  explicit Extent(const at::Tensor& t)
      : begin(static_cast<const char*>(t.const_data_ptr())), end(begin),
        whole(t.is_non_overlapping_and_dense()) {
    if (t.numel() == 0) return;
    int64_t last = 0;
    for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    end += (last + 1) * t.element_size();
  }
  // Returns false if only a comparison of all elements could tell, such as for two columns of a
  // matrix.
  bool overlaps(const Extent& other) const {
    if (begin == end || other.begin == other.end) return false;
    if (begin >= other.end || other.begin >= end) return false;
    return (whole && other.whole) || begin == other.begin;
  }
};

class TorchLocalRing {
 public:
  using Tensors = std::vector<at::Tensor>;

  // Throws if there is no such device, or no room on it.
  TorchLocalRing(const std::vector<std::string>& devices, double timeout_s,
                 const std::string& on_fault)
      : devices_(parse_devices(devices)),
        comm_(std::make_unique<Communicator>(std::make_shared<MemoryStore>(),
                                             "local ring of " + std::to_string(ranks()), 0, 1,
                                             milliseconds(timeout_s))) {
    ring_.name = ring_.terms.device = "local";
    FaultPolicy policy;
    policy.set(on_fault_of(on_fault));
    ring_.after_fault = after_fault(policy, devices_.front().type());
    ring_.make_executor = [this, timeout = comm_->timeout()](const Segments&) {
      return whole_ring(devices_, timeout);
    };
    py::gil_scoped_release no_gil;
    comm_->run(ring_, Task{});  // connects, and has nothing to do
  }

  ~TorchLocalRing() {
    py::gil_scoped_release no_gil;
    comm_.reset();
  }

  void set_table(const WayTables::Lists& lists) {
    const c10::DeviceType device = devices_.front().type();
    tables_.set(c10::DeviceTypeName(device, true), lists);
    if (device == c10::DeviceType::CPU) return;
    WayTable& table = tables_.of(device);
    const bool lines = carry_lines(devices_);
    const bool in_reach = reach_each_other(devices_);
    if (in_reach && lines && !is_one_device() && ranks() <= cuda::MeshGeometry::kMostRanks)
      table.take_tensors();
    if (!lines) table.leave_out_lines();
    if (!in_reach && !is_one_device()) table.go_over_host(ranks());
  }

  void all_reduce(const Tensors& tensors, const c10d::ReduceOp& op, const WayRequest& request) {
    check_places(tensors, "tensors");
    const OpCall call = op_of(op);
    run(Collective::all_reduce, tensors, tensors, request,
        [&](size_t r) { return check_all_reduce(tensors[r], call, ranks()); });
  }
  void reduce_scatter(const Tensors& outputs, const Tensors& inputs, const c10d::ReduceOp& op,
                      const WayRequest& request) {
    check_places(outputs, "outputs");
    check_places(inputs, "inputs");
    const OpCall call = op_of(op);
    run(Collective::reduce_scatter, outputs, inputs, request, [&](size_t r) {
      return check_reduce_scatter(outputs[r], inputs[r], call, int(r), ranks());
    });
  }
  void all_gather(const Tensors& outputs, const Tensors& inputs, const WayRequest& request) {
    check_places(outputs, "outputs");
    check_places(inputs, "inputs");
    run(Collective::all_gather, outputs, inputs, request,
        [&](size_t r) { return check_all_gather(outputs[r], inputs[r], int(r), ranks()); });
  }

  int ranks() const { return int(devices_.size()); }
  double timeout_s() const { return seconds(comm_->timeout()); }
  void abort(const std::string& reason) { comm_->abort(reason); }
  void close(double patience_s) { callers_.close(*comm_, patience_s); }

 private:
  static std::vector<c10::Device> parse_devices(const std::vector<std::string>& names) {
    if (names.empty()) throw py::value_error("a ring has one rank or more; give a device for each");
    std::vector<c10::Device> devices(names.begin(), names.end());
    for (size_t r = 0; r < devices.size(); ++r) {
      if (!devices[r].is_cpu() && !(RK_WITH_CUDA && devices[r].is_cuda()))
        throw_no_kernels(devices[r]);
      if (devices[r].type() != devices.front().type())
        throw py::value_error("rank 0 is on " + devices.front().str() + " and rank " +
                              std::to_string(r) + " on " + devices[r].str() +
                              "; the ranks of a ring are all on the CPU, or all on CUDA devices");
    }
    return devices;
  }

  bool is_one_device() const {
    return std::ranges::all_of(devices_, [&](auto d) { return d == devices_.front(); });
  }

  void check_places(const Tensors& tensors, const std::string& list) const {
    if (int(tensors.size()) != ranks())
      throw py::value_error("a ring of " + std::to_string(ranks()) + " ranks takes as many " +
                            list + ", one for each rank, not " + std::to_string(tensors.size()));
    for (size_t r = 0; r < tensors.size(); ++r)
      if (tensors[r].defined() && tensors[r].device() != devices_[r])
        throw py::value_error(list + "[" + std::to_string(r) + "] is on " +
                              tensors[r].device().str() + ", and rank " + std::to_string(r) +
                              " of this ring on " + devices_[r].str());
  }

  // Returns the reduction that `check` returns for a rank, and adds the rank to an error that it
  // throws.
  template <class Check>
  static Reduction checked(const Check& check, size_t rank) {
    const std::string where = rank_text(int(rank)) + ": ";
    try {
      return check(rank);
    } catch (const py::type_error& error) {
      throw py::type_error(where + error.what());
    } catch (const py::value_error& error) {
      throw py::value_error(where + error.what());
    }
  }

  static void check_alike(const Tensors& outs, const Tensors& ins) {
    for (size_t r = 1; r < outs.size(); ++r) {
      const std::string both = rank_text(int(r)) + " and rank 0 have tensors of ";
      if (outs[r].scalar_type() != outs[0].scalar_type())
        throw py::type_error(both + torch_name(outs[r].scalar_type()) + " and " +
                             torch_name(outs[0].scalar_type()) + "; all ranks must have one dtype");
      if (ins[r].numel() != ins[0].numel())
        throw py::value_error(both + std::to_string(ins[r].numel()) + " and " +
                              std::to_string(ins[0].numel()) +
                              " elements; all ranks must have the same number");
    }
  }

  // Throws if a rank writes to memory that another rank reads or writes: nothing orders the two.
  static void check_apart(const Tensors& outs, const Tensors& ins) {
    const std::vector<Extent> written(outs.begin(), outs.end()), read(ins.begin(), ins.end());
    for (size_t r = 0; r < outs.size(); ++r)
      for (size_t q = 0; q < outs.size(); ++q)
        if (q != r && (written[r].overlaps(written[q]) || written[r].overlaps(read[q])))
          throw py::value_error("tensors of rank " + std::to_string(r) + " and rank " +
                                std::to_string(q) + " share memory; give each rank its own");
  }

  // Throws an error of the arguments before a tensor of any rank has changed.
  template <class Check>
  void run(Collective collective, const Tensors& outs, const Tensors& ins,
           const WayRequest& request, const Check& check) {
    std::vector<Reduction> reductions;
    for (size_t r = 0; r < outs.size(); ++r) reductions.push_back(checked(check, r));
    check_alike(outs, ins);
    check_apart(outs, ins);
    const int64_t count = std::min(outs[0].numel(), ins[0].numel());
    std::vector<Prepared> calls;
    std::vector<Task> tasks;
    for (size_t r = 0; r < outs.size(); ++r) {
      calls.push_back(prepare(collective, outs[r], ins[r], reductions[r], count));
      tasks.push_back(calls.back().task);
      // The communicator sees only rank 0's task, so the way of each rank's task is chosen here.
      apply_request(tasks.back(), request, devices_[r].type());
      resolve_auto(tasks.back(), tables_.of(devices_[r].type()));
      tasks.back().choice = Choice::none;
      tasks.back().stream = current_stream(devices_[r]);
    }
    const Callers::Scope no_gil(callers_);
    Task first = tasks.front();
    first.of_ranks = tasks;
    comm_->run(ring_, first);
    for (const Prepared& call : calls) call.finish();
  }

  Callers callers_;
  WayTables tables_;
  const std::vector<c10::Device> devices_;
  Device ring_;  // outlives the communicator that uses it
  std::unique_ptr<Communicator> comm_;
};

}  // namespace

void bind_local(py::module_& m) {
  using Tensors = TorchLocalRing::Tensors;
  py::class_<TorchLocalRing>(m, "LocalRing")
      .def(py::init<const std::vector<std::string>&, double, const std::string&>(),
           py::arg("devices"), py::arg("timeout_s"), py::arg("on_fault") = "")
      .def("set_table", &TorchLocalRing::set_table, py::arg("lists"))
      .def(
          "all_reduce",
          [](TorchLocalRing& r, const Tensors& tensors, const c10d::ReduceOp& op,
             const std::string& algorithm, const std::string& protocol, bool in_rank_order,
             bool wide, bool tree) {
            r.all_reduce(tensors, op,
                         WayRequest::of(algorithm, protocol, in_rank_order, wide, tree));
          },
          py::arg("tensors"), py::arg("op"), py::arg("algorithm"), py::arg("protocol"),
          py::arg("in_rank_order"), py::arg("wide"), py::arg("tree"))
      .def(
          "reduce_scatter",
          [](TorchLocalRing& r, const Tensors& outputs, const Tensors& inputs,
             const c10d::ReduceOp& op, const std::string& protocol) {
            r.reduce_scatter(outputs, inputs, op, WayRequest::of("auto", protocol));
          },
          py::arg("outputs"), py::arg("inputs"), py::arg("op"), py::arg("protocol"))
      .def(
          "all_gather",
          [](TorchLocalRing& r, const Tensors& outputs, const Tensors& inputs,
             const std::string& protocol) {
            r.all_gather(outputs, inputs, WayRequest::of("auto", protocol));
          },
          py::arg("outputs"), py::arg("inputs"), py::arg("protocol"))
      .def_property_readonly("size", &TorchLocalRing::ranks)
      .def_property_readonly("timeout_s", &TorchLocalRing::timeout_s)
      .def("abort", &TorchLocalRing::abort, py::arg("reason"),
           py::call_guard<py::gil_scoped_release>())
      .def("close", &TorchLocalRing::close, py::arg("patience_s") = -1.0,
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace ringkern::torch_ext
