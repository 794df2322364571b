// LL128 on a CPU: the latency of a flag in the line at 15/16 of the bandwidth.
//
// MAPPING    120 bytes of data a line of 128; the calling thread writes and reads line after line.
// ORDERING   the data, then the flag with release; the reader acquires the flag before the data.
// POLLING    the flag of each line, which lies beside its data.
// REUSE      a slot is written again only when `head` has returned it; the flag has 64 bits and
//            never repeats.
#pragma once

#include <cstring>

#include "cpu/lines.h"

namespace ringkern::cpu {

struct LL128 : LL128Line {
  static constexpr Protocol kProtocol = Protocol::ll128;
  static constexpr int kData = line_data_bytes(kProtocol);
  static constexpr int kPerBlock = 16;

  static uint64_t flag_of(uint64_t step) { return ll128_flag(step); }

  void write(const std::byte* bytes, uint64_t its_flag) {
    std::memcpy(data, bytes, kData);
    store_release(flag, its_flag);
  }

  bool read(std::byte* bytes, uint64_t its_flag) {
    if (load_acquire(flag) != its_flag) return false;
    std::memcpy(bytes, data, kData);
    return true;
  }

  static bool rewrites_slot(uint64_t, int) { return false; }
};

using LL128Link = LineLink<LL128>;

}  // namespace ringkern::cpu
