// The tables of dtypes, ops, protocols, algorithms and collectives. Names, sizes, dispatch, the
// Python enumerations and the tables of the documentation are generated from them.
#pragma once

#include "core/config.h"

namespace ringkern {

// `logical` values are 0 and 1: sum means or, product means and.
enum class Kind : uint8_t { floating, integer, logical };

//        name   torch's name       bytes kind
#define RK_DTYPES(X)                        \
  X(f32, "float32", 4, floating)            \
  X(f64, "float64", 8, floating)            \
  X(f16, "float16", 2, floating)            \
  X(bf16, "bfloat16", 2, floating)          \
  X(i8, "int8", 1, integer)                 \
  X(u8, "uint8", 1, integer)                \
  X(i16, "int16", 2, integer)               \
  X(i32, "int32", 4, integer)               \
  X(i64, "int64", 8, integer)               \
  X(boolean, "bool", 1, logical)            \
  X(e4m3, "float8_e4m3fn", 1, floating)     \
  X(e5m2, "float8_e5m2", 1, floating)

// Dtypes that can be moved but not reduced.
//        torch's name  bytes
#define RK_MOVED_DTYPES(X)    \
  X("uint16", 2)              \
  X("uint32", 4)              \
  X("uint64", 8)              \
  X("complex32", 4)           \
  X("complex64", 8)           \
  X("complex128", 16)         \
  X("float8_e4m3fnuz", 1)     \
  X("float8_e5m2fnuz", 1)     \
  X("float8_e8m0fnu", 1)      \
  X("float4_e2m1fn_x2", 1)

// Operations that combine two partial results. `avg` and `premul_sum` are sums with a scale, below.
#define RK_COMBINES(X) X(sum) X(prod) X(min) X(max) X(band) X(bor) X(bxor)

//      name        combine  floats others  what it means
#define RK_OPS(X)                                                        \
  X(sum, sum, true, true, "sum of all ranks")                            \
  X(prod, prod, true, true, "product of all ranks")                      \
  X(min, min, true, true, "smallest; NaN if any rank holds NaN")         \
  X(max, max, true, true, "largest; NaN if any rank holds NaN")          \
  X(avg, sum, true, false, "sum, divided by the number of ranks")        \
  X(premul_sum, sum, true, false, "sum of each rank's input times a factor") \
  X(band, band, false, true, "bitwise and")                              \
  X(bor, bor, false, true, "bitwise or")                                 \
  X(bxor, bxor, false, true, "bitwise exclusive or")

#define RK_PROTOCOLS(X) X(simple) X(ll) X(ll128)

// Algorithms of an all-reduce: round the ring, or directly between all ranks (core/direct.h).
#define RK_ALGORITHMS(X) X(ring) X(one_shot) X(two_shot)

// The first three use the whole ring. The others are chains along it; `send_recv` is a chain of one
// hop, from the root to the next rank.
#define RK_COLLECTIVES(X) \
  X(all_reduce) X(reduce_scatter) X(all_gather) X(broadcast) X(reduce) X(send_recv)

#define RK_ENUMERATOR(name, ...) name,
#define RK_ONE(...) +1

enum class DType : uint8_t { RK_DTYPES(RK_ENUMERATOR) };
enum class Combine : uint8_t { RK_COMBINES(RK_ENUMERATOR) };
enum class Op : uint8_t { RK_OPS(RK_ENUMERATOR) };
enum class Protocol : uint8_t { RK_PROTOCOLS(RK_ENUMERATOR) };
enum class Algorithm : uint8_t { RK_ALGORITHMS(RK_ENUMERATOR) };
enum class Collective : uint8_t { RK_COLLECTIVES(RK_ENUMERATOR) };

inline constexpr int kDTypes = 0 RK_DTYPES(RK_ONE);
inline constexpr int kCombines = 0 RK_COMBINES(RK_ONE);
inline constexpr int kOps = 0 RK_OPS(RK_ONE);
inline constexpr int kProtocols = 0 RK_PROTOCOLS(RK_ONE);
inline constexpr int kAlgorithms = 0 RK_ALGORITHMS(RK_ONE);
inline constexpr int kCollectives = 0 RK_COLLECTIVES(RK_ONE);

// Returns true if errors name the collective's root. The root of send_recv is its sender.
constexpr bool has_root(Collective c) {
  return c == Collective::broadcast || c == Collective::reduce;
}

RK_HD constexpr const char* name_of(DType t) {
  switch (t) {
#define RK_CASE(e, n, ...) case DType::e: return n;
    RK_DTYPES(RK_CASE)
#undef RK_CASE
  }
  return "?";
}

RK_HD constexpr int size_of(DType t) {
  switch (t) {
#define RK_CASE(e, n, bytes, ...) case DType::e: return bytes;
    RK_DTYPES(RK_CASE)
#undef RK_CASE
  }
  return 0;
}

RK_HD constexpr Kind kind_of(DType t) {
  switch (t) {
#define RK_CASE(e, n, bytes, kind) case DType::e: return Kind::kind;
    RK_DTYPES(RK_CASE)
#undef RK_CASE
  }
  return Kind::floating;
}

// The dtypes of elements that travel as bytes, one index for each torch name above. Index 0: not
// given; the last index: any other dtype.
struct MovedDType {
  const char* name;
  int bytes;
};
inline constexpr MovedDType kMoved[] = {{"uint8", 1},
#define RK_ROW(e, name, bytes, ...) {name, bytes},
                                        RK_DTYPES(RK_ROW)
#undef RK_ROW
#define RK_ROW(name, bytes) {name, bytes},
                                            RK_MOVED_DTYPES(RK_ROW)
#undef RK_ROW
                                                {"another dtype", 1}};
inline constexpr int kMovedDTypes = int(sizeof kMoved / sizeof kMoved[0]);

#define RK_CASE(e, ...) case decltype(v)::e: return #e;
// clang-format off: a table
constexpr const char* name_of(Op v) { switch (v) { RK_OPS(RK_CASE) } return "?"; }
constexpr const char* name_of(Protocol v) { switch (v) { RK_PROTOCOLS(RK_CASE) } return "?"; }
constexpr const char* name_of(Algorithm v) { switch (v) { RK_ALGORITHMS(RK_CASE) } return "?"; }
constexpr const char* name_of(Collective v) { switch (v) { RK_COLLECTIVES(RK_CASE) } return "?"; }
// clang-format on
#undef RK_CASE

RK_HD constexpr Combine combine_of(Op op) {
  switch (op) {
#define RK_CASE(e, combine, ...) case Op::e: return Combine::combine;
    RK_OPS(RK_CASE)
#undef RK_CASE
  }
  return Combine::sum;
}

constexpr bool accepts(Op op, Kind kind) {
  switch (op) {
#define RK_CASE(e, combine, floats, others, ...) \
  case Op::e: return kind == Kind::floating ? floats : others;
    RK_OPS(RK_CASE)
#undef RK_CASE
  }
  return false;
}

// Returns true for floats of less than 32 bits, which are computed in float32.
constexpr bool is_small(DType t) { return kind_of(t) == Kind::floating && size_of(t) < 4; }

// The arithmetic of one collective. A scale is applied either to a rank's input before it is
// combined (premul_sum), or once to the finished result, by the rank that finishes a chunk (avg).
//
// Small floats are rounded to their dtype after each combination, and partial results travel in
// that dtype. `wide` sums and products stay float32 over all ranks, including the division, and are
// rounded once. This needs an all-reduce with every rank's input at hand (core/direct.h). A rank's
// contribution always has the dtype: the product with the factor of premul_sum is rounded.
//
// `tree` sums are added in the order of core/tree.h, a shard a rank, and not from rank 0 up. Small
// floats are then `wide`.
struct Reduction {
  DType dtype = DType::f32;
  Combine combine = Combine::sum;
  enum class Scale : uint8_t { none, multiply_input, divide_result } scale = Scale::none;
  bool wide = false;
  bool tree = false;
  double factor = 1.0;  // multiplier or divisor

  constexpr bool can_be_wide() const {
    return is_small(dtype) && (combine == Combine::sum || combine == Combine::prod);
  }
  constexpr bool can_be_tree() const {
    return kind_of(dtype) == Kind::floating && combine == Combine::sum;
  }
  // `wide` and `tree` are dropped where they change nothing, so that the call is equal to one
  // without them.
  static constexpr Reduction of(Op op, DType dtype, int ranks, double factor = 1.0,
                                bool wide = false, bool tree = false) {
    Reduction r{dtype, combine_of(op)};
    if (kind_of(dtype) == Kind::logical) {
      if (r.combine == Combine::sum) r.combine = Combine::max;
      if (r.combine == Combine::prod) r.combine = Combine::min;
    }
    r.tree = tree && r.can_be_tree();
    r.wide = (wide || r.tree) && r.can_be_wide();
    if (op == Op::avg) r.scale = Scale::divide_result, r.factor = ranks;
    if (op == Op::premul_sum) r.scale = Scale::multiply_input, r.factor = factor;
    return r;
  }
};

}  // namespace ringkern
