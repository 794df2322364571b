// The CUDA devices of this process, and what becomes of a failed call of the runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <span>
#include <string>

#include "comm/ports.h"

namespace ringkern::cuda {

// Memory over which ranks exchange data, in segments that are made from now on.
enum class MemoryChoice {
  any,   // device memory, by a descriptor where the device has that, and else by CUDA IPC; or host
  ipc,   // the same without descriptors
  host,  // host memory, even where ranks could have device memory
};
inline std::atomic<MemoryChoice> memory_choice{MemoryChoice::any};

// The framework's part in this process's use of devices, of which this room knows nothing: set by
// the extension when it is loaded, before any other thread.
struct Framework {
  // Gives memory that it has kept for later back to CUDA. Throws nothing.
  void (*empty_cache)() = nullptr;
  // Makes a device the thread's current one, where it has no context, without making one.
  void (*choose)(int device) = nullptr;
};
inline Framework framework;

// 0 also where there is no driver.
int device_count() noexcept;
// Returns the version of the linked runtime, such as 13000.
int runtime_version() noexcept;

// "cudaMalloc: out of memory (cudaErrorMemoryAllocation, code 2)"
std::string describe(const char* call, cudaError_t error);
// Throws TransportError unless `error` is cudaSuccess. `remedy`: what the user can do about it.
void check(cudaError_t error, const char* call, const char* remedy = "");
// Takes memory on the current device, if need be after the framework has emptied its cache. Throws
// TransportError. Not for the framework's own allocators, which hold a lock meanwhile.
void* allocate(size_t bytes, const char* remedy = "");
// The same for a call that takes memory, and returns what that returns.
cudaError_t beside_cache(const std::function<cudaError_t()>& take);
// Returns a function of the driver, which the extension is not linked against, as it was in a
// version of CUDA; null where the driver lacks it.
void* find_in_driver(const char* name, unsigned version) noexcept;
template <class F>
F driver_function(const char* name, unsigned version) {
  return reinterpret_cast<F>(find_in_driver(name, version));
}
// Loads a kernel on the current device. Throws TransportError where it was not built for that.
void load(const void* kernel);
// Launches a kernel that takes one argument, on the current device. Throws TransportError.
void launch_kernel(const void* kernel, unsigned blocks, int threads, void* argument,
                   cudaStream_t stream, std::span<const cudaLaunchAttribute> attributes = {});
// Its place on the PCI bus, as "0000:3b:00.0", whatever number it has in this process; or nothing.
std::string bus_of(int device) noexcept;
// Tells if what a warp of one device stores at once, 128 bytes, arrives whole in the memory of
// another one: where the link has atomic operations of its own, as NVLink does and PCIe does not.
bool carries_lines(int from, int to);
// The same for a device that is on this bus. Both are false where CUDA cannot tell, as of a device
// that this process does not see.
bool carries_lines(int from, const char* bus);
// Throws TransportError that says which devices there are, unless `device` is one of them.
void check_device(int device);

// Returns a stream that is nobody else's until it is given back, before others where the device has
// to choose. It is never destroyed, since allocators may have noted it: one that was given back is
// taken again when it has done all that it was asked for.
cudaStream_t take_stream(int device);
void give_back_stream(int device, cudaStream_t stream);

// Sets memory of a device to zero. On a stream of its own: kernels of others, which may wait for a
// peer, are not waited for.
void clear(int device, void* memory, size_t bytes);

// Returns the id of the capture that a stream takes part in; 0 for none. The default stream never
// does, and must not be asked while another stream captures. Throws TransportError where a call
// that CUDA does not allow in a capture has made it invalid.
unsigned long long capture_of(cudaStream_t stream);

// While a thread of this process captures a graph, others may not allocate or map memory, nor ask
// for events or streams, unless they say that it is none of the graph's business.
class BesideCaptures {
 public:
  BesideCaptures() { exchange(); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  void exchange() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Makes a device the thread's current one, until the end of the scope. A device without a context
// in this process does not get one by becoming the current one again: each process would take some
// hundred MB of device 0, since that is the current one of every thread that has chosen none.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;  // -1: it was this one
};

}  // namespace ringkern::cuda
