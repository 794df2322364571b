#include "cuda/kernels.cuh"

namespace ringkern::cuda {

const void* ll128_kernel(DType dtype, Combine combine) {
  return kernel_of<Protocol::ll128>(dtype, combine);
}

}  // namespace ringkern::cuda
