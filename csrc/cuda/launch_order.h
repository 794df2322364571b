// Launches whose blocks wait for others follow each other on a device: those of one communicator
// always, since two that overlap would share counters; those of all communicators of the process if
// the device does not hold all blocks at once. Two partly resident launches would deadlock.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "comm/ports.h"

namespace ringkern::cuda {

// One event stands for the end of the last launch. The first launch of a capture waits for it, and
// each one records it, by nodes of their graph, so that each replay does: it follows what was
// launched before it, and is followed by what is launched after it. The records of a graph follow
// each other, and nothing else of the graph follows them.
class LaunchOrder {
 public:
  // On the current device, which holds `held` blocks, for launches of at most `most` blocks.
  void claim(int device, int held, int most, cudaStream_t stream);
  void release() noexcept;

  // Around a launch on `stream` of so many blocks that wait for others. Both throw TransportError;
  // after the first nothing has changed. No other launch of this process gets a place on the device
  // as long as the lock is held. `ended`: the last launch outside of captures is known to have.
  [[nodiscard]] std::unique_lock<std::mutex> follow_last(cudaStream_t stream, int blocks,
                                                         bool ended = false);
  // The same lock.
  [[nodiscard]] std::unique_lock<std::mutex> turn() const;
  bool capturing() const { return at_hand_ != 0; }  // whether it becomes part of a graph
  void note_last(cudaStream_t stream);

  // Makes `stream` follow the last launch or replay.
  void let_follow(cudaStream_t stream) const;

  // Waits until the last launch or replay has ended; returns false after `patience`.
  bool drain(Milliseconds patience) const;

 private:
  struct Place;
  struct Device;
  void make_room(cudaStream_t stream, int blocks) const;

  Device* device_ = nullptr;
  Place* place_ = nullptr;  // among all communicators'
  cudaStream_t last_stream_ = nullptr;
  unsigned long long at_hand_ = 0;  // the capture that the launch at hand is of; 0: none
  int blocks_ = 0;                  // the same launch's
};

}  // namespace ringkern::cuda
