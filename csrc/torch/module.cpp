// The Python module `ringkern._C`: the one translation unit that sees torch.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/headeronly/version.h>

#include "cpu/simd.h"
#include "torch/backend.h"
#include "torch/bare.h"
#include "torch/communicator.h"
#include "torch/errors.h"
#include "torch/local.h"
#include "torch/plan.h"
#include "torch/quick.h"
#include "torch/recorder.h"
#include "torch/shared.h"

namespace ringkern::torch_ext {
namespace {

// pybind11 translates what its own functions throw; this one is not.
PyObject* translated_quick_all_reduce(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  try {
    return quick_all_reduce(self, args, count);
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const py::builtin_exception& e) {
    e.set_error();
  } catch (...) {
    try {
      translate(std::current_exception());
    } catch (const std::exception& e) {
      PyErr_SetString(PyExc_RuntimeError, e.what());
    }
  }
  return nullptr;
}
PyMethodDef quick_all_reduce_method = {
    "quick_all_reduce", reinterpret_cast<PyCFunction>(
                            reinterpret_cast<void (*)()>(&translated_quick_all_reduce)),
    METH_FASTCALL, nullptr};

py::dict build_info() {
  using namespace py::literals;
  py::dict info("version"_a = RINGKERN_VERSION, "torch"_a = TORCH_VERSION,
                "compiler"_a = "gcc " __VERSION__, "cpu_isa"_a = kernels().isa,
                "cuda"_a = bool(RK_WITH_CUDA), "cuda_archs"_a = py::none(),
                "cuda_runtime"_a = py::none(), "cuda_devices"_a = 0);
#if RK_WITH_CUDA
  info["cuda_archs"] = RK_CUDA_ARCHS;
  info["cuda_runtime"] = cuda::runtime_version();
  info["cuda_devices"] = cuda::device_count();
#endif
  info["dtypes"] = names<DType>(kDTypes);
  info["ops"] = names<Op>(kOps);
  info["protocols"] = names<Protocol>(kProtocols);
  info["algorithms"] = names<Algorithm>(kAlgorithms);
  return info;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  translate_errors();
  m.attr("torch_version") = TORCH_VERSION;
  m.attr("version") = RINGKERN_VERSION;
  m.attr("wire_version") = kWireVersion;
  m.attr("protocols") = py::tuple(names<Protocol>(kProtocols));
  m.attr("algorithms") = py::tuple(names<Algorithm>(kAlgorithms));
  m.def("build_info", &build_info);
  bind_plan(m);
  bind_bare(m);
  bind_recorder(m);
  m.add_object("quick_all_reduce", py::reinterpret_steal<py::object>(
                                       PyCFunction_New(&quick_all_reduce_method, nullptr)));
  m.def(
      "set_arranger",
      [](const py::object& function) {
        delete std::exchange(arranger(), function.is_none() ? nullptr : new py::object(function));
      },
      py::arg("function"));
  m.def(
      "arranged",
      [](const std::vector<std::string>& buses, int channels) {
        const RingOrders orders = arranged(buses, channels);
        std::vector<std::vector<int>> lists;
        for (int i = 0; i < orders.count; ++i)
          for (int p = (lists.emplace_back(), 0); p < int(buses.size()); ++p)
            lists.back().push_back(orders.rank_at(i, p));
        return lists;
      },
      py::arg("buses"), py::arg("channels"),
      "What a ring on CUDA asks the arranger on rank 0, and what it makes of the answer.");
  m.def("shared_empty",
        [](const std::vector<int64_t>& sizes, const py::object& dtype) {
          return shared_empty(sizes, py::cast<at::ScalarType>(dtype));
        },
        py::arg("sizes"), py::arg("dtype"));
  m.def("is_shared", &is_shared, py::arg("tensor"));
  m.def(
      "share_by_default",
      [](bool on) {
        static SharedByDefault shared;
        on ? shared.begin() : shared.end();
      },
      py::arg("on"));
  m.def(
      "remember",
      [](const py::object& group, TorchCommunicator* communicator) {
        QuickGroups::all().add(group, communicator);
      },
      py::arg("group"), py::arg("communicator"));
  py::class_<TorchCommunicator>(m, "Communicator")
      .def(py::init<c10::intrusive_ptr<c10d::Store>, std::string, int, int, double>(),
           py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("size"),
           py::arg("timeout_s"))
      .def("set_table", &TorchCommunicator::set_table, py::arg("device"), py::arg("lists"))
      .def(
          "all_reduce",
          [](TorchCommunicator& c, const at::Tensor& tensor, const c10d::ReduceOp& op,
             const std::string& algorithm, const std::string& protocol, bool in_rank_order,
             bool wide, bool async_op) {
            return c.all_reduce(tensor, op, Wish::of(algorithm, protocol, in_rank_order, wide),
                                async_op);
          },
          py::arg("tensor"), py::arg("op"), py::arg("algorithm"), py::arg("protocol"),
          py::arg("in_rank_order"), py::arg("wide"), py::arg("async_op"))
      .def(
          "reduce_scatter",
          [](TorchCommunicator& c, const at::Tensor& output, const at::Tensor& input,
             const c10d::ReduceOp& op, const std::string& protocol, bool async_op) {
            return c.reduce_scatter(output, input, op, Wish::of("auto", protocol), async_op);
          },
          py::arg("output"), py::arg("input"), py::arg("op"), py::arg("protocol"),
          py::arg("async_op"))
      .def(
          "all_gather",
          [](TorchCommunicator& c, const at::Tensor& output, const at::Tensor& input,
             const std::string& protocol, bool async_op) {
            return c.all_gather(output, input, Wish::of("auto", protocol), async_op);
          },
          py::arg("output"), py::arg("input"), py::arg("protocol"), py::arg("async_op"))
      .def(
          "time_all_reduce",
          [](TorchCommunicator& c, const at::Tensor& tensor, int64_t calls,
             const std::string& algorithm, const std::string& protocol, bool in_rank_order,
             bool wide) {
            return c.time_all_reduce(tensor, calls,
                                     Wish::of(algorithm, protocol, in_rank_order, wide));
          },
          py::arg("tensor"), py::arg("calls"), py::arg("algorithm") = "auto",
          py::arg("protocol") = "auto", py::arg("in_rank_order") = false, py::arg("wide") = false)
      .def("table", &TorchCommunicator::table, py::arg("device"))
      .def_property_readonly("rank", &TorchCommunicator::rank)
      .def_property_readonly("size", &TorchCommunicator::ranks)
      .def_property_readonly("timeout_s", &TorchCommunicator::timeout_s)
      .def("abort", &TorchCommunicator::abort, py::arg("reason"),
           py::call_guard<py::gil_scoped_release>())
      .def("close", &TorchCommunicator::close, py::arg("patience_s") = -1.0,
           py::call_guard<py::gil_scoped_release>());
  m.def(
      "make_backend",
      [](c10::intrusive_ptr<c10d::Store> store, const std::string& name, int rank, int size,
         const std::vector<int64_t>& global_ranks, double timeout_s, const std::string& algorithm,
         const std::string& protocol, bool in_rank_order, bool wide,
         const std::map<std::string, WayTables::Lists>& tables) {
        return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<RingBackend>(
            std::move(store), name, rank, size, global_ranks, timeout_s,
            Wish::of(algorithm, protocol, in_rank_order, wide), tables));
      },
      py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("size"), py::arg("global_ranks"),
      py::arg("timeout_s"), py::arg("algorithm"), py::arg("protocol"),
      py::arg("in_rank_order"), py::arg("wide"), py::arg("tables"),
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "close_backends",
      [](double patience_s) { OpenBackends::all().close(milliseconds(patience_s)); },
      py::arg("patience_s"));
  py::class_<TorchLocalRing>(m, "LocalRing")
      .def(py::init<const std::vector<std::string>&, double>(), py::arg("devices"),
           py::arg("timeout_s"))
      .def("set_table", &TorchLocalRing::set_table, py::arg("lists"))
      .def(
          "all_reduce",
          [](TorchLocalRing& r, const Tensors& tensors, const c10d::ReduceOp& op,
             const std::string& algorithm, const std::string& protocol, bool in_rank_order,
             bool wide) {
            r.all_reduce(tensors, op, Wish::of(algorithm, protocol, in_rank_order, wide));
          },
          py::arg("tensors"), py::arg("op"), py::arg("algorithm"), py::arg("protocol"),
          py::arg("in_rank_order"), py::arg("wide"))
      .def(
          "reduce_scatter",
          [](TorchLocalRing& r, const Tensors& outputs, const Tensors& inputs,
             const c10d::ReduceOp& op, const std::string& protocol) {
            r.reduce_scatter(outputs, inputs, op, Wish::of("auto", protocol));
          },
          py::arg("outputs"), py::arg("inputs"), py::arg("op"), py::arg("protocol"))
      .def(
          "all_gather",
          [](TorchLocalRing& r, const Tensors& outputs, const Tensors& inputs,
             const std::string& protocol) {
            r.all_gather(outputs, inputs, Wish::of("auto", protocol));
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
