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
};
inline constexpr ProbeTrial kProbeTrials[] = {
    {2}, {3}, {3, 1}, {4, -1, {2, 0}}, {3, -1, {-1, -1}, 2}};

// Throws Failure if anything is wrong.
void run_probe(uint64_t seed, const ProbeTrial& trial);

}  // namespace simt
