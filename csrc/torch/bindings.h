// Functions that add bindings to the module, one for each unit that has bindings. Every such unit
// includes this header, so that all convert the types of Python and torch in the same way.
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

// Returns a pointer to a Python object that threads without the GIL may hold and drop, also after
// Python has ended.
std::shared_ptr<py::object> kept(py::object object);

// Returns a FindOrders that calls `function`, which is from ringkern/choose/ring_order.py; null for
// None. If the function throws, the ranks keep their own order.
FindOrders orders_by(py::object function);

}  // namespace ringkern::torch_ext
