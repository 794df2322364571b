#include "cuda/direct.cuh"

namespace ringkern::cuda {

const void* direct_kernel_for(DType dtype, Combine combine, bool tree) {
  return with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T>)
      if (tree) return reinterpret_cast<const void*>(&direct_kernel<T, true, true>);
    return combine == Combine::sum ? reinterpret_cast<const void*>(&direct_kernel<T, true, false>)
                                   : reinterpret_cast<const void*>(&direct_kernel<T, false, false>);
  });
}

}  // namespace ringkern::cuda
