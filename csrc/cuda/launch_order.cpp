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

void LaunchOrder::follow_last(cudaStream_t stream) {
  const auto wait = [stream](cudaEvent_t event, unsigned flags) {
    check(cudaStreamWaitEvent(stream, event, flags), "cudaStreamWaitEvent");
  };
  at_hand_ = capture_of(stream);
  if (!capturing()) {
    // Where there is a graph, the last launch may have been a replay, on any stream.
    if (capture_ != 0 || stream != last_stream_) wait(last_, 0);
  } else if (at_hand_ != capture_) {
    wait(last_, cudaEventWaitExternal);
  } else if (stream != captured_stream_) {
    wait(captured_, 0);
  }
}

void LaunchOrder::note_last(cudaStream_t stream) {
  if (!capturing()) {
    check(cudaEventRecord(last_, stream), "cudaEventRecord");
    last_stream_ = stream;
    return;
  }
  capture_ = at_hand_;
  captured_stream_ = stream;
  check(cudaEventRecordWithFlags(last_, stream, cudaEventRecordExternal),
        "cudaEventRecordWithFlags");
  check(cudaEventRecord(captured_, stream), "cudaEventRecord");
}

void LaunchOrder::let_follow(cudaStream_t stream) const {
  (void)cudaStreamWaitEvent(stream, last_, 0);
}

bool LaunchOrder::drain(Milliseconds patience) const {
  const BesideCaptures beside;
  const auto begin = Clock::now();
  const auto has_ended = [this] {
    const cudaError_t error = cudaEventQuery(last_);
    (void)cudaGetLastError();  // or a later call of someone else would report it
    return error != cudaErrorNotReady;
  };
  while (!has_ended()) {
    if (patience == Milliseconds::max()) return (void)cudaEventSynchronize(last_), true;
    if (Clock::now() - begin >= patience) return false;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return true;
}

}  // namespace ringkern::cuda
