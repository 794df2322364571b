#include "cuda/kernels.cuh"

namespace ringkern::cuda {

const void* ll_kernel(DType dtype, Combine combine) {
  return kernel_of<Protocol::ll>(dtype, combine);
}

}  // namespace ringkern::cuda
