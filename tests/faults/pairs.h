// Two calls that ranks should have made equal.
#pragma once

#include <string>

#include "drawn.h"

namespace ringkern::faults {

enum class Field { collective, dtype, op, accumulate, numel, root, algorithm, protocol, order };
inline constexpr int kFields = int(Field::order) + 1;
inline const char* name_of(Field field) {
  const char* const names[] = {"collective", "dtype",     "op",       "accumulate", "numel",
                               "root",       "algorithm", "protocol", "order"};
  return names[int(field)];
}

// The first field in which two calls differ, as the message names it, and its value in each.
struct Difference {
  std::string field, a, b;
};
inline Difference difference(const Drawn& a, const Drawn& b) {
  if (a.collective != b.collective)
    return {"the collective", name_of(a.collective), name_of(b.collective)};
  if (a.dtype != b.dtype) return {"dtype", name_of(a.dtype), name_of(b.dtype)};
  if (a.op != b.op) return {"op", name_of(a.op), name_of(b.op)};
  if (a.wide != b.wide) {
    const auto in = [](const Drawn& d) { return d.wide ? "float32" : name_of(d.dtype); };
    return {"accumulate", in(a), in(b)};
  }
  if (a.count != b.count) return {"numel", std::to_string(a.count), std::to_string(b.count)};
  if (a.root != b.root) return {"the root", std::to_string(a.root), std::to_string(b.root)};
  if (a.algorithm != b.algorithm) return {"algorithm", name_of(a.algorithm), name_of(b.algorithm)};
  if (a.protocol != b.protocol) return {"protocol", name_of(a.protocol), name_of(b.protocol)};
  return {};
}

// The call of most ranks, and that of the odd one.
struct Pair {
  Drawn most, odd;
};

inline Pair draw_pair(Random& random, Field field, int ranks) {
  for (;;) {  // until the field makes a difference
    Pair pair{draw(random, ranks, 1 << 20), {}};
    Drawn &a = pair.most, &b = pair.odd;
    b = a;
    switch (field) {
      case Field::collective:
        if (a.algorithm != Algorithm::ring) continue;
        b.collective = Collective(random.below(kCollectives - 1));  // all but messages
        if (!b.has_root()) b.root = 0;
        if (!b.reduces()) b.op = Op::sum;
        break;
      case Field::dtype: b.dtype = random.of(kExactDTypes); break;
      case Field::op: b.op = random.of(kExactOps); break;
      case Field::accumulate:
        if (a.algorithm == Algorithm::ring || !can_be_wide(a)) continue;
        b.wide = !a.wide;
        break;
      case Field::numel: {
        const int64_t counts[] = {a.count - 1, a.count + 1, 2 * a.count, a.count / 2, 0};
        b.count = random.of(counts);
        if (random.one_in(4)) std::swap(a.count, b.count);
        break;
      }
      case Field::root: b.root = int(random.below(ranks)); break;
      case Field::algorithm:
      case Field::protocol: {
        const Way way = random.of(kWays);
        a.wide = b.wide = false;  // not every way has it
        if (field == Field::algorithm ? way.protocol != a.protocol : way.algorithm != a.algorithm)
          continue;
        b.algorithm = way.algorithm;
        b.protocol = way.protocol;
        b.shared = a.shared && b.algorithm == Algorithm::two_shot;
        break;
      }
      case Field::order: b = draw(random, ranks, 1 << 20); break;
    }
    b.wide = b.wide && can_be_wide(b);
    const bool exists = b.algorithm == Algorithm::ring || b.collective == Collective::all_reduce;
    const bool sensible = accepts(b.op, kind_of(b.dtype)) && (b.reduces() || b.op == Op::sum) &&
                          (b.has_root() || b.root == 0);
    if (exists && sensible && !difference(a, b).field.empty()) return pair;
  }
}

}  // namespace ringkern::faults
