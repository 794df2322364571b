// Instructions that use registers alone.
#pragma once

#include "program.h"

namespace ptx {

struct Operation {
  Step step = nullptr;
  int results = 0, operands = 0;
};

// Returns the operation of a whole opcode; its step is null if the opcode is not known.
Operation operation_of(const std::string& opcode);

}  // namespace ptx
