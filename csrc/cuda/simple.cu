#include "cuda/kernels.cuh"

namespace ringkern::cuda {

const void* simple_kernel(DType dtype, Combine combine) {
  return kernel_of<Protocol::simple>(dtype, combine);
}

}  // namespace ringkern::cuda
