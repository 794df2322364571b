// vLLM's all-reduce over shared memory as a torch op: compiled with csrc/cpu/shm.cpp of its source
// distribution, since the wheel that PyPI has is without the CPU kernels.
#include <torch/extension.h>
#include <torch/library.h>

#include "torch_timing.h"

int64_t init_shm_manager(const std::string& name, const int64_t ranks, const int64_t rank,
                         const int64_t threads);
std::string join_shm_manager(int64_t handle, const std::string& name);
void shm_allreduce(int64_t handle, torch::Tensor& data);

TORCH_LIBRARY(ringkern_vllm, m) {
  m.def("shm_allreduce(int handle, Tensor! data) -> ()");
  m.impl("shm_allreduce", torch::kCPU, &shm_allreduce);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("init_shm_manager", &init_shm_manager);
  m.def("join_shm_manager", &join_shm_manager);
  m.def("time_all_reduce", [](int64_t handle, const std::vector<at::Tensor>& tensors,
                              int64_t first, int64_t calls) {
    return timed(tensors, first, calls, [&](at::Tensor& t) { shm_allreduce(handle, t); });
  });
}
