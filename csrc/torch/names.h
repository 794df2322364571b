// The enumerations of core/types.h for Python: from values to names, and back.
#pragma once

#include <pybind11/pytypes.h>

#include <string>

#include "core/types.h"

namespace ringkern::torch_ext {

namespace py = pybind11;

template <class E>
py::list names(int values) {
  py::list list;
  for (int v = 0; v < values; ++v) list.append(name_of(E(v)));
  return list;
}

template <class E>
E parse(const std::string& name, int values, const char* what) {
  std::string known;
  for (int v = 0; v < values; ++v) {
    if (name == name_of(E(v))) return E(v);
    known += std::string(v ? ", " : "") + name_of(E(v));
  }
  throw py::value_error(std::string("unknown ") + what + " '" + name + "'; choose one of " + known);
}

}  // namespace ringkern::torch_ext
