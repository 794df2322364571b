// Calls into the interpreter: to raise errors (torch/errors.h), to run the handlers of signals
// (torch/signals.h), and to ask for the order of a ring (torch/runner.h).
#include <torch/csrc/Exceptions.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/event_queue.h"
#include "fault/render.h"
#include "torch/bindings.h"
#include "torch/devices.h"
#include "torch/errors.h"
#include "torch/on_fault.h"
#include "torch/signals.h"

namespace ringkern::torch_ext {

// ---- Errors

PyObject* as_text(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "replace");
}

PyObject* as_dict(const Fault& fault) try {
  const std::vector<FaultField> fields = fields_of(fault);
  py::dict dict;
  for (const auto& [name, value] : fields) {
    py::object made = py::none();
    if (const auto* const text = std::get_if<std::string>(&value))
      made = py::reinterpret_steal<py::object>(as_text(*text));
    else if (const auto* const number = std::get_if<int64_t>(&value)) made = py::int_(*number);
    else if (const auto* const seconds = std::get_if<double>(&value)) made = py::float_(*seconds);
    if (!made || PyDict_SetItemString(dict.ptr(), name, made.ptr()) != 0) return nullptr;
  }
  return dict.release().ptr();
} catch (py::error_already_set& e) {
  e.restore();
  return nullptr;
}

namespace {

// `ringkern.errors`, imported with this module and never released. Raising an error runs no Python
// code, which an interpreter that ends could interrupt half way: the classes have no method of
// their own in Python, and all else is C code of CPython.
PyObject* python_errors = nullptr;

// Sets an attribute, and takes the reference to `value`. Null: making the value has failed, and
// Python raises that error.
bool set_fact(PyObject* error, const char* name, PyObject* value) {
  if (value == nullptr) return false;
  const bool set = PyObject_SetAttrString(error, name, value) == 0;
  Py_DECREF(value);
  return set;
}

bool set_facts(PyObject* error, const Facts& about) {
  return (about.rank < 0 || set_fact(error, "rank", PyLong_FromLong(about.rank))) &&
         (about.seq == 0 || set_fact(error, "seq", PyLong_FromUnsignedLongLong(about.seq))) &&
         (about.phase.empty() || set_fact(error, "phase", as_text(about.phase))) &&
         (!about.fault || set_fact(error, "_fault", as_dict(*about.fault)));
}

// Returns the name of the error's class in `ringkern.errors`.
const char* class_name_of(const Error& e) {
  // Most derived first.
  if (dynamic_cast<const SharedMemoryError*>(&e)) return "SharedMemoryError";
  if (dynamic_cast<const TransportError*>(&e)) return "TransportError";
  if (dynamic_cast<const RendezvousError*>(&e)) return "RendezvousError";
  if (dynamic_cast<const PeerLostError*>(&e)) return "PeerLostError";
  if (dynamic_cast<const MismatchError*>(&e)) return "CollectiveMismatchError";
  if (dynamic_cast<const TimeoutError*>(&e)) return "CollectiveTimeoutError";
  if (dynamic_cast<const AbortedError*>(&e)) return "CommAbortedError";
  if (dynamic_cast<const UsageError*>(&e)) return "CommUsageError";
  return "RingKernError";
}

void raise_in_python(const Error& e, const char* class_name) {
  const auto type =
      py::reinterpret_steal<py::object>(PyObject_GetAttrString(python_errors, class_name));
  const auto text = py::reinterpret_steal<py::object>(as_text(e.what()));
  if (!type || !text) return;
  const auto error = py::reinterpret_steal<py::object>(PyObject_CallOneArg(type.ptr(), text.ptr()));
  if (error && set_facts(error.ptr(), e.facts)) PyErr_SetObject(type.ptr(), error.ptr());
}

// An Error that torch translates. torch makes the exception in Python from python_type() and
// what(), which hold no facts, so the thread that translates keeps them until the exception is
// made. Nothing before that needs the GIL: Python ends the process if a thread asks for the GIL
// while the interpreter ends.
class TorchError final : public torch::PyTorchError, public ErrorInTorch {
 public:
  explicit TorchError(const Error& e)
      : PyTorchError(ascii(e.what())), error_(e), class_name_(class_name_of(e)) {}

  void raise() const { raise_in_python(error_, class_name_); }
  const Error& error() const override { return error_; }

  PyObject* python_type() override {
    PyObject* const type = PyObject_GetAttrString(python_errors, class_name_);
    if (type == nullptr) {
      PyErr_Clear();
      return PyExc_RuntimeError;
    }
    Py_DECREF(type);  // `python_errors` holds it
    made_next() = {what(), error_};
    return type;
  }

  // Implements `__init__` of RingKernError. Compares the text, so that an exception that somebody
  // else makes is not mistaken for the one that torch is about to make.
  static PyObject* init(PyObject* self, PyObject* args) {
    const auto base_init = reinterpret_cast<PyTypeObject*>(PyExc_RuntimeError)->tp_init;
    if (base_init(self, args, nullptr) != 0) return nullptr;
    MadeNext& next = made_next();
    if (!next || PyTuple_GET_SIZE(args) != 1) Py_RETURN_NONE;
    PyObject* const text_given = PyTuple_GET_ITEM(args, 0);
    const char* const made_of = next->first.c_str();
    if (!PyUnicode_Check(text_given) || PyUnicode_CompareWithASCIIString(text_given, made_of) != 0)
      Py_RETURN_NONE;
    const Error error = std::exchange(next, std::nullopt)->second;
    const auto text = py::reinterpret_steal<py::object>(as_text(error.what()));
    if (!text || !set_fact(self, "args", PyTuple_Pack(1, text.ptr())) ||
        !set_facts(self, error.facts))
      return nullptr;
    Py_RETURN_NONE;
  }

 private:
  // The text that torch has been given, and the error that it stands for.
  using MadeNext = std::optional<std::pair<std::string, Error>>;
  static MadeNext& made_next() {
    static thread_local MadeNext next;
    return next;
  }
  // Replaces characters beyond ASCII: torch decodes a text as UTF-8, and raises UnicodeDecodeError
  // if it is not.
  static std::string ascii(std::string text) {
    std::replace_if(text.begin(), text.end(), [](char c) { return c & 0x80; }, '?');
    return text;
  }

  const Error error_;
  const char* const class_name_;
};

}  // namespace

std::exception_ptr for_torch(std::exception_ptr error) {
  if (!error) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return std::make_exception_ptr(TorchError(e));
  } catch (...) {
    return error;
  }
}

void throw_for_torch(const Error& error) { throw TorchError(error); }

void translate(std::exception_ptr error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const TorchError& e) {
    e.raise();
  } catch (const Error& e) {
    raise_in_python(e, class_name_of(e));
  }
}

void translate_errors() {
  python_errors = py::module_::import("ringkern.errors").release().ptr();
  static PyMethodDef init{"__init__", &TorchError::init, METH_VARARGS,
                          "__init__($self, /, *_args)\n--\n\n"};
  const py::object base = py::reinterpret_borrow<py::object>(python_errors).attr("RingKernError");
  const auto method = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(base.ptr()), &init));
  if (!method) throw py::error_already_set();
  base.attr("__init__") = method;
  py::register_exception_translator(&translate);
}

// ---- The end of a process

void exit_for(const Fault& why) {
  constexpr Milliseconds kIsLogged{2000};
  constexpr int kStatus = 1;
  const std::string text =
      "ringkern: ending this process because a group of it has failed (with "
      "RINGKERN_ON_FAULT=raise it would go on): " +
      text_of(why) + "\n";
  (void)EventQueue::all().told_within(kIsLogged);
  (void)!::write(STDERR_FILENO, text.data(), text.size());
  std::_Exit(kStatus);
}

// ---- Handlers of signals

void Signals::keep(const py::error_already_set& error) {
  if (innermost != nullptr && !innermost->raised_ && !error.matches(PyExc_Exception))
    innermost->raised_ = std::make_exception_ptr(error);
}

std::string Signals::run_handlers() {
  const py::gil_scoped_acquire gil;
  handling_ = true;
  const bool ok = PyErr_CheckSignals() == 0;
  handling_ = false;
  if (ok) return {};
  const py::error_already_set error;
  raised_ = std::make_exception_ptr(error);
  return reinterpret_cast<PyTypeObject*>(error.type().ptr())->tp_name;
}

std::shared_ptr<py::object> kept(py::object function) {
  return {new py::object(std::move(function)), [](py::object* held) {
            if (Py_IsInitialized() == 0) {
              (void)held->release();
              delete held;
              return;
            }
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

// ---- The order of a ring

namespace {

RingOrders orders_in(const std::vector<std::vector<int>>& found, size_t ranks) {
  RingOrders orders;
  for (const std::vector<int>& order : found)
    if (order.size() != ranks || !orders.add(order.data(), int(order.size())))
      throw py::value_error("no order of " + std::to_string(ranks) + " ranks");
  return orders;
}

}  // namespace

FindOrders orders_by(py::object function) {
  if (function.is_none()) return nullptr;
  return [function = kept(std::move(function))](const std::vector<std::string>& buses,
                                                int channels) -> RingOrders {
    const py::gil_scoped_acquire gil;
    try {
      const py::object found = (*function)(buses, channels);
      return orders_in(py::cast<std::vector<std::vector<int>>>(found), buses.size());
    } catch (const std::exception& e) {
      EventQueue::all().post(EventKind::warning,
                             std::string("the ranks stand in their own order, because no better "
                                         "one could be looked for: ") +
                                 e.what());
      return {};
    }
  };
}

void bind_orders(py::module_& m) {
  m.def(
      "ring_orders",
      [](const py::object& find, const std::vector<std::string>& buses, int channels) {
        const FindOrders finds = orders_by(find);
        const RingOrders orders = finds ? finds(buses, channels) : RingOrders{};
        std::vector<std::vector<int>> lists;
        for (int i = 0; i < orders.count; ++i)
          for (int p = (lists.emplace_back(), 0); p < int(buses.size()); ++p)
            lists.back().push_back(orders.rank_at(i, p));
        return lists;
      },
      py::arg("find"), py::arg("buses"), py::arg("channels"),
      "Returns the orders that a ring on CUDA takes from set_orders(find).");
}

}  // namespace ringkern::torch_ext
