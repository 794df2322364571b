// The kernel that probes links, between simulated ranks.
#pragma once

#include <cstdint>
#include <utility>

namespace simt {

struct ProbeTrial {
  int ranks = 2;
  int absent = -1;                    // never launches
  std::pair<int, int> apart{-1, -1};  // the first does not reach the second
  int killed = -1;                    // stops somewhere
  bool hasty = false;                 // a wait may end before what would have come
};
inline constexpr ProbeTrial kProbeTrials[] = {
    {2}, {3}, {3, 1}, {4, -1, {2, 0}}, {3, -1, {-1, -1}, 2}, {2, -1, {-1, -1}, -1, true}};

// Throws Failure if anything is wrong.
void run_probe(uint64_t seed, const ProbeTrial& trial);

}  // namespace simt
