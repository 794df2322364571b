// Ranks that make different calls, by default as often as `make faults` asks for. A failure prints
// its seed: `--mismatches 1 --seed S` repeats the same draw, except for the timing.
#include "mismatching.h"
#include "options.h"

namespace {

using namespace ringkern::faults;

TAKES_OPTIONS;

TEST_CASE("calls that differ are reported to all ranks") {
  auto options = read_options(ringkern::test::arguments(), {{"--mismatches", 1000}, {"--seed", 1}});
  CHECK(mismatch_calls(int(options["--mismatches"]), uint64_t(options["--seed"])));
}

}  // namespace
