// The order of launches on a device whose blocks wait for other blocks. Launches of one
// communicator always follow each other, since two that overlap would share counters. Launches of
// all communicators of the process do so if the device does not hold all their blocks at once: two
// partly resident launches would deadlock.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "comm/interfaces.h"

namespace ringkern::cuda {

// One event marks the end of the last launch. In a capture, the first launch waits for the event,
// and each one records it, by nodes of the graph. So each replay follows the launches before it,
// and later launches follow the replay. The records of a graph follow each other, and no other node
// of the graph follows them.
class LaunchOrder {
 public:
  // Takes a place on the current device, which holds `held` blocks, for launches of at most `most`
  // blocks.
  void claim(int device, int held, int most, cudaStream_t stream);
  void release() noexcept;

  // Called before and after a launch on `stream` of `blocks` blocks that wait for others. Both
  // throw TransportError; if the first throws, nothing has changed. While the lock is held, no
  // other launch of this process gets a place on the device. `ended`: the last launch outside of
  // captures is known to have ended.
  [[nodiscard]] std::unique_lock<std::mutex> follow_last(cudaStream_t stream, int blocks,
                                                         bool ended = false);
  // The same lock.
  [[nodiscard]] std::unique_lock<std::mutex> turn() const;
  bool capturing() const { return at_hand_ != 0; }  // true if the launch becomes part of a graph
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
  unsigned long long at_hand_ = 0;  // the capture of the current launch; 0: none
  int blocks_ = 0;                  // of the current launch
};

}  // namespace ringkern::cuda
