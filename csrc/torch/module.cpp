// The Python module `ringkern._C`. The other units of this folder add their bindings to it
// (torch/bindings.h).
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/headeronly/version.h>

#include "comm/handshake.h"
#include "cpu/simd.h"
#include "torch/bindings.h"
#include "torch/errors.h"
#if RK_WITH_CUDA
#include "cuda/device.h"
#include "cuda/regions.h"
#endif

namespace ringkern::torch_ext {
namespace {

py::dict build_info() {
  using namespace py::literals;
  py::dict info("version"_a = RINGKERN_VERSION, "torch"_a = TORCH_VERSION,
                "compiler"_a = "gcc " __VERSION__, "cpu_isa"_a = kernels().isa,
                "cuda"_a = bool(RK_WITH_CUDA), "cuda_archs"_a = py::none(),
                "cuda_runtime"_a = py::none(), "cuda_devices"_a = 0);
#if RK_WITH_CUDA
  info["cuda_archs"] = RK_CUDA_ARCHS;
  info["cuda_runtime"] = cuda::runtime_version();
  info["cuda_devices"] = cuda::device_count();
#endif
  info["dtypes"] = names<DType>(kDTypes);
  info["ops"] = names<Op>(kOps);
  info["protocols"] = names<Protocol>(kProtocols);
  info["algorithms"] = names<Algorithm>(kAlgorithms);
  return info;
}

#if RK_WITH_CUDA
// Gives the CUDA code functions of torch, through interfaces that a torch without CUDA has, too.
void serve_cuda() {
  cuda::framework.empty_cache = [] {
    try {
      c10::getDeviceAllocator(c10::kCUDA)->emptyCache();
    } catch (const std::exception&) {
      // An allocator without a cache, such as torch.cuda.memory.CUDAPluggableAllocator.
    }
  };
  cuda::framework.choose = [](int device) {
    if (c10::impl::hasDeviceGuardImpl(c10::kCUDA))
      c10::impl::getDeviceGuardImpl(c10::kCUDA)
          ->uncheckedSetDevice(c10::Device(c10::kCUDA, c10::DeviceIndex(device)));
  };
}
#endif

}  // namespace

#if RK_WITH_CUDA
// Allocate and free the memory of a torch.cuda.MemPool, which finds them by name
// (ringkern/shared.py). Null: the memory could not be allocated, and torch raises the error.
#define RK_EXPORT extern "C" __attribute__((visibility("default")))
RK_EXPORT void* ringkern_cuda_allocate(ssize_t bytes, int device, void*) noexcept {
  try {
    return cuda::Regions::mine().allocate(device, bytes);
  } catch (const Error&) {
    return nullptr;
  }
}
RK_EXPORT void ringkern_cuda_free(void* at, ssize_t, int, void*) noexcept {
  cuda::Regions::mine().free(at);
}
#endif

PYBIND11_MODULE(_C, m) {
  translate_errors();
#if RK_WITH_CUDA
  serve_cuda();
#endif
  m.attr("torch_version") = TORCH_VERSION;
  m.attr("version") = RINGKERN_VERSION;
  m.attr("wire_version") = kWireVersion;
  m.attr("protocols") = py::tuple(names<Protocol>(kProtocols));
  m.attr("algorithms") = py::tuple(names<Algorithm>(kAlgorithms));
  m.def("build_info", &build_info);
  // Applies RINGKERN_CUDA_MEMORY.
  m.def(
      "use_cuda_memory",
      [](const std::string& choice) {
#if RK_WITH_CUDA
        using enum cuda::MemoryChoice;
        cuda::memory_choice = choice == "host" ? host : choice == "ipc" ? ipc : any;
#else
        (void)choice;
#endif
      },
      py::arg("choice"));
  bind_lists(m);
  bind_plan(m);
  bind_stages(m);
  bind_layout(m);
  bind_recorder(m);
  bind_orders(m);
  bind_shared(m);
  bind_runner(m);  // before its subclasses
  bind_communicator(m);
  bind_quick(m);
  bind_trace(m);
  bind_local(m);
  bind_hosts_communicator(m);
  bind_backend(m);
}

}  // namespace ringkern::torch_ext
