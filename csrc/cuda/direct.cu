#include "cuda/direct.cuh"

namespace ringkern::cuda {

const void* direct_kernel_for(DType dtype, Combine combine) {
  return with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return combine == Combine::sum ? reinterpret_cast<const void*>(&direct_kernel<T, true>)
                                   : reinterpret_cast<const void*>(&direct_kernel<T, false>);
  });
}

}  // namespace ringkern::cuda
