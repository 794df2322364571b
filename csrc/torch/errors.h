// Translation of C++ exceptions to those of the same kind in `ringkern.errors`, with their facts as
// attributes. Where Python calls ringkern, pybind11's translator does it. Where torch calls
// ringkern, an ErrorInTorch does it, because torch's C++ translates exceptions itself.
#pragma once

#include <pybind11/pytypes.h>

#include <exception>
#include <string>

#include "comm/interfaces.h"

namespace ringkern::torch_ext {

namespace py = pybind11;

// An Error on its way through torch's C++, such as the autograd engine, up to Python.
class ErrorInTorch {
 public:
  virtual const Error& error() const = 0;

 protected:
  ~ErrorInTorch() = default;
};

// Returns an Error as an ErrorInTorch, and any other exception as it is.
std::exception_ptr for_torch(std::exception_ptr error);
[[noreturn]] void throw_for_torch(const Error& error);

// Calls `f`, and throws its Error as an ErrorInTorch.
template <class F>
auto called_by_torch(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const Error& e) {
    throw_for_torch(e);
  }
}

// Returns a Python string, or null with Python's error set. Text of another rank may be in any
// encoding.
PyObject* as_text(const std::string& text);
// Returns the fields of a `ringkern.errors.Fault` as a dict, or null with Python's error set.
PyObject* as_dict(const Fault& fault);
// Sets Python's error for an Error; rethrows any other exception.
void translate(std::exception_ptr error);
// Imports `ringkern.errors`, and registers translate() with pybind11.
void translate_errors();

}  // namespace ringkern::torch_ext
