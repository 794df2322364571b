// The kernels of a program: each entry of the PTX files that it was built with.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "program.h"

namespace ptx {

struct Kernel {
  std::string name;  // demangled
  std::string path;  // of its file
  EntryText entry;
  int registers = 0;  // of a thread, from the ptxas report beside the file; 0: no report
  std::unique_ptr<Program> program;  // made when first asked for
};

// The directory tree of the files, and the suffix of their names; cmake/ptx.cmake defines them.
extern const char* const kDirectory;
extern const char* const kEnding;

// Returns the kernels by demangled name.
std::map<std::string, Kernel>& kernels();
// Finds a kernel by its name without namespaces and arguments: "alone<float>". Raises Error if
// there is none, or it has an instruction that is not supported.
Kernel& kernel_named(const std::string& name);
// Finds a kernel by its whole demangled name, with the same errors.
Kernel& kernel_called(const std::string& name);
std::string demangled(const char* name);

}  // namespace ptx
