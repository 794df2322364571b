// An exception of C++ becomes the exception of the same kind in `ringkern.errors`, with its facts
// as attributes: by pybind11's translator where Python calls ringkern, by an ErrorInTorch where
// torch does, whose C++ translates exceptions itself.
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

// Returns the same error, as torch is to have it.
std::exception_ptr for_torch(std::exception_ptr error);
[[noreturn]] void throw_for_torch(const Error& error);

// Calls `f` for torch.
template <class F>
auto called_by_torch(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const Error& e) {
    throw_for_torch(e);
  }
}

// Returns Python's text, or null with Python's error set. Text of another rank may be in any
// encoding.
PyObject* as_text(const std::string& text);
// Returns the fields of a `ringkern.errors.Fault` as a dict, or null with Python's error set.
PyObject* as_dict(const Fault& fault);
// Sets Python's error; rethrows what is no Error.
void translate(std::exception_ptr error);
// Has pybind11 translate; imports `ringkern.errors`.
void translate_errors();

}  // namespace ringkern::torch_ext
