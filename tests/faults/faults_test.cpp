// Kills and mismatches, as many as a test has time for: `make faults` runs more of the same.
#include "killing.h"
#include "mismatching.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRounds = 30;
#else
constexpr int kRounds = 100;
#endif

int main() {
  using namespace ringkern::faults;
  const bool killed = kill_ranks(kRounds, /*seed=*/1'000'000, /*ranks=*/4);
  const bool mismatched = mismatch_calls(kRounds, /*seed=*/1'000'000);
  CHECK(killed && mismatched);
}
