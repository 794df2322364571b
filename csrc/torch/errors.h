// What C++ throws becomes the exception of the same kind in `ringkern.errors`, with its facts as
// attributes.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <string>

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

inline void raise_in_python(const Error& e, const char* class_name) {
  const auto type =
      py::reinterpret_steal<py::object>(PyObject_GetAttrString(python_errors, class_name));
  const auto text = py::reinterpret_steal<py::object>(as_text(e.what()));
  if (!type || !text) return;
  const auto error = py::reinterpret_steal<py::object>(PyObject_CallOneArg(type.ptr(), text.ptr()));
  if (!error) return;
  const Facts& about = e.facts;
  if (about.rank >= 0 && !set_fact(error.ptr(), "rank", PyLong_FromLong(about.rank))) return;
  if (about.seq > 0 && !set_fact(error.ptr(), "seq", PyLong_FromUnsignedLongLong(about.seq)))
    return;
  if (!about.phase.empty() && !set_fact(error.ptr(), "phase", as_text(about.phase))) return;
  PyErr_SetObject(type.ptr(), error.ptr());
}

template <class E>
bool raise_as(std::exception_ptr error, const char* class_name) {
  try {
    std::rethrow_exception(error);
  } catch (const E& e) {
    raise_in_python(e, class_name);
    return true;
  } catch (...) {
    return false;
  }
}

// Sets Python's error; rethrows what is no Error.
inline void translate(std::exception_ptr error) {
  if (!error) return;
  // Most derived first.
  if (raise_as<SharedMemoryError>(error, "SharedMemoryError") ||
      raise_as<TransportError>(error, "TransportError") ||
      raise_as<RendezvousError>(error, "RendezvousError") ||
      raise_as<PeerLostError>(error, "PeerLostError") ||
      raise_as<MismatchError>(error, "CollectiveMismatchError") ||
      raise_as<TimeoutError>(error, "CollectiveTimeoutError") ||
      raise_as<AbortedError>(error, "CommAbortedError") ||
      raise_as<UsageError>(error, "CommUsageError") || raise_as<Error>(error, "RingKernError"))
    return;
  std::rethrow_exception(error);
}

inline void translate_errors() {
  python_errors = py::module_::import("ringkern.errors").release().ptr();
  py::register_exception_translator(&translate);
}

}  // namespace ringkern::torch_ext
