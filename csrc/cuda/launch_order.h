// The launches of a communicator follow each other, on whatever streams: two that overlap would
// share counters.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "comm/ports.h"

namespace ringkern::cuda {

// What is recorded in a graph cannot wait for what is launched outside of it, nor the other way
// round: a graph must not be replayed while another stream runs a collective of this communicator.
class LaunchOrder {
 public:
  // On the current device.
  void claim();
  void release() noexcept;

  // Around a launch on `stream`. `ended`: the last launch outside of captures is known to have.
  void follow_last(cudaStream_t stream, bool ended = false);
  bool capturing() const { return capturing_; }  // whether it becomes part of a graph
  void note_last(cudaStream_t stream);

  // Makes `stream` follow the last launch outside of captures.
  void let_follow(cudaStream_t stream) const;

  // Returns when all launches have ended; false if they have not within `patience`.
  bool drain(Milliseconds patience) const;

 private:
  cudaEvent_t last_ = nullptr;      // outside of captures
  cudaEvent_t captured_ = nullptr;  // within one
  cudaStream_t last_stream_ = nullptr, captured_stream_ = nullptr;
  unsigned long long capture_ = 0;  // the last one's id; 0: none
  std::atomic<bool> launched_{false};
  bool capturing_ = false;  // the launch at hand
};

}  // namespace ringkern::cuda
