// Methods in Python of a communicator, of one host or of several.
#pragma once

#include <cstdint>
#include <string>

#include "torch/bindings.h"
#include "torch/communicator.h"
#include "torch/norm.h"

namespace ringkern::torch_ext {

template <class C>
void bind_calls(py::class_<C>& bound) {
  bound.def("set_table", &C::set_table, py::arg("device"), py::arg("lists"))
      .def(
          "set_on_fault",
          [](C& c, const std::string& policy) { c.set_on_fault(on_fault_of(policy)); },
          py::arg("policy"))
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
          "all_reduce_residual_rms_norm",
          [](C& c, const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
             double eps, const std::string& algorithm, const std::string& protocol,
             bool in_rank_order, bool wide) {
            return all_reduce_residual_rms_norm(c, x, residual, weight, eps,
                                                Wish::of(algorithm, protocol, in_rank_order, wide));
          },
          py::arg("x"), py::arg("residual"), py::arg("weight"), py::arg("eps"),
          py::arg("algorithm"), py::arg("protocol"), py::arg("in_rank_order"), py::arg("wide"))
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
      .def("shared_memory", &C::shared_memory)
      .def_property_readonly("rank", &C::rank)
      .def_property_readonly("size", &C::ranks)
      .def_property_readonly("timeout_s", &C::timeout_s)
      .def("abort", &C::abort, py::arg("reason"), py::call_guard<py::gil_scoped_release>())
      .def("close", &C::close, py::arg("patience_s") = -1.0,
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace ringkern::torch_ext
