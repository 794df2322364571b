// The limit for Python: what the benchmark runs beside ringkern and its peers.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "cpu/bare.h"
#include "torch/tensors.h"

namespace ringkern::torch_ext {

class TorchBare {
 public:
  using Tensors = std::vector<at::Tensor>;

  TorchBare(int rank, int fd) : bare_(checked(rank), fd) {}

  // Call i is on tensor i, modulo their number. The times are of this rank, in ns.
  std::vector<int64_t> time_all_reduce(const std::string& movement, const Tensors& mine,
                                       const Tensors& theirs, int64_t calls, int64_t chunk) {
    const auto& names = cpu::kMovements;
    const auto found = std::find(names.begin(), names.end(), movement);
    if (found == names.end()) throw py::value_error("unknown movement: " + movement);
    const auto which = cpu::Movement(found - names.begin());
    check(which, mine, theirs, chunk);
    std::vector<int64_t> times(size_t(std::max<int64_t>(calls, 0)));
    const py::gil_scoped_release no_gil;
    size_t place = 0;
    for (int64_t& time : times) {
      auto* own = mine[place].mutable_data_ptr<float>();
      auto* other = theirs.empty() ? nullptr : theirs[place].mutable_data_ptr<float>();
      const int64_t count = mine[place].numel();
      const auto start = std::chrono::steady_clock::now();
      bare_.all_reduce(which, own, other, count, chunk);
      time = (std::chrono::steady_clock::now() - start).count();
      if (++place == mine.size()) place = 0;
    }
    return times;
  }

  double round_trip_ns() { return bare_.round_trip_ns(); }

 private:
  using Bare = cpu::Bare;

  static int checked(int rank) {
    if (rank != 0 && rank != 1) throw py::value_error("rank must be 0 or 1: there are two");
    return rank;
  }

  static void check(cpu::Movement movement, const Tensors& mine, const Tensors& theirs,
                    int64_t chunk) {
    if (mine.empty()) throw py::value_error("give a tensor");
    if (movement == cpu::Movement::shared && theirs.size() != mine.size())
      throw py::value_error("the movement shared needs the tensors of the other rank");
    for (const Tensors& tensors : {mine, theirs})
      for (const at::Tensor& tensor : tensors)
        if (!tensor.is_cpu() || !tensor.is_contiguous() || tensor.scalar_type() != at::kFloat ||
            tensor.numel() != mine[0].numel())
          throw py::value_error("give contiguous float32 tensors on the CPU, of one size");
    if (movement == cpu::Movement::flag_in_line &&
        mine[0].numel() * int64_t(sizeof(float)) > Bare::kLongestInLines)
      throw py::value_error("the movement flag_in_line takes 512 KiB at most");
    if (chunk < Bare::kChunkGrain || chunk > Bare::kLongestChunk || chunk % Bare::kChunkGrain != 0)
      throw py::value_error("chunk must be a multiple of 128, up to 256 KiB");
  }

  Bare bare_;
};

inline void bind_bare(py::module_& m) {
  py::class_<TorchBare>(m, "Bare",
                        "One of two ranks that move the bytes of an all-reduce and do nothing "
                        "else: the limit that the benchmark shows.")
      .def(py::init<int, int>(), py::arg("rank"), py::arg("fd"))
      .def_property_readonly_static("file_bytes",
                                    [](const py::object&) { return cpu::Bare::file_bytes(); })
      .def_property_readonly_static("movements",
                                    [](const py::object&) {
                                      return std::vector<std::string>(cpu::kMovements.begin(),
                                                                      cpu::kMovements.end());
                                    })
      .def_property_readonly_static("longest_in_lines",
                                    [](const py::object&) { return cpu::Bare::kLongestInLines; })
      .def_property_readonly_static("longest_chunk",
                                    [](const py::object&) { return cpu::Bare::kLongestChunk; })
      .def("time_all_reduce", &TorchBare::time_all_reduce, py::arg("movement"), py::arg("mine"),
           py::arg("theirs"), py::arg("calls"), py::arg("chunk"))
      .def("round_trip_ns", &TorchBare::round_trip_ns, py::call_guard<py::gil_scoped_release>());
}

}  // namespace ringkern::torch_ext
