// Instructions that use registers alone.
#pragma once

#include "program.h"

namespace ptx {

struct Operation {
  Step step = nullptr;
  int results = 0, operands = 0;
};

// Keyed by the whole opcode; without a step: not known.
Operation operation_of(const std::string& opcode);

}  // namespace ptx
