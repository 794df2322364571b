// The search for a seed that catches a mutant, of the source or of the PTX.
#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "jobs.h"
#include "ring.h"

namespace simt {

// Makes a wish ask more of a seed. `direct`: it is for direct all-reduces; `across`: for those over
// the tensors themselves.
inline Wish weakening(Wish wish, bool direct, bool across, uint64_t seed) {
  wish.direct = direct;
  wish.across = across;
  if (direct) wish.mixed = true;
  // A rank with two segments learns from either that another one has given up.
  if (direct && !across) wish.hosts = seed / 8 % 2 == 0;
  // Asks for more trouble than usual, where it meets most others, because only trouble shows many
  // mutants.
  if (seed % 3 != 0) wish.trouble = Trouble(1 + seed / 3 % 3);
  if (seed % 3 == 2) wish.channels = wish.slots = 2;
  // Uses a number of slots with which the flags of LL repeat soonest: their period is a multiple of
  // 3.
  if (seed % 6 == 0) wish.slots = 3;
  // Uses several ranks: only then the give-up notice, which also goes round the ring, can be too
  // late.
  if (direct && seed % 4 == 1) wish.ranks = 5, wish.channels = 1;
  // Few waits for a slot fail, unless a rank does not announce that it has read one.
  wish.late = direct ? seed % 4 == 3 : seed % 16 == 11;
  // Makes the notice go round the ring only: one rank has stopped, and one waits in the call
  // before.
  if (direct && seed % 8 == 6) {
    wish.chains = true;
    wish.ranks = 3;
    wish.trouble = Trouble::aborted;
  }
  return wish;
}

// Runs a seed; returns its finding, or nothing.
inline std::string found_by(uint64_t seed, bool in_detail, const std::function<void()>& run) {
  try {
    run();
  } catch (const Failure& f) {
    return (in_detail ? f.what() : f.kind) + " @" + std::to_string(seed);
  }
  return "";
}
inline std::string found_by_ring(uint64_t seed, Wish wish, bool in_detail) {
  wish.verbose = in_detail;
  Coverage coverage;
  return found_by(seed, in_detail, [&] { Ring(seed, wish, coverage).run(); });
}
inline bool is_caught(const std::string& outcome) { return outcome.find('@') != outcome.npos; }

// Returns the outcome of each of `count` hunts, made by `jobs` processes. The outcome stays empty
// if a process died. `hunt` returns one line.
inline std::vector<std::string> hunt_all(size_t count, int jobs,
                                         const std::function<std::string(size_t)>& hunt) {
  std::vector<std::string> outcomes(count);
  run_jobs(
      jobs,
      [&](int job) {
        std::ostringstream text;
        for (size_t i = size_t(job); i < count; i += size_t(jobs))
          text << i << " " << hunt(i) << "\n";
        return text.str();
      },
      [&](int, const std::string& text) {
        std::istringstream lines(text);
        size_t i = 0;
        for (std::string rest; lines >> i && std::getline(lines >> std::ws, rest);)
          outcomes[i] = rest;
      });
  return outcomes;
}

}  // namespace simt
