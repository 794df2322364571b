// Random calls of all kinds by a seed, with tensors whose results are known in every element.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/interfaces.h"
#include "cpu/arena.h"
#include "reduce/dtype.h"

namespace ringkern::faults {

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  int64_t below(int64_t n) { return int64_t(bits_() % uint64_t(n)); }
  bool one_in(int n) { return below(n) == 0; }
  template <class T, size_t N>
  T of(const T (&list)[N]) {
    return list[below(int64_t(N))];
  }

 private:
  std::mt19937_64 bits_;
};

// ---- calls --------------------------------------------------------------------------------------

struct Drawn {
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
  DType dtype = DType::f32;
  Op op = Op::sum;
  int root = 0;
  int64_t count = 0;
  bool shared = false;  // a tensor of ringkern.empty: the all-reduce copies nothing
  bool wide = false;    // accumulate="float32", where that makes a difference

  bool operator==(const Drawn&) const = default;
  bool reduces() const {
    return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
           collective == Collective::reduce;
  }
  bool has_root() const {
    return collective == Collective::broadcast || collective == Collective::reduce;
  }
};

inline std::string text_of(const Drawn& d) {
  return std::string(name_of(d.collective)) + " " + name_of(d.dtype) + "[" +
         std::to_string(d.count) + "]" + (d.reduces() ? std::string(" ") + name_of(d.op) : "") +
         " by " + name_of(d.algorithm) + "/" + name_of(d.protocol) +
         (d.has_root() ? ", root " + std::to_string(d.root) : "") + (d.shared ? ", shared" : "") +
         (d.wide ? ", in float32" : "");
}

struct Way {
  Algorithm algorithm;
  Protocol protocol;
};
inline constexpr Way kWays[] = {
    {Algorithm::ring, Protocol::simple},     {Algorithm::ring, Protocol::ll},
    {Algorithm::ring, Protocol::ll128},      {Algorithm::one_shot, Protocol::ll},
    {Algorithm::one_shot, Protocol::simple}, {Algorithm::two_shot, Protocol::simple}};
inline constexpr Collective kGathering[] = {Collective::reduce_scatter, Collective::all_gather,
                                            Collective::broadcast, Collective::reduce};
// The dtypes in which small whole numbers, and the sums of some of them, are exact.
inline constexpr DType kExactDTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                                         DType::i8,  DType::u8,  DType::i32, DType::i64};
inline constexpr Op kExactOps[] = {Op::sum, Op::min, Op::max, Op::avg};

constexpr int64_t kMostBytes = 4 << 20;

// Draws each power of two of bytes with equal probability, so that small calls are as likely as
// large ones.
inline int64_t draw_count(Random& random, DType dtype, int64_t most_bytes = kMostBytes) {
  int powers = 0;
  while ((int64_t(2) << powers) <= most_bytes) ++powers;
  const int64_t least = int64_t(1) << random.below(powers);
  return std::max<int64_t>(1, (least + random.below(least)) / size_of(dtype));
}

inline bool can_be_wide(const Drawn& d) {
  return is_small(d.dtype) && (d.op == Op::sum || d.op == Op::avg);
}

inline Drawn draw(Random& random, int ranks, int64_t most_bytes = kMostBytes) {
  Drawn d;
  d.dtype = random.of(kExactDTypes);
  do d.op = random.of(kExactOps);
  while (!accepts(d.op, kind_of(d.dtype)));
  d.count = draw_count(random, d.dtype, most_bytes);
  const Way way = random.of(kWays);
  d.algorithm = way.algorithm;
  d.protocol = way.protocol;
  if (random.one_in(3)) {
    d.collective = random.of(kGathering);
    d.algorithm = Algorithm::ring;
    d.protocol = Protocol(random.below(kProtocols));
    if (d.has_root()) d.root = int(random.below(ranks));
    const bool of_all =
        d.collective == Collective::reduce_scatter || d.collective == Collective::all_gather;
    if (of_all) d.count = std::max<int64_t>(1, d.count / ranks);  // per rank
  }
  d.shared = d.algorithm == Algorithm::two_shot && random.one_in(2);
  if (!d.reduces()) d.op = Op::sum;
  d.wide = d.algorithm != Algorithm::ring && can_be_wide(d) && random.one_in(2);
  return d;
}

// ---- tensors ------------------------------------------------------------------------------------

// Element i of a rank's input, and so of every rank's result, equals element i + 11.
class Tensors {
 public:
  Tensors(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  ~Tensors() {
    if (shared_ != nullptr) cpu::Arena::mine().free(shared_);
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  // `salt` is the same on all ranks, and differs from call to call.
  Task task(const Drawn& d, int64_t salt) {
    Task task;
    task.collective = d.collective;
    task.algorithm = d.algorithm;
    task.protocol = d.protocol;
    task.reduction = Reduction::of(d.op, d.dtype, ranks_, /*factor=*/1.0, d.wide);
    task.count = d.count;
    task.root = d.root;
    const auto [in, out] = counts(d);
    void* const input = d.shared ? shared_bytes() : grown(in_, in * size_of(d.dtype));
    fill(d, input, in, [&](int64_t i) { return value(salt, rank_, i); });
    task.in = task.out = input;
    if (d.collective != Collective::all_reduce) {
      task.out = grown(out_, out * size_of(d.dtype));
      fill(d, task.out, out, [](int64_t) { return -1.0; });
    }
    return task;
  }

  // Returns the fault in the result; empty: none.
  std::string wrong(const Drawn& d, const Task& task, int64_t salt) const {
    if (d.collective == Collective::reduce && rank_ != d.root) return "";
    const auto [in, out] = counts(d);
    const int64_t part = d.collective == Collective::all_gather ? d.count : out;
    std::string text;
    for (int64_t first = 0, of = 0; first < out && text.empty(); first += part, ++of) {
      const auto wanted = [&](int64_t i) { return result(d, salt, int(of), i); };
      text = first_wrong(d, static_cast<const std::byte*>(task.out) + first * size_of(d.dtype),
                         part, wanted);
    }
    return text;
  }

 private:
  static constexpr int kPeriod = 11;

  static double value(int64_t salt, int rank, int64_t i) {
    return double((i * 7 + salt) % kPeriod + rank);
  }

  double result(const Drawn& d, int64_t salt, int of, int64_t i) const {
    if (d.collective == Collective::all_gather) return value(salt, of, i);
    if (d.collective == Collective::broadcast) return value(salt, d.root, i);
    const int64_t at = d.collective == Collective::reduce_scatter ? rank_ * d.count + i : i;
    const double least = value(salt, 0, at), most = value(salt, ranks_ - 1, at);
    const double sum = ranks_ * (least + most) / 2;
    return d.op == Op::min ? least : d.op == Op::max ? most : d.op == Op::avg ? sum / ranks_ : sum;
  }

  std::pair<int64_t, int64_t> counts(const Drawn& d) const {
    return {d.collective == Collective::reduce_scatter ? ranks_ * d.count : d.count,
            d.collective == Collective::all_gather ? ranks_ * d.count : d.count};
  }

  template <class T>
  static T as(double value) {
    if constexpr (is_small_float<T>) return from_float<T>(float(value));
    else return T(value);
  }

  template <class F>
  static void fill(const Drawn& d, void* to, int64_t count, F&& value_at) {
    with_dtype(d.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T period[kPeriod];
      for (int i = 0; i < kPeriod; ++i) period[i] = as<T>(value_at(i));
      for (int64_t i = 0; i < count; i += kPeriod)
        std::memcpy(static_cast<T*>(to) + i, period,
                    size_t(std::min<int64_t>(kPeriod, count - i)) * sizeof(T));
    });
  }

  template <class F>
  static std::string first_wrong(const Drawn& d, const void* at, int64_t count, F&& value_at) {
    std::string text;
    with_dtype(d.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* const have = static_cast<const T*>(at);
      T period[kPeriod];
      for (int i = 0; i < kPeriod; ++i) period[i] = as<T>(value_at(i));
      for (int64_t i = 0; i < count; i += kPeriod) {
        const int64_t n = std::min<int64_t>(kPeriod, count - i);
        if (std::memcmp(have + i, period, size_t(n) * sizeof(T)) == 0) continue;
        int64_t j = 0;
        while (std::memcmp(have + i + j, period + j, sizeof(T)) == 0) ++j;
        text = "wrong result of " + text_of(d) + " at element " + std::to_string(i + j);
        return;
      }
    });
    return text;
  }

  static void* grown(std::vector<std::byte>& bytes, int64_t size) {
    if (bytes.size() < size_t(size)) bytes.resize(size_t(size));
    return bytes.data();
  }
  void* shared_bytes() {
    if (shared_ == nullptr) shared_ = cpu::Arena::mine().allocate(2 * kMostBytes);
    return shared_;
  }

  const int rank_, ranks_;
  std::vector<std::byte> in_, out_;
  void* shared_ = nullptr;
};

}  // namespace ringkern::faults
