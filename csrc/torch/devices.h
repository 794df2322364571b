// The backend of each torch device, and the parts of its rings.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <pybind11/pytypes.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "cpu/executor.h"
#include "cpu/shm.h"
#include "torch/on_fault.h"
#if RK_WITH_CUDA
#include "cuda/device.h"
#include "cuda/executor.h"
#include "cuda/ipc.h"
#include "cuda/residency.h"
#endif

namespace ringkern::torch_ext {

Device cpu_device(int rank, int ranks, Milliseconds timeout);

// A function from the buses of the ranks, and the channels, to orders of the ranks; or null.
using FindOrders = std::function<RingOrders(const std::vector<std::string>& buses, int channels)>;

#if RK_WITH_CUDA
// `meshes`: all-reduces may be direct, also over tensors in place; a pair's link has messages
// alone.
void set_channels(Device& device, int index, int rank, int ranks, Milliseconds timeout,
                  int channels, bool meshes, const FindOrders& orders);

// With as many channels as the devices of the ranks hold, up to the default; a pair with few,
// because a rank may have many.
Device cuda_device(int index, int rank, int ranks, Milliseconds timeout, bool pair,
                   const FindOrders& orders);
#endif

[[noreturn]] void throw_no_kernels(c10::Device device);

Device device_for(c10::Device device, int rank, int ranks, Milliseconds timeout, OnFault policy,
                  const FindOrders& orders);

// A stream that is nobody else's as long as it is held, as torch knows those that it did not make:
// by their address. torch's pools are shared with the user, and what waits for a peer there may
// keep the peer waiting.
std::shared_ptr<const c10::Stream> own_stream(c10::Device device);

// Returns whether a CUDA graph captures the stream; null: on a CPU.
bool is_captured([[maybe_unused]] void* stream);

// Throws UsageError where a CUDA graph captures the stream. The first call on a device takes memory
// and waits for other ranks, which a graph cannot hold: it would end ring and capture.
void check_not_captured(void* stream);

// Returns the device of a link between a pair of ranks: `place` 0 sends and 1 receives. A rank may
// have many, so they are smaller than those of the ring.
Device pair_device_for(c10::Device device, int place, Milliseconds timeout, OnFault policy);

}  // namespace ringkern::torch_ext
