#include "torch/sparse_sum.h"

namespace ringkern::torch_ext {

at::Tensor describe_sparse(const at::Tensor& t, int64_t nnz) {
  std::vector<int64_t> words{int64_t(t.scalar_type()), t.sparse_dim(), t.dense_dim()};
  words.insert(words.end(), t.sizes().begin(), t.sizes().end());
  constexpr size_t kMost = 63;
  if (words.size() > kMost) throw py::value_error("tensor has too many dimensions");
  words.resize(kMost, -1);
  words.push_back(nnz);
  return at::tensor(words, at::kLong);
}

at::Tensor padded(const at::Tensor& t, int64_t rows) {
  std::vector<int64_t> sizes = t.sizes().vec();
  sizes[0] = rows;
  at::Tensor whole = at::zeros(sizes, t.options());
  whole.narrow(0, 0, t.size(0)).copy_(t);
  return whole;
}

void sum_sparse(const at::Tensor& t, int rank, int ranks, const Gather& gather) {
  if (t.layout() != at::kSparse || !t.device().is_cpu())
    throw py::value_error("tensor is a sparse tensor of layout " + c10::str(t.layout()) + " on " +
                          t.device().str() +
                          "; sparse tensors are summed in COO layout, on the "
                          "CPU: call .to_sparse_coo() or .to_dense() first");
  at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor mine = t.coalesce();
  const at::Tensor about = gather(describe_sparse(t, mine._nnz()));
  const at::Tensor shapes = about.narrow(1, 0, about.size(1) - 1);
  const at::Tensor counts = about.select(1, about.size(1) - 1).contiguous();
  for (int r = 0; r < ranks; ++r)
    if (!shapes.select(0, r).equal(shapes.select(0, rank)))
      throw py::value_error(rank_text(r) + " and " + rank_text(rank) +
                            " have sparse tensors that differ in dtype, shape or number of sparse "
                            "dimensions; all ranks must have them alike");
  const int64_t most = counts.max().item<int64_t>();
  // Row i of each: the place of element i, and its value.
  const at::Tensor places = gather(padded(mine._indices().t().contiguous(), most));
  const at::Tensor values = gather(padded(mine._values().contiguous(), most));
  std::vector<at::Tensor> all_places, all_values;
  for (int r = 0; r < ranks; ++r) {
    const int64_t n = counts[r].item<int64_t>();
    all_places.push_back(places.select(0, r).narrow(0, 0, n));
    all_values.push_back(values.select(0, r).narrow(0, 0, n));
  }
  t.copy_(at::_sparse_coo_tensor_unsafe(at::cat(all_places).t(), at::cat(all_values), t.sizes())
              .coalesce());
}

}  // namespace ringkern::torch_ext
