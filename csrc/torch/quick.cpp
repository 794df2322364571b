// The fast path of ring_all_reduce, for the most common calls: a dense CPU tensor, one of torch's
// own ops, and the defaults for all other arguments, or "world_invariant". Every other call, and
// every call before the ranks are connected, takes the general path, which validates it.
//
// A call through pybind11 costs more than the all-reduce of a small tensor, so this function uses
// CPython's own interface.

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>

#include "torch/bindings.h"
#include "torch/communicator.h"
#include "torch/errors.h"

namespace ringkern::torch_ext {
namespace {

bool refers_to(PyObject* weak, PyObject* object) {
#if PY_VERSION_HEX < 0x030D0000
  return PyWeakref_GetObject(weak) == object;
#else  // where PyWeakref_GetObject is deprecated
  PyObject* alive = nullptr;
  if (PyWeakref_GetRef(weak, &alive) <= 0) return false;
  Py_DECREF(alive);
  return alive == object;
#endif
}

// The communicators of the few process groups that were looked up last. Used under the GIL.
class QuickGroups {
 public:
  static QuickGroups& all() {
    static QuickGroups* const groups = new QuickGroups;  // Python may end before C++ does
    return *groups;
  }

  // Returns the communicator of `group`; null if it is not known.
  TorchCommunicator* find(PyObject* group) const {
    for (const Known& k : known_)
      if (k.group == group)
        // Another object may have its address now.
        return refers_to(k.alive.ptr(), group) ? k.communicator : nullptr;
    return nullptr;
  }
  void add(const py::object& group, TorchCommunicator* communicator) {
    if (find(group.ptr()) == communicator) return;
    const auto same_address = [&](const Known& k) { return k.group == group.ptr(); };
    const auto found = std::find_if(known_.begin(), known_.end(), same_address);
    Known& place = found != known_.end() ? *found : known_[next_++ % known_.size()];
    place = {group.ptr(), py::weakref(group), communicator};
    communicator->on_end([](const TorchCommunicator* c) { all().remove(c); });
  }
  void remove(const TorchCommunicator* communicator) {
    for (Known& k : known_)
      if (k.communicator == communicator) k = {};
  }

 private:
  struct Known {
    PyObject* group = nullptr;  // compared only
    py::object alive;           // a weak reference
    TorchCommunicator* communicator = nullptr;
  };
  std::array<Known, 4> known_;
  size_t next_ = 0;
};

// The objects that a call is compared with.
struct QuickNames {
  PyObject* automatic = PyUnicode_InternFromString("auto");
  PyObject* world_invariant = PyUnicode_InternFromString("world_invariant");
  PyObject* world = PyUnicode_InternFromString("WORLD");
  py::object group = py::module_::import("torch.distributed").attr("group");
  std::array<std::pair<py::object, Op>, 8> ops;

  QuickNames() {
    const py::object op = py::module_::import("torch.distributed").attr("ReduceOp");
    ops = {{{op.attr("SUM"), Op::sum},
            {op.attr("AVG"), Op::avg},
            {op.attr("MAX"), Op::max},
            {op.attr("MIN"), Op::min},
            {op.attr("PRODUCT"), Op::prod},
            {op.attr("BAND"), Op::band},
            {op.attr("BOR"), Op::bor},
            {op.attr("BXOR"), Op::bxor}}};
  }
  static const QuickNames& get() {
    static const QuickNames* const names = new QuickNames;
    return *names;
  }
};

bool is_number(PyObject* object, int number) {
  int too_large = 0;
  return PyLong_CheckExact(object) && PyLong_AsLongAndOverflow(object, &too_large) == number;
}

// quick_all_reduce(tensor, op, group, async_op, protocol, algorithm, deterministic, accumulate,
// shards): returns True if the call is done.
PyObject* quick_all_reduce(PyObject*, PyObject* const* args, Py_ssize_t count) {
  static const QuickNames& names = QuickNames::get();
  if (count != 9 || args[3] != Py_False || !THPVariable_CheckTypeExact(Py_TYPE(args[0])))
    Py_RETURN_FALSE;
  const bool by_tree = args[6] == names.world_invariant;
  for (const int i : {4, 5, 7})
    if (args[i] != names.automatic) Py_RETURN_FALSE;
  if (!by_tree && (args[6] != names.automatic || args[8] != Py_None)) Py_RETURN_FALSE;
  // A tracer, such as torch.export, must see the call, and not its result.
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) Py_RETURN_FALSE;
  const auto group = py::reinterpret_steal<py::object>(
      args[2] != Py_None ? Py_NewRef(args[2]) : PyObject_GetAttr(names.group.ptr(), names.world));
  if (!group) throw py::error_already_set();
  TorchCommunicator* const communicator = QuickGroups::all().find(group.ptr());
  if (communicator == nullptr) Py_RETURN_FALSE;
  const at::Tensor& tensor = THPVariable_Unpack(args[0]);
  // The general path raises the errors of these.
  if (by_tree && !is_number(args[8], communicator->ranks())) Py_RETURN_FALSE;
  static const WayRequest any;
  static const WayRequest tree = WayRequest::of("auto", "auto", true, true, /*tree=*/true);
  for (const auto& [object, op] : names.ops)
    if (object.ptr() == args[1] && !(by_tree && op == Op::prod))
      return PyBool_FromLong(
          communicator->all_reduce_now(tensor, tensor, op, by_tree ? tree : any));
  Py_RETURN_FALSE;
}

// Translates exceptions, because pybind11 does so only for its own functions.
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
    "quick_all_reduce",
    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&translated_quick_all_reduce)),
    METH_FASTCALL, nullptr};

}  // namespace

void bind_quick(py::module_& m) {
  m.add_object("quick_all_reduce", py::reinterpret_steal<py::object>(
                                       PyCFunction_New(&quick_all_reduce_method, nullptr)));
  m.def(
      "remember",
      [](const py::object& group, TorchCommunicator* communicator) {
        QuickGroups::all().add(group, communicator);
      },
      py::arg("group"), py::arg("communicator"));
}

}  // namespace ringkern::torch_ext
