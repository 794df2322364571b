// Calls of a process group and of DeepSpeed's all-reduce, in C++, timed call by call.
#include <dlfcn.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/extension.h>

#include "torch_timing.h"

namespace {

std::vector<int64_t> process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                   const std::vector<at::Tensor>& tensors, int64_t first,
                                   int64_t calls) {
  return timed(tensors, first, calls, [&](at::Tensor& tensor) {
    std::vector<at::Tensor> one{tensor};
    group->allreduce(one)->wait();
  });
}

// DeepSpeed's own function, of its library that has been loaded: without the dispatcher, which
// costs more than a small call.
std::vector<int64_t> deepspeed(const std::string& library, const std::vector<at::Tensor>& tensors,
                               int64_t first, int64_t calls) {
  void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(loaded, "not loaded: ", library);
  using Function = void (*)(at::Tensor&, int);
  const auto all_reduce =
      reinterpret_cast<Function>(dlsym(loaded, "_Z21inference_all_reduce_RN2at6TensorEi"));
  TORCH_CHECK(all_reduce, "this DeepSpeed has no inference_all_reduce_(Tensor&, int)");
  return timed(tensors, first, calls, [&](at::Tensor& tensor) { all_reduce(tensor, 0); });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("process_group", &process_group);
  m.def("deepspeed", &deepspeed);
}
