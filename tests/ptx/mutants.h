// A kernel's PTX with one change: an ordering instruction weakened or dropped, or a wrong operand.
#pragma once

#include "module.h"

namespace ptx {

struct Mutant {
  std::string kind;   // what is done: ".sys -> .gpu"
  std::string place;  // the statement, without register names: "ld.acquire.sys.global.u64 (r+8) #2"
  size_t statement;   // its index in the kernel as it is
  std::vector<Statement> before;  // inserted before it: a jump to it reaches them first
  Statement instead;

  size_t index() const { return statement + before.size(); }  // in the mutant
};

// Returns all mutants of a kernel.
std::vector<Mutant> mutants_of(const Entry& entry);
Entry apply(Entry entry, const Mutant& mutant);

}  // namespace ptx
