// The calls that ringkern's own functions make, and their methods in Python.
#include "torch/runner.h"

#include "torch/bindings.h"
#include "torch/checks.h"
#include "torch/collectives.h"
#include "torch/norm.h"

namespace ringkern::torch_ext {

WorkPtr Runner::submit_one(c10d::OpType type, const at::Tensor& output, Prepared task,
                           const WayRequest& request, bool async_op) {
  Call call;
  call.type = type;
  call.device = task.device;
  call.outputs = {output};
  call.tasks.push_back(std::move(task));
  return submit(std::move(call), {.request = request, .async_op = async_op, .has_work = async_op});
}

WorkPtr Runner::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                           const WayRequest& request, bool async_op) {
  return submit_one(c10d::OpType::ALLREDUCE, tensor, prepare_all_reduce(tensor, op_of(op), ranks()),
                    request, async_op);
}

WorkPtr Runner::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                               const c10d::ReduceOp& op, const WayRequest& request, bool async_op) {
  return submit_one(c10d::OpType::_REDUCE_SCATTER_BASE, output,
                    prepare_reduce_scatter(output, input, op_of(op), rank(), ranks()), request,
                    async_op);
}

WorkPtr Runner::all_gather(const at::Tensor& output, const at::Tensor& input,
                           const WayRequest& request, bool async_op) {
  return submit_one(c10d::OpType::_ALLGATHER_BASE, output,
                    prepare_all_gather(output, input, rank(), ranks()), request, async_op);
}

WorkPtr Runner::broadcast(const at::Tensor& tensor, int64_t root, bool async_op) {
  const Seat seat{rank(), ranks()};
  Call call;
  call.type = c10d::OpType::BROADCAST;
  call.outputs = {tensor};
  add_broadcast(call, tensor, check_root(root, /*root_tensor=*/0, seat), seat);
  call.device = call.tasks.front().device;
  return submit(std::move(call), {.async_op = async_op, .has_work = async_op});
}

std::vector<int64_t> Runner::time_all_reduce(const at::Tensor& tensor, int64_t calls,
                                             const WayRequest& request) {
  std::vector<int64_t> times(static_cast<size_t>(calls));
  for (int64_t& time : times) {
    const auto start = Clock::now();
    if (!all_reduce_now(tensor, tensor, Op::sum, request))
      all_reduce(tensor, c10d::ReduceOp::SUM, request, /*async_op=*/false);
    time = std::chrono::nanoseconds(Clock::now() - start).count();
  }
  return times;
}

Roster roster_of(const RosterParts& parts) {
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

void bind_runner(py::module_& m) {
  py::class_<Runner, std::shared_ptr<Runner>>(m, "Runner")
      .def("set_table", &Runner::set_table, py::arg("device"), py::arg("lists"))
      .def(
          "set_on_fault",
          [](Runner& r, const std::string& policy) { r.set_on_fault(on_fault_of(policy)); },
          py::arg("policy"))
      .def("set_threads", &Runner::set_threads, py::arg("threads"))
      .def(
          "set_orders",
          [](Runner& r, py::object find) { r.set_orders(orders_by(std::move(find))); },
          py::arg("find"))
      .def(
          "set_roster",
          [](Runner& r, const RosterParts& roster) { r.set_roster(roster_of(roster)); },
          py::arg("roster"))
      .def(
          "all_reduce",
          [](Runner& r, const at::Tensor& tensor, const c10d::ReduceOp& op,
             const std::string& algorithm, const std::string& protocol, bool in_rank_order,
             bool wide, bool tree, bool async_op) {
            return r.all_reduce(tensor, op,
                                WayRequest::of(algorithm, protocol, in_rank_order, wide, tree),
                                async_op);
          },
          py::arg("tensor"), py::arg("op"), py::arg("algorithm"), py::arg("protocol"),
          py::arg("in_rank_order"), py::arg("wide"), py::arg("tree"), py::arg("async_op"))
      .def(
          "all_reduce_residual_rms_norm",
          [](Runner& r, const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
             double eps, const std::string& algorithm, const std::string& protocol,
             bool in_rank_order, bool wide) {
            return all_reduce_residual_rms_norm(
                r, x, residual, weight, eps,
                WayRequest::of(algorithm, protocol, in_rank_order, wide));
          },
          py::arg("x"), py::arg("residual"), py::arg("weight"), py::arg("eps"),
          py::arg("algorithm"), py::arg("protocol"), py::arg("in_rank_order"), py::arg("wide"))
      .def(
          "reduce_scatter",
          [](Runner& r, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op,
             const std::string& protocol, bool async_op) {
            return r.reduce_scatter(output, input, op, WayRequest::of("auto", protocol), async_op);
          },
          py::arg("output"), py::arg("input"), py::arg("op"), py::arg("protocol"),
          py::arg("async_op"))
      .def(
          "all_gather",
          [](Runner& r, const at::Tensor& output, const at::Tensor& input,
             const std::string& protocol, bool async_op) {
            return r.all_gather(output, input, WayRequest::of("auto", protocol), async_op);
          },
          py::arg("output"), py::arg("input"), py::arg("protocol"), py::arg("async_op"))
      .def("broadcast", &Runner::broadcast, py::arg("tensor"), py::arg("root"), py::arg("async_op"))
      .def(
          "time_all_reduce",
          [](Runner& r, const at::Tensor& tensor, int64_t calls, const std::string& algorithm,
             const std::string& protocol, bool in_rank_order, bool wide, bool tree) {
            return r.time_all_reduce(
                tensor, calls, WayRequest::of(algorithm, protocol, in_rank_order, wide, tree));
          },
          py::arg("tensor"), py::arg("calls"), py::arg("algorithm") = "auto",
          py::arg("protocol") = "auto", py::arg("in_rank_order") = false, py::arg("wide") = false,
          py::arg("tree") = false)
      .def("table", &Runner::table, py::arg("device"))
      .def("shared_memory", &Runner::shared_memory)
      .def_property_readonly("rank", &Runner::rank)
      .def_property_readonly("size", &Runner::ranks)
      .def_property_readonly("timeout_s", &Runner::timeout_s)
      .def(
          "shut_out",
          [](Runner& r, const std::vector<int>& members, double patience_s) {
            r.shut_out(members, milliseconds(patience_s));
          },
          py::arg("members"), py::arg("patience_s"), py::call_guard<py::gil_scoped_release>())
      .def("abort", &Runner::abort, py::arg("reason"), py::call_guard<py::gil_scoped_release>())
      .def("close", &Runner::close, py::arg("patience_s") = -1.0,
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace ringkern::torch_ext
