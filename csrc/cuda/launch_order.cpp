#include "cuda/launch_order.h"

#include <thread>

#include "cuda/device.h"

namespace ringkern::cuda {

void LaunchOrder::claim() {
  check(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaEventCreateWithFlags(&captured_, cudaEventDisableTiming), "cudaEventCreate");
}

void LaunchOrder::release() noexcept {
  if (captured_ != nullptr) (void)cudaEventDestroy(captured_);
  if (last_ != nullptr) (void)cudaEventDestroy(last_);
}

void LaunchOrder::follow_last(cudaStream_t stream, bool ended) {
  const unsigned long long capture = capture_of(stream);
  capturing_ = capture != 0;
  if (capturing_) {
    if (capture == capture_ && stream != captured_stream_)
      check(cudaStreamWaitEvent(stream, captured_, 0), "cudaStreamWaitEvent");
    capture_ = capture;
  } else if (launched_ && !ended && stream != last_stream_) {
    check(cudaStreamWaitEvent(stream, last_, 0), "cudaStreamWaitEvent");
  }
}

void LaunchOrder::note_last(cudaStream_t stream) {
  check(cudaEventRecord(capturing_ ? captured_ : last_, stream), "cudaEventRecord");
  (capturing_ ? captured_stream_ : last_stream_) = stream;
  if (!capturing_) launched_ = true;
}

void LaunchOrder::let_follow(cudaStream_t stream) const {
  if (launched_) (void)cudaStreamWaitEvent(stream, last_, 0);
}

bool LaunchOrder::drain(Milliseconds patience) const {
  if (patience != Milliseconds::max() && launched_) {
    const auto deadline = Clock::now() + patience;
    while (cudaEventQuery(last_) == cudaErrorNotReady) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(Milliseconds(1));
    }
  }
  // Of a graph's launches nothing is known here.
  if (capture_ != 0) (void)cudaDeviceSynchronize();
  if (launched_) (void)cudaEventSynchronize(last_);
  return true;
}

}  // namespace ringkern::cuda
