// The backend of each torch device, and the parts of its rings.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <pybind11/pytypes.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "cpu/shm.h"
#include "cpu/threads.h"
#include "torch/on_fault.h"
#if RK_WITH_CUDA
#include "cuda/device.h"
#include "cuda/executor.h"
#include "cuda/ipc.h"
#include "cuda/residency.h"
#endif

namespace ringkern::torch_ext {

// `threads`: of each rank, in a large collective; the same on all ranks.
Device cpu_device(int rank, int ranks, Milliseconds timeout, int threads);

// A function that returns orders of the ranks, given the bus of each rank and the number of
// channels; may be null.
using FindOrders = std::function<RingOrders(const std::vector<std::string>& buses, int channels)>;

#if RK_WITH_CUDA
// Sets the parts of a device that depend on its number of channels. `meshes`: all-reduces may be
// direct, also over tensors in place; false for a pair's link, which carries messages only.
void set_channels(Device& device, int index, int rank, int ranks, Milliseconds timeout,
                  int channels, bool meshes, const FindOrders& orders);

// Returns a device with as many channels as the devices of all ranks have room for, up to the
// default. `pair`: a link between two ranks, with few channels, because a rank may have many links.
Device cuda_device(int index, int rank, int ranks, Milliseconds timeout, bool pair,
                   const FindOrders& orders);
#endif

[[noreturn]] void throw_no_kernels(c10::Device device);

Device device_for(c10::Device device, int rank, int ranks, Milliseconds timeout,
                  const FaultPolicy& policy, const FindOrders& orders, int threads);

// Returns a CUDA stream that nobody else uses while the pointer is held. torch knows it by its
// address, like every stream that torch did not make. torch's pools are shared with the user, and
// work that waits for a peer on such a stream may keep the peer waiting.
std::shared_ptr<const c10::Stream> own_stream(c10::Device device);

// Returns true if a CUDA graph captures the stream, which is null on a CPU.
bool is_captured([[maybe_unused]] void* stream);

// Throws UsageError if a CUDA graph captures the stream. The first call on a device takes memory
// and waits for other ranks. A graph cannot hold that: it would end both the ring and the capture.
void check_not_captured(void* stream);

// Returns the device of a link between a pair of ranks: `place` 0 sends and 1 receives. It is
// smaller than a ring's device, because a rank may have many links.
Device pair_device_for(c10::Device device, int place, Milliseconds timeout,
                       const FaultPolicy& policy);

}  // namespace ringkern::torch_ext
