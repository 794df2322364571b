// Probes the links of the ranks of this process on one device (comm/probe.h).
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/interfaces.h"
#include "cuda/probe.h"

namespace ringkern::cuda {

// Returns the room for probes in a segment of this geometry: the FIFO of Simple of channel 0.
constexpr ProbeRoom probe_room(const Geometry& g) {
  return {g.fifo_offset(0, Protocol::simple), g.fifo_bytes(Protocol::simple), 4096,
          int64_t(kCacheLine + sizeof(ProbeScratch))};
}

class Prober {
 public:
  // Loads the kernel now: a later load could wait for kernels that wait for their peers. Throws
  // TransportError, as do all functions below.
  explicit Prober(int device);
  ~Prober();
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  // Copies the data to send to the device; sends it, and receives. `finish` returns when the kernel
  // has ended: within twice the `patience` of its launch.
  void stage(std::span<const ProbedLink> links);
  void launch(std::span<const ProbedLink> links, Milliseconds patience);
  void finish(std::span<ProbedLink> links, Milliseconds patience,
              const std::function<void()>& look);

  // "cuda:1, PCI 0000:3b:00.0"
  static std::string place(int device);
  static std::string remedy();

 private:
  bool has_ended(Clock::time_point deadline, const std::function<void()>& look);

  const int device_;
  cudaStream_t stream_ = nullptr;
  bool launched_ = false;
  Milliseconds patience_{0};
};

// Probes the links of a ring whose ranks are all in this process: one for each pair of devices of
// which one reaches the other's memory, as `reaches` says. Throws TransportError, which names the
// first wrong link.
struct ProbedDevice {
  int device = 0;
  int rank = 0;  // one that is on it
  std::byte* segment = nullptr;
};
void probe_devices(const std::vector<ProbedDevice>& devices, const Geometry& geometry,
                   const std::function<bool(int from, int to)>& reaches, Milliseconds timeout);

}  // namespace ringkern::cuda
