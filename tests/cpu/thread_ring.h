// Ranks as threads over plain memory, which ThreadSanitizer and AddressSanitizer can watch, with
// their exact results.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/threads.h"
#include "cuda/model.h"
#include "reduce/ops.h"

namespace ringkern::test {

using Bytes = std::vector<unsigned char>;

class ThreadRing {
 public:
  // `arena_bytes`: size of each rank's arena; 0: none has one. `channels`: if there are several,
  // `threads_of` returns the threads of a rank. `sockets`: of each rank; empty: unknown.
  explicit ThreadRing(int ranks, const Geometry& geometry,
                      std::chrono::nanoseconds timeout = std::chrono::seconds(60),
                      int64_t arena_bytes = 0, const RingOrders& orders = {}, int channels = 1,
                      const std::function<cpu::ParallelFor(int rank)>& threads_of = nullptr,
                      const std::vector<int>& sockets = {})
      : geometry_(geometry), orders_(orders), lines_(size_t(ranks)) {
    const size_t bytes = size_t(cpu::segment_bytes(geometry, channels));
    CHECK(bytes % kCacheLine == 0);  // or the end of the block would not be that of the segment
    for (int r = 0; r < ranks; ++r) {
      memory_.emplace_back(std::aligned_alloc(kCacheLine, bytes), std::free);
      std::memset(memory_.back().get(), 0, bytes);
    }
    std::vector<void*> all;
    for (int r = 0; r < ranks; ++r) all.push_back(at(r));
    std::vector<std::shared_ptr<cpu::PeerArena>> offered;
    for (int r = 0; arena_bytes > 0 && r < ranks; ++r) {
      arenas_.push_back(std::make_unique<cpu::Arena>(arena_bytes));
      offered.push_back(cpu::PeerArena::of(r, arenas_.back()->file()->fd(), arena_bytes));
    }
    for (int r = 0; r < ranks; ++r) {
      Segments s;
      if (ranks > 1) s = {at(r), at((r + 1) % ranks), at((r + ranks - 1) % ranks), all};
      s.orders = orders;
      for (auto& lines : lines_) s.calls.push_back(lines.data());
      std::shared_ptr<cpu::Arenas> arenas;
      if (arena_bytes > 0) {
        arenas = std::make_shared<cpu::Arenas>();
        *arenas = {arenas_[size_t(r)].get(), arenas_[size_t(r)]->file(), offered};
      }
      const int socket = sockets.empty() ? -1 : sockets[size_t(r)];
      if (channels > 1)
        engines_.push_back(std::make_unique<cpu::ThreadedExecutor>(
            s, geometry, r, ranks, timeout, arenas, channels, threads_of(r), socket));
      else
        engines_.push_back(
            std::make_unique<cpu::CpuExecutor>(s, geometry, r, ranks, timeout, arenas,
                                               /*channel=*/0, /*channels=*/1, socket));
    }
  }

  int ranks() const { return int(engines_.size()); }
  const Geometry& geometry() const { return geometry_; }
  const RingOrders& orders() const { return orders_; }
  // A rank shows its call here; only ranks that count their own calls read it.
  CallLine& line(int rank, uint64_t seq) { return lines_[size_t(rank)][seq % kCallLines]; }
  Executor& engine(int rank) { return *engines_[size_t(rank)]; }
  cpu::Arena& arena(int rank) { return *arenas_[size_t(rank)]; }
  const cpu::Board& board(int rank) {
    return *reinterpret_cast<cpu::Board*>(static_cast<std::byte*>(at(rank)) +
                                          cpu::mesh_offset(geometry_));
  }
  const cpu::Bell& bell(int rank) { return *static_cast<cpu::Bell*>(at(rank)); }

  // Runs one thread for each rank. Returns the error of each.
  std::vector<std::exception_ptr> on_threads(const std::function<void(int)>& body) {
    std::vector<std::exception_ptr> errors(engines_.size());
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks(); ++r)
      threads.emplace_back([&, r] {
        try {
          body(r);
        } catch (...) {
          errors[size_t(r)] = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  void* at(int rank) { return memory_[size_t(rank)].get(); }

  const Geometry geometry_;
  const RingOrders orders_;
  std::vector<std::array<CallLine, kCallLines>> lines_;
  std::vector<std::unique_ptr<void, void (*)(void*)>> memory_;
  std::vector<std::unique_ptr<cpu::Arena>> arenas_;
  std::vector<std::unique_ptr<Executor>> engines_;
};

// Returns true if inputs are combined; false if one input is passed on.
constexpr bool reduces(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::reduce;
}

struct Call {
  Collective collective = Collective::all_reduce;
  Protocol protocol = Protocol::simple;
  DType dtype = DType::f32;
  Op op = Op::sum;
  int64_t count = 0;
  bool in_place = false;
  int misaligned = 0;  // bytes
  double factor = 0.75;
  int root = 0;
  bool nulls = false;  // in place of tensors that a rank neither reads nor writes
  Algorithm algorithm = Algorithm::ring;
  bool wide = false, tree = false;

  Reduction reduction(int ranks) const {
    return Reduction::of(op, dtype, ranks, factor, wide, tree);
  }
  bool reads(int rank) const {
    return rank == root ||
           (collective != Collective::broadcast && collective != Collective::send_recv);
  }
  bool writes(int rank, int ranks, const RingOrders& orders) const {
    if (collective == Collective::reduce) return rank == root;
    if (collective == Collective::send_recv) return rank == orders.next(0, root, ranks);
    return true;
  }
  int64_t in_count(int ranks) const {
    return collective == Collective::reduce_scatter ? ranks * count : count;
  }
  int64_t out_count(int ranks) const {
    return collective == Collective::all_gather ? ranks * count : count;
  }
};

inline std::string shown(const Call& c, const ThreadRing& ring) {
  std::string order = ", in the order";
  for (int p = 0; p < ring.ranks(); ++p) order += " " + std::to_string(ring.orders().rank_at(0, p));
  return std::string(name_of(c.collective)) + " " + name_of(c.protocol) + " " + name_of(c.dtype) +
         "[" + std::to_string(c.count) + "] " + name_of(c.op) + " by " + name_of(c.algorithm) +
         (c.reduction(ring.ranks()).wide ? " in floats" : "") + (c.tree ? " by tree" : "") +
         (c.in_place ? " in place" : "") + " + " + std::to_string(c.misaligned) + " bytes, " +
         std::to_string(ring.ranks()) + " ranks, root " + std::to_string(c.root) + ", " +
         std::to_string(ring.geometry().slots) + " slots of " +
         std::to_string(ring.geometry().slot_bytes[int(c.protocol)]) + order;
}

// ---- the model ----------------------------------------------------------------------------------

// The element that position `owner` finishes: every rank's contribution in the order of the ring.
template <class T>
T finished(const Reduction& r, const std::vector<const T*>& inputs, int64_t i, int owner,
           const RingOrders& orders = {}) {
  const int k = int(inputs.size());
  const auto input = [&](int position) {
    const T x = inputs[size_t(orders.rank_at(0, position % k))][i];
    if constexpr (!std::is_integral_v<T>)
      if (r.scale == Reduction::Scale::multiply_input)
        return scale<Reduction::Scale::multiply_input>(x, static_cast<wide_t<T>>(r.factor));
    return x;
  };
  if constexpr (is_small_float<T>)
    if (r.wide && k > 1) {
      const auto widened = [&](int position) { return to_float(input(position)); };
      float sum = r.tree ? sum_by_tree<float>(widened, 0, k) : widened(owner + 1);
      for (int s = 2; s <= k && !r.tree; ++s) sum = combined(r.combine, sum, widened(owner + s));
      const bool divides = r.scale == Reduction::Scale::divide_result;
      return from_float<T>(divides ? sum / float(r.factor) : sum);
    }
  T result = r.tree ? sum_by_tree<T>(input, 0, k) : input(owner + 1);
  for (int s = 2; s <= k && !r.tree; ++s) result = combined(r.combine, result, input(owner + s));
  if constexpr (!std::is_integral_v<T>)
    if (r.scale == Reduction::Scale::divide_result && k > 1)
      return scale<Reduction::Scale::divide_result>(result, static_cast<wide_t<T>>(r.factor));
  return result;
}

// Returns the same value for every rank: contributions in the order of the ranks, like in the ring
// for the last rank's part.
template <class T>
std::vector<Bytes> expected_direct(const Call& call, const std::vector<const T*>& inputs) {
  const int k = int(inputs.size());
  const Reduction reduction = call.reduction(k);
  Bytes output(size_t(call.count) * sizeof(T));
  for (int64_t i = 0; i < call.count; ++i)
    reinterpret_cast<T*>(output.data())[i] = finished(reduction, inputs, i, k - 1);
  return std::vector<Bytes>(inputs.size(), output);
}

// Returns the position on the ring that finishes each element of an all-reduce; it determines the
// order of the addition. The test takes nothing else from the code under test.
inline std::vector<int> finishers(const Call& call, const Geometry& g, int ranks) {
  const Plan plan =
      Plan::make(call.collective, call.protocol, ranks, call.count, size_of(call.dtype), 1, g);
  std::vector<int> positions(size_t(call.count), -1);
  for (int64_t loop = 0; loop < plan.loops; ++loop)
    for (int part = 0; part < ranks; ++part) {
      const Chunk c = plan.chunk_of(0, loop, part);
      CHECK_EQ(c.in, c.out);
      REQUIRE(c.count == 0 || (c.in >= 0 && c.in + c.count <= call.count));
      for (int64_t i = c.in; i < c.in + c.count; ++i) {
        CHECK_EQ(positions[size_t(i)], -1);  // no other chunk has it
        positions[size_t(i)] = part;
      }
    }
  REQUIRE(std::find(positions.begin(), positions.end(), -1) == positions.end());
  return positions;
}

// Returns the outputs of all ranks, empty where a rank has none, by the definition of each
// collective: shard r belongs to rank r, wherever on the ring it stands.
template <class T>
std::vector<Bytes> expected(const Call& call, const Geometry& g, const std::vector<Bytes>& inputs,
                            const RingOrders& orders) {
  using enum Collective;
  const int k = int(inputs.size());
  const int64_t n = call.count, out_count = call.out_count(k);
  std::vector<const T*> in;
  for (const Bytes& b : inputs) in.push_back(reinterpret_cast<const T*>(b.data()));
  if (call.algorithm != Algorithm::ring) return expected_direct(call, in);
  const Reduction reduction = call.reduction(k);
  std::vector<int> last;
  if (call.collective == all_reduce) last = finishers(call, g, k);
  const auto sum = [&](int64_t i, int position) {
    return finished(reduction, in, i, position, orders);
  };
  const auto value = [&](int rank, int64_t i) {
    switch (call.collective) {
      case all_reduce: return sum(i, last[size_t(i)]);
      case reduce_scatter: return sum(rank * n + i, orders.position_of(0, rank));
      case reduce: return sum(i, orders.position_of(0, call.root));
      case all_gather: return in[size_t(i / n)][i % n];
      case broadcast:
      case send_recv: return in[size_t(call.root)][i];
    }
    FAIL("no such collective");
  };
  std::vector<Bytes> outputs(inputs.size());
  for (int r = 0; r < k; ++r) {
    if (!call.writes(r, k, orders)) continue;
    Bytes& output = outputs[size_t(r)];
    if (r > 0 && call.collective == all_reduce) {
      output = outputs[0];
      continue;
    }
    output.resize(size_t(out_count) * sizeof(T));
    for (int64_t i = 0; i < out_count; ++i) reinterpret_cast<T*>(output.data())[i] = value(r, i);
  }
  return outputs;
}

// ---- calls --------------------------------------------------------------------------------------

template <class T>
Bytes random_elements(int64_t count, std::mt19937_64& random) {
  Bytes bytes(size_t(count) * sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    T x;
    const uint64_t bits = random();
    std::memcpy(&x, &bits, sizeof x);
    if constexpr (!std::is_integral_v<T>) {
      const double value = double(int64_t(random() % 4001) - 2000) / 1000;
      if (random() % 16 == 0) {
        // any bits: infinities, NaN, subnormals
      } else if constexpr (is_small_float<T>) {
        x = from_float<T>(float(value));
      } else {
        x = T(value);
      }
    }
    std::memcpy(bytes.data() + i * int64_t(sizeof x), &x, sizeof x);
  }
  return bytes;
}

// A rank's tensor, with guard elements on both sides.
struct Guarded {
  static constexpr size_t kGuard = 64;
  Bytes bytes;
  size_t first, size;

  Guarded(size_t n, int misaligned) : first(kGuard + size_t(misaligned)), size(n) {
    bytes.assign(first + size + kGuard, 0xa5);
  }
  unsigned char* data() { return bytes.data() + first; }
  void fill(const Bytes& from, size_t at = 0) { std::copy(from.begin(), from.end(), data() + at); }
  bool intact() const {
    for (size_t i = 0; i < bytes.size(); ++i)
      if ((i < first || i >= first + size) && bytes[i] != 0xa5) return false;
    return true;
  }
};

// Makes the calls one after another on every rank, and compares the results. `before` is called on
// a rank's thread before each call.
inline void run_calls(ThreadRing& ring, const std::vector<Call>& calls, uint64_t seed,
                      const std::function<void(int, size_t)>& before = nullptr) {
  const int k = ring.ranks();
  std::mt19937_64 random(seed);
  std::vector<std::vector<Bytes>> inputs(calls.size()), wanted(calls.size());
  for (size_t c = 0; c < calls.size(); ++c)
    with_dtype(calls[c].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int r = 0; r < k; ++r)
        inputs[c].push_back(random_elements<T>(calls[c].in_count(k), random));
      wanted[c] = expected<T>(calls[c], ring.geometry(), inputs[c], ring.orders());
    });
  const auto body = [&](int rank) {
    for (size_t c = 0; c < calls.size(); ++c) {
      const Call& call = calls[c];
      const Bytes& input = inputs[c][size_t(rank)];
      const size_t element = size_t(size_of(call.dtype));
      const size_t shard = size_t(rank * call.count) * element;
      const bool gathers = call.collective == Collective::all_gather;
      Guarded in(input.size(), call.misaligned);
      Guarded out(size_t(call.out_count(k)) * element, call.misaligned);
      in.fill(input);
      Task task{call.collective, call.protocol, call.reduction(k), in.data(),
                out.data(),      call.count,    call.root,         call.algorithm};
      if (call.in_place && gathers) {
        task.in = out.data() + shard;
        out.fill(input, shard);
      } else if (call.in_place) {
        task.out = in.data() + (call.collective == Collective::reduce_scatter ? shard : 0);
      }
      const auto* target = static_cast<const unsigned char*>(task.out);
      const bool writes = call.writes(rank, k, ring.orders());
      const Bytes want = writes ? wanted[c][size_t(rank)] : Bytes(target, target + out.size);
      if (call.nulls && !call.reads(rank)) task.in = nullptr;
      if (call.nulls && !writes) task.out = nullptr;
      if (before) before(rank, c);
      ring.engine(rank).run(task);
      if (!std::equal(want.begin(), want.end(), target))
        FAIL_CHECK("rank " + std::to_string(rank) + ", call " + std::to_string(c) +
                   ": wrong result of " + shown(call, ring));
      CHECK(in.intact() && out.intact());
      if (!call.in_place) CHECK(std::equal(input.begin(), input.end(), in.data()));
      // A neighbour that still needed either would now be wrong.
      std::memset(in.data(), 0xee, in.size);
      std::memset(out.data(), 0xee, out.size);
    }
  };
  for (const std::exception_ptr& error : ring.on_threads(body)) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      FAIL(e.what());
    }
  }
}

// Adds up tensors of the ranks' arenas by a two_shot, several times, and compares the results. A
// rank overwrites its tensor as soon as its call has returned.
inline void run_in_place(ThreadRing& ring, int64_t count, int rounds) {
  const int32_t k = ring.ranks();
  const auto errors = ring.on_threads([&](int rank) {
    auto* const data = static_cast<int32_t*>(ring.arena(rank).allocate(count * 4));
    for (int round = 1; round <= rounds; ++round) {
      for (int64_t i = 0; i < count; ++i) data[i] = int32_t(i) * round + rank;
      Task task;
      task.algorithm = Algorithm::two_shot;
      task.reduction = Reduction::of(Op::sum, DType::i32, k);
      task.in = task.out = data;
      task.count = count;
      ring.engine(rank).run(task);
      for (int64_t i = 0; i < count; ++i)
        REQUIRE(data[i] == k * int32_t(i) * round + k * (k - 1) / 2);
    }
    CHECK_EQ(ring.board(rank).staged.rounds, 0u);  // nothing was staged
  });
  for (const auto& error : errors) CHECK(error == nullptr);
}

}  // namespace ringkern::test
