// Functions that add to the module, one of each unit that binds. Each such unit includes this
// header, so that all convert the types of Python and torch alike.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "torch/devices.h"

namespace ringkern::torch_ext {

namespace py = pybind11;

void bind_backend(py::module_& m);
void bind_communicator(py::module_& m);
void bind_hosts_communicator(py::module_& m);
void bind_layout(py::module_& m);
void bind_lists(py::module_& m);
void bind_local(py::module_& m);
void bind_orders(py::module_& m);
void bind_plan(py::module_& m);
void bind_quick(py::module_& m);
void bind_recorder(py::module_& m);
void bind_runner(py::module_& m);
void bind_shared(py::module_& m);
void bind_stages(py::module_& m);
void bind_trace(py::module_& m);

// Keeps a Python object for threads without the GIL. Python may end before they let it go.
std::shared_ptr<py::object> kept(py::object object);

// `function`: of ringkern/choose/ring_order.py, or None. A ring is none the worse for an order that
// it does not find.
FindOrders orders_by(py::object function);

}  // namespace ringkern::torch_ext
