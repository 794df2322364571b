// The CUDA devices of this process, and the errors of failed calls of the runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <span>
#include <string>

#include "comm/interfaces.h"

namespace ringkern::cuda {

// The memory over which ranks exchange data, in segments that are made from now on.
enum class MemoryChoice {
  any,   // device memory, by a descriptor if the device has that, else by CUDA IPC; or host
  ipc,   // the same without descriptors
  host,  // host memory, even if ranks could use device memory
};
inline std::atomic<MemoryChoice> memory_choice{MemoryChoice::any};

// The framework's functions for devices, on which csrc/cuda does not depend: the extension sets
// them when it is loaded, before any other thread runs.
struct Framework {
  // Returns cached memory to CUDA. Throws nothing.
  void (*empty_cache)() = nullptr;
  // Makes a device without a context the thread's current one, without making a context.
  void (*choose)(int device) = nullptr;
};
inline Framework framework;

// Returns the number of devices; 0 also without a driver.
int device_count() noexcept;
// Returns the version of the linked runtime, such as 13000.
int runtime_version() noexcept;

// Returns a text such as "cudaMalloc: out of memory (cudaErrorMemoryAllocation, code 2)".
std::string describe(const char* call, cudaError_t error);
// Throws TransportError unless `error` is cudaSuccess. `remedy`: the advice in the text.
void check(cudaError_t error, const char* call, const char* remedy = "");
// Allocates memory on the current device, after the framework has emptied its cache if necessary.
// Throws TransportError. Not for the framework's own allocators, which hold a lock meanwhile.
void* allocate(size_t bytes, const char* remedy = "");
// The same for a call that allocates; returns its result.
cudaError_t beside_cache(const std::function<cudaError_t()>& take);
// Returns a function of the driver, as CUDA `version` has it; null if the driver lacks it. The
// extension is not linked against the driver.
void* find_in_driver(const char* name, unsigned version) noexcept;
template <class F>
F driver_function(const char* name, unsigned version) {
  return reinterpret_cast<F>(find_in_driver(name, version));
}
// Loads a kernel on the current device. Throws TransportError if it was not built for that device.
void load(const void* kernel);
// Launches a kernel that takes one argument, on the current device. Throws TransportError.
void launch_kernel(const void* kernel, unsigned blocks, int threads, void* argument,
                   cudaStream_t stream, std::span<const cudaLaunchAttribute> attributes = {});
// Returns the PCI bus id of a device, such as "0000:3b:00.0", which does not depend on the process;
// empty if unknown.
std::string bus_of(int device) noexcept;
// Returns true if 128 bytes that a warp stores at once arrive whole in the memory of another
// device. This holds if the link has atomic operations of its own, as NVLink has and PCIe has not.
bool carries_lines(int from, int to);
// The same for a device on this bus. Both return false if CUDA does not know, such as for a device
// that this process does not see.
bool carries_lines(int from, const char* bus);
// Throws TransportError, which lists the devices, unless `device` is one of them.
void check_device(int device);

// Returns a stream of high priority that has no other user until it is given back. It is never
// destroyed, because allocators may have recorded it: a returned stream is reused once all its work
// is done.
cudaStream_t take_stream(int device);
void give_back_stream(int device, cudaStream_t stream);

// Sets memory of a device to zero. On a stream of its own, so that it does not wait for other
// kernels, which may wait for a peer.
void clear(int device, void* memory, size_t bytes);

// Returns the id of the capture that a stream takes part in; 0 for none. The default stream never
// does, and must not be queried while another stream captures. Throws TransportError if a call that
// CUDA does not allow in a capture has made it invalid.
unsigned long long capture_of(cudaStream_t stream);

// While a thread of this process captures a graph, others may not allocate or map memory, nor query
// events or streams, unless they exclude that from the capture.
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
