#include "cuda/norm.cuh"

namespace ringkern::cuda {

const void* norm_kernel_for(DType dtype) {
  switch (dtype) {
    case DType::f32: return reinterpret_cast<const void*>(&norm_kernel<float>);
    case DType::f16: return reinterpret_cast<const void*>(&norm_kernel<f16_t>);
    case DType::bf16: return reinterpret_cast<const void*>(&norm_kernel<bf16_t>);
    default: return nullptr;
  }
}

}  // namespace ringkern::cuda
