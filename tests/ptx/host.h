// Launches of kernels from their PTX, in the memory of this process, which other processes map,
// too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ptx {

// Returns what runs a kernel to its end, on the thread that calls it; it has a copy of the
// arguments. `name`: demangled. Raises Error if there is no such kernel, or it takes fewer threads.
std::function<void()> launch_of(const std::string& name, uint32_t blocks, uint32_t threads,
                                const void* arguments);

}  // namespace ptx
