// What a ring must leave on every rank, to the bit: the plan's chunks in the order in which they
// travel; and what a direct all-reduce must. Knows nothing of CUDA; whoever runs the kernels
// compares with it.
#pragma once

#include <random>
#include <type_traits>
#include <vector>

#include "core/plan.h"
#include "reduce/ops.h"

namespace ringkern::test {

// Values whose sums and products over a few ranks mostly stay finite.
template <class T>
T sample(std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) return T(random());
  else if constexpr (is_small_float<T>)
    return from_float<T>(float(int(random() % 2001) - 1000) / 700);
  else return T(int(random() % 2001) - 1000) / T(7);
}

template <class T>
T combined(Combine c, T x, T y) {
  switch (c) {
#define RK_CASE(e) \
  case Combine::e: if constexpr (combines<Combine::e, T>) return combine<Combine::e>(x, y); break;
    RK_COMBINES(RK_CASE)
#undef RK_CASE
  }
  return x;
}

template <class T>
T scaled(const Reduction& r, Reduction::Scale when, T x) {
  if constexpr (!std::is_integral_v<T>) {
    using enum Reduction::Scale;
    const auto factor = wide_t<T>(r.factor);
    if (r.scale == when && when == multiply_input) return scale<multiply_input>(x, factor);
    if (r.scale == when && when == divide_result) return scale<divide_result>(x, factor);
  }
  return x;
}

// Whether a rank gives its input; of a broadcast and of a message, the root alone.
inline bool reads(const Plan& plan, int rank) {
  return rank == plan.root ||
         (plan.collective != Collective::broadcast && plan.collective != Collective::send_recv);
}
// Whether a rank has an output. What lies where another one passes its own must stay.
inline bool writes(const Plan& plan, int rank) {
  if (plan.collective == Collective::reduce) return rank == plan.root;
  if (plan.collective == Collective::send_recv) return rank == plan.next(0, plan.root);
  return true;
}

// What each rank should hold, in the order in which the plan's chunks travel. `out`: what the
// outputs held before; where nothing is given, zeros.
template <class T>
std::vector<std::vector<T>> model(const Plan& plan, const Reduction& reduction,
                                  const std::vector<std::vector<T>>& in,
                                  std::vector<std::vector<T>> out = {}) {
  using enum Reduction::Scale;
  using enum Collective;
  const int k = plan.ranks;
  const int64_t n = plan.count;
  const Collective collective = plan.collective;
  const bool chain = collective == broadcast || collective == reduce || collective == send_recv;
  const bool reduces =
      collective != all_gather && collective != broadcast && collective != send_recv;
  out.resize(size_t(k));
  for (auto& x : out) x.resize(size_t(collective == all_gather ? n * k : n));
  for (int channel = 0; channel < plan.channels; ++channel)
    for (int64_t loop = 0; loop < plan.loops; ++loop)
      for (int part = 0; part < (chain ? 1 : k); ++part) {
        const Chunk c = plan.chunk_of(channel, loop, part);
        // Where the chunk is complete, or begins, and the ranks from there on.
        const int owner = chain ? plan.position(channel, plan.root) : part;
        const auto after = [&](int hops) { return plan.rank_at(channel, (owner + hops) % k); };
        for (int64_t i = 0; i < c.count; ++i) {
          const auto input = [&](int rank) {
            return scaled(reduction, multiply_input, in[size_t(rank)][size_t(c.in + i)]);
          };
          T x = input(after(reduces ? 1 : 0));
          if (reduces) {
            for (int hop = 2; hop <= k; ++hop)
              x = combined(reduction.combine, x, input(after(hop)));
            x = scaled(reduction, divide_result, x);
          }
          for (int rank = 0; rank < k; ++rank)
            if (writes(plan, rank) && (collective != reduce_scatter || rank == after(0)))
              out[size_t(rank)][size_t(c.out + i)] = x;
        }
      }
  return out;
}

// Of all ranks, in their order: small floats in floats, rounded once.
template <class T>
T wide_model(const Reduction& reduction, const std::vector<std::vector<T>>& in, size_t i) {
  using enum Reduction::Scale;
  if constexpr (is_small_float<T>) {
    float all = to_float(scaled(reduction, multiply_input, in[0][i]));
    for (size_t rank = 1; rank < in.size(); ++rank)
      all = combined(reduction.combine, all,
                     to_float(scaled(reduction, multiply_input, in[rank][i])));
    return from_float<T>(reduction.scale == divide_result ? all / float(reduction.factor) : all);
  }
  return in[0][i];
}

// What each rank should hold after a direct all-reduce: in the order of the ranks.
template <class T>
std::vector<std::vector<T>> direct_model(const Reduction& reduction,
                                         const std::vector<std::vector<T>>& in) {
  using enum Reduction::Scale;
  std::vector<T> out(in[0].size());
  for (size_t i = 0; i < out.size(); ++i) {
    if (reduction.wide && in.size() > 1) {
      out[i] = wide_model(reduction, in, i);
      continue;
    }
    out[i] = scaled(reduction, multiply_input, in[0][i]);
    for (size_t rank = 1; rank < in.size(); ++rank)
      out[i] = combined(reduction.combine, out[i], scaled(reduction, multiply_input, in[rank][i]));
    out[i] = scaled(reduction, divide_result, out[i]);
  }
  return std::vector<std::vector<T>>(in.size(), out);
}

}  // namespace ringkern::test
