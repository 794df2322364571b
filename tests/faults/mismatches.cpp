// Ranks that make different calls, by default as often as `make faults` asks for. A failure prints
// its seed: `--mismatches 1 --seed S` draws the same again, but for the times.
#include "mismatching.h"
#include "options.h"

int main(int n, char** words) {
  using namespace ringkern::faults;
  auto options = read_options(n, words, {{"--mismatches", 1000}, {"--seed", 1}});
  return mismatch_calls(int(options["--mismatches"]), uint64_t(options["--seed"])) ? 0 : 1;
}
