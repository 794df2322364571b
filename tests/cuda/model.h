// The exact outputs of a ring, or of a direct all-reduce, on every rank, by the definition of the
// collectives. Independent of CUDA; tests compare the kernels with it.
#pragma once

#include <random>
#include <stdexcept>
#include <string>
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
  throw std::logic_error("no such operation");
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

// Returns true if a rank's input is used; in a broadcast and a message, only the root's is.
inline bool reads(const Plan& plan, int rank) {
  return rank == plan.root ||
         (plan.collective != Collective::broadcast && plan.collective != Collective::send_recv);
}
// Returns true if a rank has an output. Otherwise its memory must stay unchanged.
inline bool writes(const Plan& plan, int rank) {
  if (plan.collective == Collective::reduce) return rank == plan.root;
  if (plan.collective == Collective::send_recv)
    return rank == plan.orders.next(0, plan.root, plan.ranks);
  return true;
}

// The place where an element is finished: a channel, and a position on that channel's ring.
struct Finisher {
  int channel = -1, position = -1;
};

// Returns the finishers of the elements that a plan cuts: of the tensor, in an all-reduce, and
// otherwise of a shard, or of the one tensor of a chain. They determine the order of the addition.
// The model takes nothing else from the code under test.
inline std::vector<Finisher> finishers(const Plan& plan) {
  std::vector<Finisher> all(static_cast<size_t>(plan.count));
  for (int channel = 0; channel < plan.channels; ++channel)
    for (int64_t loop = 0; loop < plan.loops; ++loop)
      for (int part = 0; part < plan.parts(); ++part) {
        const Chunk c = plan.chunk_of(channel, loop, part);
        const int64_t first = plan.collective == Collective::all_gather ? c.in : c.out;
        for (int64_t i = first; i < first + c.count; ++i) {
          if (i < 0 || i >= plan.count || all[size_t(i)].channel >= 0)
            throw std::logic_error("the plan has element " + std::to_string(i) + " once too often");
          all[size_t(i)] = {channel, part};
        }
      }
  for (const Finisher& one : all)
    if (one.channel < 0) throw std::logic_error("the plan leaves elements out");
  return all;
}

// Returns the outputs of all ranks by the definition of each collective: shard r belongs to rank r,
// wherever on the rings it stands. `out`: the outputs before; where nothing is given, zeros.
template <class T>
std::vector<std::vector<T>> model(const Plan& plan, const Reduction& reduction,
                                  const std::vector<std::vector<T>>& in,
                                  std::vector<std::vector<T>> out = {}) {
  using enum Reduction::Scale;
  using enum Collective;
  const int k = plan.ranks;
  const int64_t n = plan.count;
  const RingOrders& orders = plan.orders;
  const std::vector<Finisher> finisher = finishers(plan);
  const auto given = [&](int rank, int64_t i) {
    return scaled(reduction, multiply_input, in[size_t(rank)][size_t(i)]);
  };
  // Element `at` of all inputs, from the rank behind the last one on.
  const auto sum = [&](int channel, int last, int64_t at) {
    const auto input = [&](int hop) {
      return given(orders.rank_at(channel, (last + hop) % k), at);
    };
    T x = input(1);
    for (int hop = 2; hop <= k; ++hop) x = combined(reduction.combine, x, input(hop));
    return scaled(reduction, divide_result, x);
  };
  const auto value = [&](int rank, int64_t i) {
    if (plan.collective == all_gather) return given(int(i / n), i % n);
    if (plan.collective == broadcast || plan.collective == send_recv) return given(plan.root, i);
    const auto [channel, position] = finisher[size_t(i)];
    if (plan.collective == all_reduce) return sum(channel, position, i);
    if (plan.collective == reduce) return sum(channel, orders.position_of(channel, plan.root), i);
    return sum(channel, orders.position_of(channel, rank), rank * n + i);
  };
  out.resize(size_t(k));
  for (int rank = 0; rank < k; ++rank) {
    auto& mine = out[size_t(rank)];
    mine.resize(size_t(plan.collective == all_gather ? n * k : n));
    if (!writes(plan, rank)) continue;
    if (rank > 0 && plan.collective == all_reduce) mine = out[0];
    else
      for (size_t i = 0; i < mine.size(); ++i) mine[i] = value(rank, int64_t(i));
  }
  return out;
}

// The sum of consecutive ranks by the definition of the tree, from the top: the left operand has
// the largest power of two that is less than all.
template <class T, class Input>
T sum_by_tree(const Input& input, int first, int count) {
  if (count == 1) return input(first);
  int left = 1;
  while (2 * left < count) left *= 2;
  return combined(Combine::sum, sum_by_tree<T>(input, first, left),
                  sum_by_tree<T>(input, first + left, count - left));
}

// All ranks: small floats combined in float32, rounded once.
template <class T>
T wide_model(const Reduction& reduction, const std::vector<std::vector<T>>& in, size_t i) {
  using enum Reduction::Scale;
  if constexpr (is_small_float<T>) {
    const auto input = [&](int rank) {
      return to_float(scaled(reduction, multiply_input, in[size_t(rank)][i]));
    };
    const int k = int(in.size());
    float all = reduction.tree ? sum_by_tree<float>(input, 0, k) : input(0);
    for (int rank = 1; rank < k && !reduction.tree; ++rank)
      all = combined(reduction.combine, all, input(rank));
    return from_float<T>(reduction.scale == divide_result ? all / float(reduction.factor) : all);
  }
  return in[0][i];
}

// Returns the results of a direct all-reduce on each rank: in the order of the ranks, or of the
// tree.
template <class T>
std::vector<std::vector<T>> direct_model(const Reduction& reduction,
                                         const std::vector<std::vector<T>>& in) {
  using enum Reduction::Scale;
  const int k = int(in.size());
  std::vector<T> out(in[0].size());
  for (size_t i = 0; i < out.size(); ++i) {
    if (reduction.wide && k > 1) {
      out[i] = wide_model(reduction, in, i);
      continue;
    }
    const auto input = [&](int rank) {
      return scaled(reduction, multiply_input, in[size_t(rank)][i]);
    };
    out[i] = reduction.tree ? sum_by_tree<T>(input, 0, k) : input(0);
    for (int rank = 1; rank < k && !reduction.tree; ++rank)
      out[i] = combined(reduction.combine, out[i], input(rank));
    out[i] = scaled(reduction, divide_result, out[i]);
  }
  return std::vector<std::vector<T>>(in.size(), out);
}

}  // namespace ringkern::test
