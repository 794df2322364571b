// LL128 on a GPU: the latency of a flag in the line at 15/16 of the bandwidth.
//
// MAPPING    A line of 128 bytes holds 120 bytes of data. A warp moves a unit of 8 lines: 8 lanes a
//            line, 4 lines in the first row and 4 in the second. Lane i holds the i-th 16 bytes of
//            the unit's data in the first row. A lane whose line ends with the flag puts the second
//            half of its data in the second row, where the other lanes hold the rest. So the user's
//            memory and the lines are both accessed 16 bytes a lane, side by side:
//
//            row 0   0 1 2 3 4 5 6 7a F | 8 .. 14 15a F | 16 .. 23a F | 24 .. 31a F
//            row 1  32 ..       38 7b F | 39 .. 45 15b F | 46 .. 23b F | 53 .. 59 31b F
//
// ORDERING   One instruction of a warp stores a line, which becomes visible whole. NVLink and the
//            L2 of one GPU ensure this, the memory model does not; over PCIe LL128 is refused
//            (carries_lines in cuda/device.h). A warp that has seen the flags of its lines loads
//            the lines once more, because a load before that of the flag may have been too early.
//            `head` is posted after a barrier and a fence.
// POLLING    The flag of each line, which lies beside its data, in the rank's own segment. One lane
//            of each warp polls `head`, and only when the credit that it last saw is used up.
// REUSE      A slot is written again only when `head` has given it back. The flag has 64 bits and
//            never repeats. Units are written whole, so no line keeps an older step's data.
#pragma once

#include "cuda/lines.cuh"

namespace ringkern::cuda {

template <class A, class AnyPost = Post>
class LL128Link {
 public:
  RK_DEVICE LL128Link(LineEnds<Protocol::ll128, AnyPost>& ends, const A& arithmetic)
      : ends_(ends), arithmetic_(arithmetic) {}

  RK_DEVICE Verdict perform(Verb verb, const Plan&, const Chunk& chunk) {
    const int bytes = int(chunk.count) * A::kBytes;
    if (sends(verb) && !ends_.has_credit()) ends_.wait_slots(/*data=*/false, /*credit=*/true);
    if (bytes > ends_.first()) move_units(verb, chunk, bytes);
    if (receives(verb)) ends_.took_slot();
    if (sends(verb)) ends_.filled_slot();
    return ends_.complete();
  }

 private:
  static constexpr int kLine = line_bytes(Protocol::ll128);
  static constexpr int kLanes = kLine / 16;         // lanes per line
  static constexpr int kRow = kWarp * 16;           // bytes that a warp accesses at once
  static constexpr int kUnit = kLL128Unit * kLine;  // bytes on the wire
  static constexpr int kData = kLL128Unit * line_data_bytes(Protocol::ll128);
  static_assert(kUnit == 2 * kRow);

  // A lane's share of a unit: its part of the two rows.
  struct Rows {
    Words first, second;
  };

  RK_DEVICE static bool holds_flag() { return lane_index() % kLanes == kLanes - 1; }
  // Returns the distance in the unit's data from this lane's 16 bytes in the first row to those in
  // the second.
  RK_DEVICE static int to_second() { return kRow - 16 * (lane_index() / kLanes); }

  RK_DEVICE void move_units(Verb verb, const Chunk& chunk, int bytes) {
    // The addresses of the warp's first unit, and then of its next one.
    const std::byte* in = ends_.in() + chunk.in * A::kBytes;
    std::byte* out = ends_.out() + chunk.out * A::kBytes;
    const std::byte* from = ends_.from();
    std::byte* to = ends_.to();
    const bool whole = aligned(in, out, 16);
    const int stride = worker_count() / kWarp;
    RK_NO_UNROLL for (;;) {
      const int left = bytes - ends_.first();
      const bool fast = whole && left >= kData;  // for all lanes alike
      Rows value{};
      if (reads_input(verb)) {
        // Loaded before the wait for the lines, so that the two overlap.
        value = fast ? load_whole(in) : load_user(in, whole, left - 16 * lane_index());
        if (arithmetic_.multiplies()) value = multiplied(value);
      }
      if (receives(verb)) {
        const uint64_t flag = ll128_flag(ends_.received());
        Rows incoming{};
        const auto arrived = [&] {
          const Words a = ld_line16(from), b = ld_line16(from + kRow);
          return !holds_flag() || (a.hi == flag && b.hi == flag);
        };
        syncwarp();
        // Mostly the lines are there by now: this takes a branch and no loop.
        if (all_lanes(arrived())) syncwarp();
        else if (wait(ends_.post(), Protocol::ll128, WaitFor::data, ends_.received() + 1, arrived,
                      [&] { return ends_.received(); }) != Verdict::ok)
          return ends_.give_up();
        incoming = {ld_line16(from), ld_line16(from + kRow)};
        if (holds_flag()) incoming.first.hi = incoming.second.lo;
        value = reads_input(verb) ? combined(incoming, value) : incoming;
        if (arithmetic_.divides() && copies(verb) && reads_input(verb)) value = divided(value);
      }
      if (copies(verb)) {
        if (fast) store_whole(out, value);
        else store_user(out, value, whole, left - 16 * lane_index());
      }
      if (sends(verb)) write_lines(to, value);
      bytes -= kData * stride;
      if (bytes <= ends_.first()) return;
      in += kData * stride, out += kData * stride;
      from += kUnit * stride, to += kUnit * stride;
    }
  }

  RK_DEVICE void write_lines(std::byte* p, Rows data) const {
    if (holds_flag()) {
      const uint64_t flag = ll128_flag(ends_.sent());
      data.second = {data.first.hi, flag};
      data.first.hi = flag;
    }
    syncwarp();  // all lanes store at once, or the lines would not be whole
    st_line16(p, data.first);
    st_line16(p + kRow, data.second);
  }

  RK_DEVICE Rows load_whole(const std::byte* p) const {
    Rows r{};
    r.first = ld_weak16(p);
    if (!holds_flag()) r.second = ld_weak16(p + second_);
    return r;
  }
  RK_DEVICE void store_whole(std::byte* p, const Rows& r) const {
    st_weak16(p, r.first);
    if (!holds_flag()) st_weak16(p + second_, r.second);
  }
  // Loads a unit, of which `left` bytes from p on belong to the tensor. `whole`: p allows accesses
  // of 16 bytes.
  RK_DEVICE Rows load_user(const std::byte* p, bool whole, int left) const {
    Rows r{};
    r.first = load_pack<A::kBytes>(p, whole, left);
    if (!holds_flag()) r.second = load_pack<A::kBytes>(p + second_, whole, left - second_);
    return r;
  }
  RK_DEVICE void store_user(std::byte* p, const Rows& r, bool whole, int left) const {
    store_pack<A::kBytes>(p, r.first, whole, left);
    if (!holds_flag()) store_pack<A::kBytes>(p + second_, r.second, whole, left - second_);
  }

  RK_DEVICE Rows combined(const Rows& x, const Rows& y) const {
    return {arithmetic_.combine(x.first, y.first), arithmetic_.combine(x.second, y.second)};
  }
  RK_DEVICE Rows multiplied(const Rows& r) const {
    return {arithmetic_.multiply(r.first), arithmetic_.multiply(r.second)};
  }
  RK_DEVICE Rows divided(const Rows& r) const {
    return {arithmetic_.divide(r.first), arithmetic_.divide(r.second)};
  }

  LineEnds<Protocol::ll128, AnyPost>& ends_;
  const A& arithmetic_;
  const int second_ = to_second();
};

}  // namespace ringkern::cuda
