// Predicts the next call from the previous ones: programs repeat sequences of calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/call.h"

namespace ringkern {

// A predictor of calls. It depends only on the calls that were noted, so ranks that noted the same
// calls make the same prediction.
class Forecast {
 public:
  // Notes a call; `seq` grows with each. Returns true if the call was expected: it followed the
  // same last four calls before, at the same distance. For a context not seen before, a direct
  // repetition of the last call is expected.
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

  Next followed_[size_t(1) << kBits] = {};  // by context; contexts may share an entry
  CallWords last_;
  uint64_t seq_ = 0;
  uint64_t context_ = 0;  // the last four calls, 16 bits of each
};

}  // namespace ringkern
