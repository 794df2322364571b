// A kernel's PTX with one thing changed: what orders it weakened or dropped, or an operand wrong.
#pragma once

#include "module.h"

namespace ptx {

struct Mutant {
  std::string kind;   // what is done: ".sys -> .gpu"
  std::string place;  // to what, without names of registers: "ld.acquire.sys.global.u64 (r+8) #2"
  size_t statement;   // its index in the kernel as it is
  std::vector<Statement> before;  // inserted before it: a jump to it reaches them first
  Statement instead;

  size_t index() const { return statement + before.size(); }  // in the mutant
};

// All that there are.
std::vector<Mutant> mutants_of(const Entry& entry);
Entry apply(Entry entry, const Mutant& mutant);

}  // namespace ptx
