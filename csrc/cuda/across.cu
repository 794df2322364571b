#include "cuda/across.cuh"

namespace ringkern::cuda {

const void* across_kernel(DType dtype, Combine combine) {
  return with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return combine == Combine::sum ? reinterpret_cast<const void*>(&across<T, true>)
                                   : reinterpret_cast<const void*>(&across<T, false>);
  });
}

}  // namespace ringkern::cuda
