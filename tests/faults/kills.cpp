// Kills ranks, by default as often as `make faults` asks for. A failure prints its seed: `--kills 1
// --seed S` repeats the same draw, except for the timing.
#include "killing.h"
#include "options.h"

namespace {

using namespace ringkern::faults;

TAKES_OPTIONS;

TEST_CASE("the death of ranks is reported to the others") {
  const auto& words = ringkern::test::arguments();
  auto options = read_options(words, {{"--kills", 2000}, {"--seed", 1}, {"--ranks", 4}});
  const int ranks = int(options["--ranks"]);
  if (ranks < 2 || ranks > kMostKilledRanks) {
    std::fprintf(stderr, "%s: --ranks is 2 to %d\n", words[0], kMostKilledRanks);
    std::exit(2);
  }
  CHECK(kill_ranks(int(options["--kills"]), uint64_t(options["--seed"]), ranks));
}

}  // namespace
