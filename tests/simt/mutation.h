// Mutants: the kernels with one thing taken away that keeps them correct, to check that tests
// notice.
//
// mutants.py writes a copy of the kernels in which each fence, barrier, wait, flag and check has
// its weakened form beside it, and a table of them, mutants.h. All are compiled once; which one is
// in effect is decided here, when they run.
#pragma once

#include <string>

namespace simt {

struct Mutant {
  int number;        // from 1
  const char* rule;  // that found it, of rules.py
  const char* file;  // of csrc/cuda
  int line;
  const char* function;  // around it
  const char* kind;      // the change, such as "fence_acq_rel dropped"
  const char* original;
  const char* weakened;

  // Returns where to look, for people.
  std::string place() const { return std::string(file) + ":" + std::to_string(line) + " " + kind; }
  // Names the mutant in lists: stays the same when lines move, and is unique.
  std::string name() const { return std::string(file) + " " + function + ": " + kind; }
};

inline int active_mutant = 0;  // 0: none, the kernels as they are
// True if the weakened form has run: a mutant that never runs cannot be caught.
inline bool mutant_ran = false;

inline bool mutated(int number) {
  if (number != active_mutant) return false;
  return mutant_ran = true;
}

}  // namespace simt
