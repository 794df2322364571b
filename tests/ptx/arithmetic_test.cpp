// The arithmetic of each kernel, as nvcc compiled it: every dtype, op, protocol and algorithm,
// bit-equal to the reference. `--pairs few`: the numbers at which arithmetic changes; some: also
// random bits, and all pairs of the floats of a byte; all: also those of its integers.
#include <cstring>
#include <random>

#include "check.h"
#include "cuda/model.h"
#include "ptx/kernels.h"
#include "reduce/dtype.h"
#include "simt/ring.h"

using namespace simt;

namespace {

constexpr size_t kSpecial = 2 * 7 * 4;

// Numbers of each sign, with exponents and mantissas at both ends and in the middle. Read as
// integers, 0, 1, -1, the smallest and the largest are among them.
uint64_t special(size_t i, int bits, int exponent_bits) {
  const int mantissa_bits = bits - 1 - exponent_bits;
  const uint64_t top = (uint64_t(1) << exponent_bits) - 1, all = (uint64_t(1) << mantissa_bits) - 1;
  const uint64_t exponents[] = {0, 1, top / 2 - 1, top / 2, top / 2 + 1, top - 1, top};
  const uint64_t mantissas[] = {0, 1, all / 2 + 1, all};
  return (i / 28) << (bits - 1) | exponents[i / 4 % 7] << mantissa_bits | mantissas[i % 4];
}

int exponent_bits_of(DType dtype) {
  if (size_of(dtype) == 1) return 4;
  if (dtype == DType::f16) return 5;
  return size_of(dtype) == 8 ? 11 : 8;
}

// The input of one of two ranks.
std::vector<std::byte> operands(DType dtype, int rank) {
  const auto bytes = size_t(size_of(dtype));
  const auto& words = ringkern::test::arguments();
  const std::string pairs = words.size() == 3 ? words[2] : "some";
  const bool all = pairs == "all", floating = kind_of(dtype) == ringkern::Kind::floating;
  const bool all_pairs = bytes == 1 && (all || (pairs == "some" && floating));
  const size_t each = all_pairs ? 256 : kSpecial;
  const size_t random_count = all_pairs || pairs == "few" ? 0 : all ? 16384 : 1024;
  std::mt19937_64 random(uint64_t(rank) + 1);
  std::vector<std::byte> made((each * each + random_count) * bytes);
  for (size_t i = 0; i < made.size() / bytes; ++i) {
    const size_t mine = rank == 0 ? i % each : i / each % each;
    uint64_t word = random();
    if (all_pairs) word = mine;
    else if (i < each * each) word = special(mine, int(bytes) * 8, exponent_bits_of(dtype));
    std::memcpy(made.data() + i * bytes, &word, bytes);
  }
  return made;
}

TAKES_OPTIONS;
Coverage coverage;

void check(Wish wish) {
  wish.trouble = Trouble::none;
  wish.ranks = 2;
  wish.channels = 1;
  wish.orders = 0;
  wish.find_races = false;
  const DType dtype = *wish.dtype;
  wish.operands = [dtype](int rank) { return operands(dtype, rank); };
  try {
    Ring(11, wish, coverage).run();
    if (wish.op == Op::sum) Ring(6, wish, coverage).run();
  } catch (const Failure& f) {
    FAIL_CHECK(std::string(name_of(dtype)) + " " + name_of(*wish.op) + ": " + f.what());
  }
}

// A direct all-reduce keeps small floats wide, or adds by a tree.
struct Mode {
  bool wide, tree;
};
constexpr Mode kModes[] = {{false, false}, {true, false}, {false, true}};
bool has_mode(DType dtype, Op op, bool wide, bool tree) {
  const Reduction r = Reduction::of(op, dtype, 2, 0.75, wide, tree);
  return (!wide || r.wide) && (!tree || r.tree);
}

template <class F>
void for_each_reduction(F f) {
  for (int d = 0; d < kDTypes; ++d)
    for (int o = 0; o < kOps; ++o)
      if (accepts(Op(o), kind_of(DType(d)))) f(DType(d), Op(o));
}

TEST_CASE("rings combine as the reference does") {
  for (int p = 0; p < kProtocols; ++p)
    for_each_reduction([&](DType dtype, Op op) {
      Wish wish;
      wish.protocol = Protocol(p), wish.direct = false, wish.clock = false;
      wish.dtype = dtype, wish.op = op;
      check(wish);
      wish.clock = true;  // another kernel
      if (dtype == DType::f32 && op == Op::sum) check(wish);
    });
}

TEST_CASE("direct all-reduces combine as the reference does") {
  for (const bool across : {false, true})
    for (const auto& [wide, tree] : kModes)
      for_each_reduction([&](DType dtype, Op op) {
        if (!has_mode(dtype, op, wide, tree)) return;
        Wish wish;
        wish.protocol = Protocol::ll, wish.direct = true, wish.norm = false;
        wish.dtype = dtype, wish.op = op, wish.wide = wide, wish.tree = tree, wish.across = across;
        check(wish);
      });
}

TEST_CASE("norms have the bits of their definition") {
  for (const bool wide : {false, true})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Wish wish;
      wish.protocol = Protocol::ll, wish.direct = true, wish.across = false, wish.norm = true;
      wish.dtype = dtype, wish.op = Op::sum, wish.wide = wide, wish.tree = false;
      check(wish);
    }
}

// Uses the kernel that reads all inputs and writes all outputs; those of rank 0 are separate.
void check_in_place(DType dtype, Op op, int ranks, const Mode& mode, int64_t start) {
  const auto [wide, tree] = mode;
  const Reduction reduction = Reduction::of(op, dtype, ranks, 0.75, wide, tree);
  if (!has_mode(dtype, op, wide, tree)) return;
  constexpr int threads = 64;
  std::vector<std::vector<std::byte>> in;
  for (int r = 0; r < ranks; ++r) {
    in.push_back(operands(dtype, r % 2));
    // The machine has 8192 threads, and by the tree each takes half as much.
    if (tree) in.back().resize(std::min<size_t>(in.back().size(), 60'000));
  }
  InPlaceArgs args;
  args.reduction = reduction;
  args.tensors.bytes = int64_t(in[0].size());
  args.tensors.ranks = ranks;
  args.tensors.aligned = start == 0;
  const auto blocks = int(div_up(args.tensors.bytes, (tree ? 8 : 16) * threads));
  Machine& m = machine();
  m.reset({}, 1, blocks, threads);
  for (int r = 0; r < ranks; ++r) {
    const auto add = [&](const char* name) {
      return m.memory().add(name, simt::Kind::own, 0, args.tensors.bytes + start) + start;
    };
    std::byte* from = add("the input");
    m.memory().write(from, in[size_t(r)].data(), args.tensors.bytes);
    args.tensors.in[r] = from;
    args.tensors.out[r] = r == 0 ? add("the output") : from;
  }
  Launch launch{call_of(in_place_kernel(dtype, reduction.combine, tree), args),
                {0},
                blocks,
                threads,
                nullptr,
                0};
  m.start(launch);
  m.run();
  with_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<std::vector<T>> inputs;
    for (const auto& bytes : in) {
      inputs.emplace_back(bytes.size() / sizeof(T));
      std::memcpy(inputs.back().data(), bytes.data(), bytes.size());
    }
    const auto expected = test::direct_model(reduction, inputs);
    for (int r = 0; r < ranks; ++r) {
      std::vector<T> out(inputs[0].size());
      m.memory().read(args.tensors.out[r], out.data(), args.tensors.bytes);
      if (std::memcmp(out.data(), expected[size_t(r)].data(), size_t(args.tensors.bytes)) != 0)
        FAIL_CHECK(std::string(name_of(dtype)) + " " + name_of(op) +
                   (wide   ? " in floats"
                    : tree ? " by a tree"
                           : "") +
                   ": rank " + std::to_string(r) + " of " + std::to_string(ranks) + " is wrong");
    }
  });
}

TEST_CASE("over the tensors themselves, ranks combine as the reference does") {
  for (const Mode& mode : kModes)
    for_each_reduction([&](DType dtype, Op op) {
      check_in_place(dtype, op, 2, mode, 0);
      check_in_place(dtype, op, 9, mode, size_of(dtype) % 16);  // more than are loaded at once
      if (mode.tree && op == Op::sum) check_in_place(dtype, op, 31, mode, 0);
    });
}

TEST_CASE("a ring of one multiplies as the reference does") {
  for (int d = 0; d < kDTypes; ++d)
    for (const Op op : {Op::sum, Op::premul_sum}) {
      const auto dtype = DType(d);
      if (!accepts(op, kind_of(dtype))) continue;
      const std::vector<std::byte> in = operands(dtype, 0);
      Machine& m = machine();
      m.reset({}, 1, 2, 64);
      AloneArgs args;
      std::byte* from = m.memory().add("the input", simt::Kind::own, 0, int64_t(in.size()));
      m.memory().write(from, in.data(), int64_t(in.size()));
      args.in = from;
      args.out = m.memory().add("the output", simt::Kind::own, 0, int64_t(in.size()));
      args.count = int64_t(in.size()) / size_of(dtype);
      args.reduction = Reduction::of(op, dtype, 1, 0.75);
      Launch launch{call_of(alone_kernel(dtype), args), {0}, 2, 64, nullptr, 0};
      m.start(launch);
      m.run();
      std::vector<std::byte> out(in.size());
      m.memory().read(args.out, out.data(), int64_t(out.size()));
      with_dtype(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        int wrong = 0;
        for (size_t i = 0; i < out.size(); i += sizeof(T)) {
          T x;
          std::memcpy(&x, &in[i], sizeof x);
          x = test::scaled(args.reduction, Reduction::Scale::multiply_input, x);
          wrong += std::memcmp(&x, &out[i], sizeof x) != 0;
        }
        CHECK_EQ(wrong, 0);
      });
    }
}

// After the cases above, which run it by every way of asking for it.
TEST_CASE("no kernel of a collective is left out") {
  for (const char* way : {"norm float32", "norm float16", "norm bfloat16", "norm one_shot",
                          "norm two_shot", "aligned 0", "aligned 1", "in place 0", "in place 1",
                          "one_shot more rounds", "two_shot more rounds", "across some"})
    if (coverage[way] == 0) FAIL_CHECK(std::string("not tried: ") + way);
  const auto moves_alone = [](const std::string& name) {
    return name.find("::probe(") != std::string::npos ||
           name.find("::messages(") != std::string::npos;
  };
  for (const auto& [name, kernel] : ptx::kernels())
    if (!moves_alone(name) && kernel.program == nullptr) FAIL_CHECK(name + " was not run");
  uint64_t statements = 0, run = 0;
  for (const auto& [name, kernel] : ptx::kernels())
    for (const uint8_t ran :
         kernel.program == nullptr ? std::vector<uint8_t>() : kernel.program->executed())
      ++statements, run += ran;
  std::printf("%zu kernels, of whose %lu statements %lu were run\n", ptx::kernels().size(),
              static_cast<unsigned long>(statements), static_cast<unsigned long>(run));
}

}  // namespace
