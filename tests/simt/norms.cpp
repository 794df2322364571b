// Direct all-reduces that end with a norm.
#include <algorithm>
#include <cstring>

#include "cuda/model.h"
#include "reduce/normed.h"
#include "ring.h"

namespace simt {

// Uses a random stream of its own, so that the rest of a seed is the same with norms and without.
void Ring::choose_norm(Call& call) {
  const Reduction& r = call.reduction;
  const bool possible = call.direct && !call.across && call.plan.count > 0 &&
                        r.combine == Combine::sum && r.scale == Reduction::Scale::none && !r.tree;
  if (!possible || !wish_.norm.value_or(norms_() % 4 == 0)) return;
  if (r.dtype == DType::f32) add_norm<float>(call);
  if (r.dtype == DType::f16) add_norm<f16_t>(call);
  if (r.dtype == DType::bf16) add_norm<bf16_t>(call);
}

template <class T>
void Ring::add_norm(Call& call) {
  const auto e = int64_t(sizeof(T));
  const int64_t n = call.plan.count;
  // Numbers that are asked for have NaNs among them: short rows have some without.
  int64_t rows = wish_.operands ? n / 8 : 1 + int64_t(norms_() % 8);
  while (n % rows != 0) --rows;
  const Algorithm algorithm = call.direct->algorithm;
  call.by_rows = RowPlan::make(algorithm, ranks_, n, n / rows, int(e), mesh_.chunk_bytes(algorithm),
                               call.plan.channels);
  call.direct = *call.by_rows;
  const bool aligned = norms_() % 2 == 0;
  for (int r = 0; r < ranks_; ++r) {
    const std::string of = " of rank " + std::to_string(r);
    const auto add = [&](const char* what, int64_t count) {
      const int64_t offset = aligned ? 0 : e * int64_t(norms_() % 16);
      return memory().add(what + of, Kind::own, r, count * e, offset, 0xEE);
    };
    const auto given = [&](const char* what, std::vector<std::byte*>& all, int64_t count) {
      std::vector<T> x(static_cast<size_t>(count));
      for (T& value : x) value = test::sample<T>(norms_);
      if (norms_() % 16 == 0) x[norms_() % x.size()] = bits_as<T>(FloatBits<T>::kGreatest);
      memory().write(all.emplace_back(add(what, count)), x.data(), count * e);
      return x;
    };
    const std::vector<T> residual = given("the residual", call.residual, n);
    const std::vector<T> weight = given("the weight", call.weight, n / rows);
    call.normalised.push_back(add("the norm", n));
    std::vector<std::byte>& total = call.expected[size_t(r)];
    std::vector<std::byte>& norm = call.norms.emplace_back(total.size());
    for (int64_t at = 0; at < n; at += n / rows) {
      std::vector<T> x(weight.size());
      const size_t bytes = x.size() * sizeof(T);
      std::memcpy(x.data(), &total[size_t(at * e)], bytes);
      const std::vector<T> added(residual.begin() + at, residual.begin() + at + n / rows);
      const test::Normed<T> normed(x, added, weight, n / rows, kEps);
      std::memcpy(&total[size_t(at * e)], normed.sum.data(), bytes);
      std::memcpy(&norm[size_t(at * e)], normed.out.data(), bytes);
    }
  }
  const char* const dtype = name_of(call.reduction.dtype);
  cover("norm", dtype);
  cover("norm", name_of(algorithm));
  cover("norm", call.by_rows->pieces > 1 ? "of rows of several rounds" : "of rows of a round");
  cover("norm", rows > call.plan.channels   ? "of more rows than channels"
                : rows < call.plan.channels ? "of fewer rows than channels"
                                            : "of as many rows as channels");
}

}  // namespace simt
