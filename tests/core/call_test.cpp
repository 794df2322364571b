// A call in two words: every field is in them, apart from the others. And the forecast of calls.
#include "core/call.h"

#include <set>
#include <vector>

#include "check.h"
#include "hosts/forecast.h"

using namespace ringkern;

namespace {

TEST_CASE("every field of a call is read back from its words") {
  std::set<uint64_t> all;
  size_t calls = 0;
  for (int d = 0; d < kDTypes; ++d)
    for (int op = 0; op < kOps; ++op)
      for (const int mode : {0, 1, 2, 3}) {
        const bool wide = mode & 1, tree = mode & 2;
        const Reduction r = Reduction::of(Op(op), DType(d), 3, 0.5, wide, tree);
        if (wide != r.wide || tree != r.tree) continue;  // the same call as another
        if (r.combine != combine_of(Op(op))) continue;   // the same call as of another op
        CHECK_EQ(reduction_bits(r) >> kReductionBits, uint64_t(0));
        for (int c = 0; c < kCollectives; ++c)
          for (int a = 0; a < kAlgorithms; ++a)
            for (int p = 0; p < kProtocols; ++p)
              for (const int root : {0, 1, kMaxRanks - 1}) {
                const int moved = int(calls % kMovedDTypes);
                const CallWords words =
                    words_of(Collective(c), r, Algorithm(a), Protocol(p), root, 1000 + d, moved);
                const CallFields f = fields_of(words.what);
                CHECK_EQ(f.dtype, unsigned(d));
                CHECK_EQ(f.combine, unsigned(r.combine));
                CHECK_EQ(f.scale, unsigned(r.scale));
                CHECK_EQ(f.wide, unsigned(r.wide));
                CHECK_EQ(f.tree, unsigned(tree));
                CHECK_EQ(f.collective, unsigned(c));
                CHECK_EQ(f.algorithm, unsigned(a));
                CHECK_EQ(f.protocol, unsigned(p));
                CHECK_EQ(f.root, unsigned(root));
                CHECK_EQ(f.moved, unsigned(moved));
                CHECK_EQ(f.spans_hosts, 0u);
                CHECK_EQ(fields_of(words.what | kSpansHosts).spans_hosts, 1u);
                CHECK_EQ(words.count, int64_t(1000 + d));
                all.insert(words.what);
                ++calls;
              }
      }
  CHECK_EQ(all.size(), calls);
}

// Where nothing is rounded before the end, or nothing at all, it is not there to differ in.
TEST_CASE("only sums and products of small floats can be wide") {
  for (int d = 0; d < kDTypes; ++d)
    for (int op = 0; op < kOps; ++op) {
      const bool small = kind_of(DType(d)) == Kind::floating && size_of(DType(d)) < 4;
      const bool rounds =
          Op(op) == Op::sum || Op(op) == Op::avg || Op(op) == Op::premul_sum || Op(op) == Op::prod;
      CHECK_EQ(Reduction::of(Op(op), DType(d), 3, 1.0, true).wide, small && rounds);
      CHECK(!Reduction::of(Op(op), DType(d), 3).wide);
    }
}

TEST_CASE("only sums of floats are added by a tree") {
  for (int d = 0; d < kDTypes; ++d)
    for (int op = 0; op < kOps; ++op) {
      const bool sum = combine_of(Op(op)) == Combine::sum;
      const Reduction r = Reduction::of(Op(op), DType(d), 3, 1.0, /*wide=*/false, /*tree=*/true);
      CHECK_EQ(r.tree, sum && kind_of(DType(d)) == Kind::floating);
      CHECK_EQ(r.wide, r.tree && is_small(DType(d)));
    }
}

TEST_CASE("the sum of booleans is their or") {
  const auto combine_of_booleans = [](Op op) {
    return Reduction::of(op, DType::boolean, 3).combine;
  };
  CHECK(combine_of_booleans(Op::sum) == Combine::max);
  CHECK(combine_of_booleans(Op::prod) == Combine::min);
  for (const Op op : {Op::min, Op::max, Op::band, Op::bor, Op::bxor})
    CHECK(combine_of_booleans(op) == combine_of(op));
  for (const Op op : {Op::avg, Op::premul_sum}) CHECK(!accepts(op, kind_of(DType::boolean)));
}

CallWords sum_of(int64_t count) {
  return words_of(Collective::all_reduce, {DType::f32}, Algorithm::ring, {}, 0, count);
}

// Notes `counts` from call `seq` on; returns how many of them were expected.
int expected(Forecast& forecast, uint64_t& seq, const std::vector<int64_t>& counts) {
  int n = 0;
  for (const int64_t count : counts) n += forecast.note(seq++, sum_of(count));
  return n;
}

TEST_CASE("a call is expected where it has followed before") {
  Forecast forecast;
  uint64_t seq = 1;
  CHECK_EQ(expected(forecast, seq, {7, 7, 7, 7}), 3);  // from the second on
  seq += 5;
  CHECK_EQ(expected(forecast, seq, {8, 8, 8, 8}), 3);  // also after calls that went elsewhere
  const std::vector<int64_t> round{1, 2, 3, 1, 1, 1, 4, 2, 5, 6};
  expected(forecast, seq, round);
  expected(forecast, seq, round);  // its end goes over into its beginning for the first time
  for (int i = 0; i < 3; ++i) CHECK_EQ(expected(forecast, seq, round), 10);

  Forecast other = forecast;  // that of a rank that makes other calls next
  uint64_t at = seq;
  CHECK_EQ(expected(other, at, {1, 2, 4}), 2);
  CHECK(!other.note(at, words_of(Collective::broadcast, {DType::f32}, Algorithm::ring, {}, 0, 1)));
  CHECK(!Forecast(forecast).note(seq + 1, sum_of(1)));  // with another call in between
}

TEST_CASE("a forecast that is full expects no call that is new") {
  Forecast forecast;
  uint64_t seq = 1;
  std::vector<int64_t> many;
  for (int64_t i = 1; i < 100'000; ++i) many.push_back(i);  // more than it can hold
  CHECK_EQ(expected(forecast, seq, many), 0);
}

}  // namespace
