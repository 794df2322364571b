// The kernel that probes links, on the simulated machine.
#include "check.h"
#include "machine.h"
#include "probing.h"

using namespace simt;

namespace {

TEST_CASE("the probe's kernel passes good links and leaves out others") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    try {
      for (const ProbeTrial& trial : kProbeTrials) run_probe(seed, trial);
    } catch (const Failure& f) {
      FAIL("seed " + std::to_string(seed) + ": " + f.what());
    }
  }
}

}  // namespace
