// Tensors in memory that all ranks of the host can map: cpu/arena.h as a torch allocator.

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <vector>

#include "cpu/arena.h"
#include "torch/bindings.h"
#include "torch/tensors.h"
#if RK_WITH_CUDA
#include "cuda/regions.h"
#endif

namespace ringkern::torch_ext {
namespace {

class SharedAllocator final : public c10::Allocator {
 public:
  static SharedAllocator* get() {
    static SharedAllocator* const allocator = new SharedAllocator;  // tensors outlive everything
    return allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &give_back, cpu};
    cpu::Arena& arena = cpu::Arena::mine();
    void* const at = arena.allocate(int64_t(bytes));
    return {at, new Place{arena, at}, &give_back, cpu};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  struct Place {
    cpu::Arena& arena;  // of the process that made it
    void* at;
  };
  static void give_back(void* place) {
    if (place == nullptr) return;
    const auto* const p = static_cast<Place*>(place);
    p->arena.free(p->at);
    delete p;
  }
};

at::Tensor shared_empty(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  for (const int64_t size : sizes)
    if (size < 0) throw py::value_error("a size is negative: " + std::to_string(size));
  return at::detail::empty_generic(sizes, SharedAllocator::get(),
                                   c10::DispatchKeySet(c10::DispatchKey::CPU), dtype, std::nullopt);
}

bool is_shared(const at::Tensor& t) {
  if (!t.has_storage() || t.numel() == 0) return false;
#if RK_WITH_CUDA
  if (t.is_cuda()) return cuda::Regions::mine().place_of(t.const_data_ptr(), 1).region >= 0;
#endif
  return t.is_cpu() && cpu::Arena::mine().place_of(t.const_data_ptr(), 1) >= 0;
}

// Between begin() and end(), every CPU tensor that this process makes is shared. Not nested.
class SharedByDefault {
 public:
  void begin() {
    if (former_ != nullptr) return;
    former_ = c10::GetAllocator(c10::DeviceType::CPU);
    c10::SetAllocator(c10::DeviceType::CPU, SharedAllocator::get(), kPriority);
  }
  void end() {
    if (former_ != nullptr) c10::SetAllocator(c10::DeviceType::CPU, former_, kPriority);
    former_ = nullptr;
  }

 private:
  static constexpr uint8_t kPriority = 255;
  c10::Allocator* former_ = nullptr;
};

}  // namespace

void bind_shared(py::module_& m) {
  m.def(
      "shared_empty",
      [](const std::vector<int64_t>& sizes, const py::object& dtype) {
        return shared_empty(sizes, py::cast<at::ScalarType>(dtype));
      },
      py::arg("sizes"), py::arg("dtype"));
  m.def("is_shared", &is_shared, py::arg("tensor"));
  m.def(
      "share_by_default",
      [](bool on) {
        static SharedByDefault shared;
        on ? shared.begin() : shared.end();
      },
      py::arg("on"));
}

}  // namespace ringkern::torch_ext
