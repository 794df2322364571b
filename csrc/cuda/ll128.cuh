// LL128 on a GPU: the latency of a flag in the line at 15/16 of the bandwidth.
//
// MAPPING    120 bytes of data a line of 128. A warp moves a unit of 8 lines: 8 lanes a line, 4
//            lines in the first row and 4 in the second. Lane i holds the i-th 16 bytes of the
//            unit's data in the first row; the lanes whose line ends with the flag put the second
//            half of theirs in the second row, where the other lanes hold the rest. So the user's
//            memory and the lines are both accessed 16 bytes a lane, side by side:
//
//            row 0   0 1 2 3 4 5 6 7a F | 8 .. 14 15a F | 16 .. 23a F | 24 .. 31a F
//            row 1  32 ..       38 7b F | 39 .. 45 15b F | 46 .. 23b F | 53 .. 59 31b F
//
// ORDERING   a line is stored by one instruction of a warp and becomes visible whole: NVLink and
//            the L2 of one GPU do so, the memory model promises nothing; over PCIe LL128 is refused
//            (carries_lines in cuda/device.h). A warp that has seen the flags of its lines
//            loads them once more, because the loads that came before a flag's may have been too
//            early. `head` is posted behind a barrier and a fence.
// POLLING    the flag of each line, which lies beside its data, in the rank's own segment. `head`,
//            by one lane of each warp, and only when what it last saw is used up.
// REUSE      a slot is written again only when `head` has given it back; the flag has 64 bits and
//            never repeats. Units are written whole, so no line keeps an older step's data.
#pragma once

#include "cuda/copy.cuh"

namespace ringkern::cuda {

template <class A, class AnyPost = Post>
class LL128Link {
 public:
  RK_DEVICE LL128Link(Ends<Protocol::ll128, AnyPost>& ends, const A& arithmetic)
      : ends_(ends), arithmetic_(arithmetic) {}

  RK_DEVICE Verdict perform(Verb verb, const Plan&, const Chunk& chunk) {
    Verdict verdict = Verdict::ok;
    if (is_worker() && !ends_.gave_up()) verdict = move_units(verb, chunk);
    return ends_.complete(verb, /*publish_tail=*/false, verdict);
  }

 private:
  static constexpr int kLine = line_bytes(Protocol::ll128);
  static constexpr int kLanes = kLine / 16;         // that make a line
  static constexpr int kRow = kWarp * 16;           // bytes that a warp accesses at once
  static constexpr int kUnit = kLL128Unit * kLine;  // bytes on the wire
  static constexpr int kData = kLL128Unit * line_data_bytes(Protocol::ll128);
  static_assert(kUnit == 2 * kRow);

  // What a lane holds of a unit: its part of the two rows.
  struct Rows {
    Words first, second;
  };

  RK_DEVICE static bool holds_flag() { return lane_index() % kLanes == kLanes - 1; }
  // Where in the unit's data the 16 bytes of this lane are.
  RK_DEVICE static int first_at() { return 16 * lane_index(); }
  RK_DEVICE static int second_at() { return kRow + 16 * (lane_index() - lane_index() / kLanes); }

  RK_DEVICE Verdict move_units(Verb verb, const Chunk& chunk) {
    Verdict verdict = ends_.wait_slots(/*data=*/false, sends(verb));
    if (verdict != Verdict::ok) return verdict;
    const std::byte* in = reads_input(verb) ? ends_.in() + chunk.in * A::kBytes : nullptr;
    std::byte* out = copies(verb) ? ends_.out() + chunk.out * A::kBytes : nullptr;
    const std::byte* from = ends_.from_slot();
    std::byte* to = ends_.to_slot();
    const bool whole = aligned(in, out, 16);
    const int bytes = int(chunk.count * A::kBytes);
    const int warps = worker_count() / kWarp;
    RK_NO_UNROLL for (int unit = warp_index(); unit * kData < bytes; unit += warps) {
      const int at = unit * kData, left = bytes - at;
      Rows value{};
      if (in != nullptr) {
        value = load_user(in + at, whole, left);  // on its way while the lines are awaited
        if (arithmetic_.multiplies(verb)) value = multiplied(value);
      }
      if (receives(verb)) {
        Rows incoming{};
        verdict = read_lines(from + unit * kUnit, incoming);
        if (verdict != Verdict::ok) return verdict;
        value = in != nullptr ? combined(incoming, value) : incoming;
        if (arithmetic_.divides(verb)) value = divided(value);
      }
      if (out != nullptr) store_user(out + at, value, whole, left);
      if (sends(verb)) write_lines(to + unit * kUnit, value);
    }
    return Verdict::ok;
  }

  RK_DEVICE Verdict read_lines(const std::byte* unit, Rows& data) {
    const std::byte* p = unit + first_at();
    const uint64_t flag = ll128_flag(ends_.received());
    syncwarp();
    const Verdict verdict = wait(
        ends_.post(), Protocol::ll128, WaitFor::data, ends_.received() + 1,
        [&] {
          const Words a = ld_line16(p), b = ld_line16(p + kRow);
          return !holds_flag() || (a.hi == flag && b.hi == flag);
        },
        [&] { return ends_.received(); });
    if (verdict != Verdict::ok) return verdict;
    data = {ld_line16(p), ld_line16(p + kRow)};
    if (holds_flag()) data.first.hi = data.second.lo;
    return Verdict::ok;
  }

  RK_DEVICE void write_lines(std::byte* unit, Rows data) const {
    std::byte* p = unit + first_at();
    if (holds_flag()) {
      const uint64_t flag = ll128_flag(ends_.sent());
      data.second = {data.first.hi, flag};
      data.first.hi = flag;
    }
    syncwarp();  // all lanes store at once, or the lines would not be whole
    st_line16(p, data.first);
    st_line16(p + kRow, data.second);
  }

  RK_DEVICE static Rows load_user(const std::byte* p, bool whole, int left) {
    Rows r{};
    r.first = load_pack<A::kBytes>(p + first_at(), whole, left - first_at());
    if (!holds_flag()) r.second = load_pack<A::kBytes>(p + second_at(), whole, left - second_at());
    return r;
  }
  RK_DEVICE static void store_user(std::byte* p, const Rows& r, bool whole, int left) {
    store_pack<A::kBytes>(p + first_at(), r.first, whole, left - first_at());
    if (!holds_flag()) store_pack<A::kBytes>(p + second_at(), r.second, whole, left - second_at());
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

  Ends<Protocol::ll128, AnyPost>& ends_;
  const A& arithmetic_;
};

}  // namespace ringkern::cuda
