// What C++ throws becomes the exception of the same kind in `ringkern.errors`, with its facts as
// attributes: by pybind11's translator where Python calls ringkern, by `TorchError` where torch
// does, whose C++ translates exceptions itself.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "comm/ports.h"

namespace ringkern::torch_ext {

namespace py = pybind11;

// `ringkern.errors`, imported with this module and never let go. Raising runs no Python, which an
// interpreter that ends could interrupt half way: classes are called that have no method of their
// own, and all else is CPython's own C.
inline PyObject* python_errors = nullptr;

// Takes the reference; null: making the value has failed, and that is what will be raised.
inline bool set_fact(PyObject* error, const char* name, PyObject* value) {
  if (value == nullptr) return false;
  const bool set = PyObject_SetAttrString(error, name, value) == 0;
  Py_DECREF(value);
  return set;
}

// What another rank has said may be in any encoding.
inline PyObject* as_text(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "replace");
}

inline bool set_facts(PyObject* error, const Facts& about) {
  return (about.rank < 0 || set_fact(error, "rank", PyLong_FromLong(about.rank))) &&
         (about.seq == 0 || set_fact(error, "seq", PyLong_FromUnsignedLongLong(about.seq))) &&
         (about.phase.empty() || set_fact(error, "phase", as_text(about.phase)));
}

// The name in `ringkern.errors`.
inline const char* class_name_of(const Error& e) {
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

inline void raise_in_python(const Error& e, const char* class_name) {
  const auto type =
      py::reinterpret_steal<py::object>(PyObject_GetAttrString(python_errors, class_name));
  const auto text = py::reinterpret_steal<py::object>(as_text(e.what()));
  if (!type || !text) return;
  const auto error = py::reinterpret_steal<py::object>(PyObject_CallOneArg(type.ptr(), text.ptr()));
  if (error && set_facts(error.ptr(), e.facts)) PyErr_SetObject(type.ptr(), error.ptr());
}

// An Error on its way through torch's C++, such as the autograd engine, up to Python. torch makes
// the exception there, of `python_type()` and `what()`, which holds no facts: the thread that
// translates keeps them until the exception is made. Nothing before that needs the GIL: for a
// thread that asks for it while the interpreter ends, Python ends the process.
class TorchError final : public torch::PyTorchError {
 public:
  explicit TorchError(const Error& e)
      : PyTorchError(ascii(e.what())), error_(e), class_name_(class_name_of(e)) {}

  void raise() const { raise_in_python(error_, class_name_); }
  const Error& error() const { return error_; }
  bool is(const std::string& class_name) const { return class_name == class_name_; }

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

  // `__init__` of RingKernError. By the text, an exception that somebody else makes is not mistaken
  // for the one that torch is about to make.
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
  // torch takes a text for UTF-8, and raises UnicodeDecodeError for any other.
  static std::string ascii(std::string text) {
    std::replace_if(text.begin(), text.end(), [](char c) { return c & 0x80; }, '?');
    return text;
  }

  const Error error_;
  const char* const class_name_;
};

// The same error, as torch is to have it.
inline std::exception_ptr for_torch(std::exception_ptr error) {
  if (!error) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return std::make_exception_ptr(TorchError(e));
  } catch (...) {
    return error;
  }
}

// Calls `f` for torch.
template <class F>
auto called_by_torch(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const Error& e) {
    throw TorchError(e);
  }
}

// Sets Python's error; rethrows what is no Error.
inline void translate(std::exception_ptr error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const TorchError& e) {
    e.raise();
  } catch (const Error& e) {
    raise_in_python(e, class_name_of(e));
  }
}

inline void translate_errors() {
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

}  // namespace ringkern::torch_ext
