// Like timing.h, over torch tensors.
#pragma once

#include <torch/extension.h>

#include <vector>

#include "timing.h"

template <class AllReduce>
std::vector<int64_t> timed(std::vector<at::Tensor> tensors, int64_t first, int64_t calls,
                           AllReduce&& all_reduce) {
  const py::gil_scoped_release no_gil;
  std::vector<int64_t> times(static_cast<size_t>(calls));
  size_t place = static_cast<size_t>(first);
  for (int64_t& time : times) {
    at::Tensor& tensor = tensors[place];
    const int64_t start = now_ns();
    all_reduce(tensor);
    time = now_ns() - start;
    if (++place == tensors.size()) place = 0;
  }
  return times;
}
