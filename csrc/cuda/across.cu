#include "cuda/across.cuh"

namespace ringkern::cuda {

const void* across_kernel(DType dtype, Combine combine, bool tree) {
  return with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T>)
      if (tree) return reinterpret_cast<const void*>(&across<T, true, true>);
    return combine == Combine::sum ? reinterpret_cast<const void*>(&across<T, true, false>)
                                   : reinterpret_cast<const void*>(&across<T, false, false>);
  });
}

}  // namespace ringkern::cuda
