// The call that comes next, by those before it: programs make their calls in rounds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/call.h"

namespace ringkern {

// A forecast of calls. It depends on nothing but the calls that were noted: where some ranks have
// noted the same ones, a call that one of them expects is expected by all.
class Forecast {
 public:
  // Notes a call; `seq` grows with each. True: it is the one that followed the last time, as many
  // calls later, after calls like the last four; or, where none has, the last one again, at once.
  bool note(uint64_t seq, const CallWords& words) {
    const Next next{words, seq - seq_};
    Next& known = followed_[size_t(context_ * kSpread >> (64 - kBits))];
    const bool expected = next == (known.distance > 0 ? known : Next{last_, 1});
    known = next;
    last_ = words;
    seq_ = seq;
    context_ = context_ << 16 | (history_of(next.distance, words) & 0xffff);
    return expected;
  }

 private:
  struct Next {
    CallWords words;
    uint64_t distance = 0;  // in calls; 0: unknown

    bool operator==(const Next&) const = default;
  };
  static constexpr int kBits = 10;
  static constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;

  Next followed_[size_t(1) << kBits] = {};  // by the context; contexts may share one
  CallWords last_;
  uint64_t seq_ = 0;
  uint64_t context_ = 0;  // the last four calls, 16 bits of each
};

}  // namespace ringkern
