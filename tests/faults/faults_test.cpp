// Some kills and mismatches, within a test's time: `make faults` runs more of the same.
#include "killing.h"
#include "mismatching.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRounds = 30;
#else
constexpr int kRounds = 100;
#endif

namespace {

using namespace ringkern::faults;

TEST_CASE("the death of ranks is reported to the others") {
  CHECK(kill_ranks(kRounds, /*seed=*/1'000'000, /*ranks=*/4));
}

TEST_CASE("calls that differ are reported to all ranks") {
  CHECK(mismatch_calls(kRounds, /*seed=*/1'000'000));
}

}  // namespace
