// Kills ranks, by default as many as `make faults` asks for. A failure prints its seed:
// `--kills 1 --seed S` draws the same again, but for the times.
#include "killing.h"
#include "options.h"

int main(int n, char** words) {
  using namespace ringkern::faults;
  auto options = read_options(n, words, {{"--kills", 2000}, {"--seed", 1}, {"--ranks", 4}});
  const int ranks = int(options["--ranks"]);
  if (ranks < 2 || ranks > kMostKilledRanks) {
    std::fprintf(stderr, "%s: --ranks is 2 to %d\n", words[0], kMostKilledRanks);
    return 2;
  }
  return kill_ranks(int(options["--kills"]), uint64_t(options["--seed"]), ranks) ? 0 : 1;
}
