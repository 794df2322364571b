// The bits of an element of a direct all-reduce depend only on the ranks' values of that element.
// They do not depend on its place in the tensor, its neighbours, the length, the address of the
// tensor, the algorithm or the protocol. In the ring an element's place decides which rank's value
// is first. Sums by a tree have those of its definition.
#include <cmath>

#include "thread_ring.h"

using namespace ringkern;
using namespace ringkern::test;

namespace {

constexpr int64_t kPool = 2000;  // elements that tensors are made of

struct Path : Way {
  bool shared = false;  // in the ranks' arenas: reduced in place
};
constexpr Path kPaths[] = {{{Algorithm::one_shot, Protocol::ll}},
                           {{Algorithm::one_shot, Protocol::simple}},
                           {{Algorithm::two_shot, Protocol::simple}},
                           {{Algorithm::two_shot, Protocol::simple}, true}};

// For each rank, numbers whose sums and products are rounded, some of them special values.
template <class T>
std::vector<std::vector<T>> pool(int ranks, std::mt19937_64& random, bool multiplied) {
  std::normal_distribution<double> normal;
  std::vector<std::vector<T>> all;
  for (int r = 0; r < ranks; ++r) {
    all.emplace_back();
    for (int64_t i = 0; i < kPool; ++i) {
      const double x = multiplied ? std::exp(0.3 * normal(random)) : normal(random);
      const double special[] = {INFINITY, -INFINITY, NAN, -0.0, 1e-7, 5e4};
      const double value = random() % 64 == 0 ? special[random() % 6] : x;
      if constexpr (is_small_float<T>) all.back().push_back(from_float<T>(float(value)));
      else all.back().push_back(T(value));
    }
  }
  return all;
}

// A tensor: the pool's elements in it, in order, and its offset.
struct Message {
  std::vector<int64_t> of;
  int misaligned = 0;
  bool in_place = true;
};

std::vector<int64_t> run_of(int64_t first, int64_t count) {
  std::vector<int64_t> of(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) of[size_t(i)] = (first + i) % kPool;
  return of;
}

std::vector<Message> messages(std::mt19937_64& random, int64_t longest) {
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  std::vector<Message> all{{run_of(0, kPool)}};
  for (int i = 0; i < 4; ++i) {  // slices
    const int64_t first = below(kPool);
    all.push_back({run_of(first, 1 + below(i < 2 ? 40 : kPool - first))});
  }
  for (int i = 0; i < 2; ++i) {  // the same with other elements before and after it
    std::vector<int64_t> of = run_of(below(kPool), 1 + below(200));
    const auto whole = run_of(100 * i, 700), after = run_of(below(kPool), below(200));
    of.insert(of.end(), whole.begin(), whole.end());
    of.insert(of.end(), after.begin(), after.end());
    all.push_back({of});
  }
  all.push_back({run_of(0, kPool)});  // every element at another place
  std::shuffle(all.back().of.begin(), all.back().of.end(), random);
  if (longest > 0) all.push_back({run_of(below(kPool), longest)});
  for (Message& message : all) {
    message.misaligned = int(below(16));
    message.in_place = below(2) == 0;
  }
  return all;
}

template <class T>
void check_messages(ThreadRing& ring, const Path& way, const Reduction& reduction,
                    const std::vector<Message>& messages, const std::vector<std::vector<T>>& in,
                    const std::vector<T>& result) {
  const auto errors = ring.on_threads([&](int rank) {
    int64_t most = 0;
    for (const Message& m : messages) most = std::max(most, int64_t(m.of.size()));
    const size_t bytes = size_t(most) * sizeof(T) + 64;
    Bytes memory(bytes), other(bytes);
    void* const arena = way.shared ? ring.arena(rank).allocate(int64_t(bytes)) : nullptr;
    for (const Message& m : messages) {
      std::byte* const from =
          static_cast<std::byte*>(way.shared ? arena : memory.data()) + m.misaligned;
      std::byte* const to = way.shared || m.in_place
                                ? from
                                : reinterpret_cast<std::byte*>(other.data()) + m.misaligned / 2;
      for (size_t i = 0; i < m.of.size(); ++i)
        std::memcpy(from + i * sizeof(T), &in[size_t(rank)][size_t(m.of[i])], sizeof(T));
      const uint64_t staged = ring.board(rank).staged.rounds;
      Task task{Collective::all_reduce, way.protocol, reduction, from, to, int64_t(m.of.size())};
      task.algorithm = way.algorithm;
      ring.engine(rank).run(task);
      // Otherwise the test would prove nothing.
      if (way.shared && reduction.scale != Reduction::Scale::multiply_input)
        CHECK_EQ(ring.board(rank).staged.rounds, staged);
      for (size_t i = 0; i < m.of.size(); ++i)
        if (std::memcmp(to + i * sizeof(T), &result[size_t(m.of[i])], sizeof(T)) != 0)
          FAIL_CHECK(std::string("element ") + std::to_string(i) + " of " +
                     name_of(reduction.dtype) + "[" + std::to_string(m.of.size()) + "], " +
                     std::to_string(m.of[i]) + " of the pool, has other bits by " +
                     name_of(way.algorithm) + ", " + name_of(way.protocol) +
                     (way.shared ? " in place" : "") + ", " + std::to_string(ring.ranks()) +
                     " ranks" + (reduction.wide ? ", wide" : "") +
                     (reduction.tree ? ", by tree" : ""));
    }
    if (arena != nullptr) ring.arena(rank).free(arena);
  });
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

template <class T>
int64_t differing(const std::vector<T>& a, const std::vector<T>& b) {
  int64_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return n;
}

template <DType D>
void every_way(std::vector<std::unique_ptr<ThreadRing>>& rings, Op op, bool wide, bool tree,
               uint64_t seed) {
  using T = storage_t<D>;
  const int ranks = rings[0]->ranks();
  std::mt19937_64 random(seed);
  const auto in = pool<T>(ranks, random, op == Op::prod);
  const Reduction reduction = Reduction::of(op, D, ranks, 0.3, wide, tree);
  const auto in_order = [&](const Reduction& by, bool backwards) {
    std::vector<const T*> inputs;
    for (const auto& one : in) inputs.push_back(one.data());
    if (backwards) std::reverse(inputs.begin(), inputs.end());
    std::vector<T> all;
    for (int64_t i = 0; i < kPool; ++i) all.push_back(finished(by, inputs, i, ranks - 1));
    return all;
  };
  const std::vector<T> result = in_order(reduction, false);
  if (ranks > 2) {  // otherwise any order, or no floats, would pass
    if (op != Op::min && op != Op::max && sizeof(T) > 1 && !wide && !tree)
      CHECK(differing(result, in_order(reduction, true)) > kPool / 100);
    const Reduction plain = Reduction::of(op, D, ranks, 0.3);
    if (reduction.wide || reduction.tree) CHECK(differing(result, in_order(plain, false)) > 10);
  }
  for (size_t w = 0; w < std::size(kPaths); ++w) {
    // More rounds than slots, of one operation.
    const int64_t longest = op == Op::avg && ranks == 3 ? (3 << 19) / int64_t(sizeof(T)) : 0;
    check_messages<T>(*rings[w], kPaths[w], reduction, messages(random, longest), in, result);
  }
}

TEST_CASE("every way gives the same bits") {
  uint64_t seed = 0;
  for (int ranks = 2; ranks <= 5; ++ranks) {
    // One for each way, so that each is in step with itself alone.
    std::vector<std::unique_ptr<ThreadRing>> rings;
    for (size_t w = 0; w < std::size(kPaths); ++w)
      rings.push_back(std::make_unique<ThreadRing>(ranks, cpu::default_geometry(),
                                                   std::chrono::seconds(60), 8 << 20));
    for (const Op op : {Op::sum, Op::avg, Op::premul_sum, Op::prod, Op::min, Op::max})
      for (const auto& [wide, tree] :
           {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        if (tree && (ranks < 4 || combine_of(op) != Combine::sum)) continue;
        every_way<DType::f16>(rings, op, wide, tree, ++seed);
        every_way<DType::bf16>(rings, op, wide, tree, ++seed);
        every_way<DType::e4m3>(rings, op, wide, tree, ++seed);
        every_way<DType::e5m2>(rings, op, wide, tree, ++seed);
        if (wide) continue;
        every_way<DType::f32>(rings, op, wide, tree, ++seed);
        every_way<DType::f64>(rings, op, wide, tree, ++seed);
      }
  }
}

}  // namespace
