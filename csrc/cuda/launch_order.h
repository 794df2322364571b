// The launches of a communicator follow each other, on whatever streams: two that overlap would
// share counters.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/ports.h"

namespace ringkern::cuda {

// One event stands for the end of the last launch. A captured launch waits for it and records it by
// nodes of its graph, so that each replay does: it follows what was launched before it, and is
// followed by what is launched after it.
class LaunchOrder {
 public:
  // On the current device.
  void claim();
  void release() noexcept;

  // Around a launch on `stream`. Both throw TransportError; after the first nothing has changed.
  void follow_last(cudaStream_t stream);
  bool capturing() const { return at_hand_ != 0; }  // whether it becomes part of a graph
  void note_last(cudaStream_t stream);

  // Makes `stream` follow the last launch or replay.
  void let_follow(cudaStream_t stream) const;

  // Returns when the last launch or replay has ended; false if it has not within `patience`.
  bool drain(Milliseconds patience) const;

 private:
  cudaEvent_t last_ = nullptr;
  cudaEvent_t captured_ = nullptr;  // the last launch of a capture
  cudaStream_t last_stream_ = nullptr, captured_stream_ = nullptr;
  unsigned long long capture_ = 0;  // that the last captured launch is of; 0: none
  unsigned long long at_hand_ = 0;  // the same of the launch at hand
};

}  // namespace ringkern::cuda
