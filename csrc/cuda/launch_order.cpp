#include "cuda/launch_order.h"

#include <algorithm>
#include <array>
#include <map>
#include <thread>
#include <vector>

#include "cuda/device.h"

namespace ringkern::cuda {

// The launches of one communicator. Its events are reused and never destroyed, because graphs may
// hold them.
struct LaunchOrder::Place {
  // The last launch of a capture.
  struct Captured {
    cudaEvent_t end = nullptr;
    unsigned long long capture = 0;  // 0: none
    cudaStream_t stream = nullptr;
    cudaGraphNode_t record = nullptr;  // of `last`
  };
  // Returns the last launch of a capture; null if it has none, or if it is not among the newest
  // ones.
  Captured* of(unsigned long long capture) {
    const auto found = std::ranges::find(captures, capture, &Captured::capture);
    return found == captures.end() ? nullptr : &*found;
  }
  bool has_graphs() const { return captures.front().capture != 0; }

  cudaEvent_t last = nullptr;
  std::array<Captured, 8> captures;  // the newest first
  int most = 0;                      // maximum blocks of a launch
  int peak = 0;                      // maximum blocks of the launches that may still run
};

struct LaunchOrder::Device {
  static Device& of(int device) {
    static auto* const all = new std::map<int, Device>;  // communicators may end after statics
    static std::mutex adding;
    const std::lock_guard lock(adding);
    return (*all)[device];
  }

  std::mutex mutex;  // guards what follows
  int held = 0;
  std::vector<Place*> places;  // the last one to launch comes last
  std::vector<Place*> free;
};

namespace {

bool has_ended(cudaEvent_t event) {
  const cudaError_t error = cudaEventQuery(event);
  (void)cudaGetLastError();  // or a later call of someone else would report it
  return error != cudaErrorNotReady;
}

void wait(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  check(cudaStreamWaitEvent(stream, event, flags), "cudaStreamWaitEvent");
}

// Adds a node to the graph that `stream` captures into. The node records `event` after the stream's
// last nodes and after `before`, unless that is null. The stream does not follow the node, and need
// not: nodes out of reach "due to direct actions on the graph do not trigger
// cudaErrorStreamCaptureUnjoined".
cudaGraphNode_t add_record(cudaStream_t stream, cudaEvent_t event, cudaGraphNode_t before) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* nodes = nullptr;
  size_t count = 0;
  check(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &nodes,
#if CUDART_VERSION >= 13000
                                 /*edgeData_out=*/nullptr,
#endif
                                 &count),
        "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive)
    check(cudaErrorStreamCaptureInvalidated, "cudaStreamGetCaptureInfo");
  std::vector<cudaGraphNode_t> after(nodes, nodes + count);
  if (before != nullptr) after.push_back(before);
  cudaGraphNode_t node = nullptr;
  check(cudaGraphAddEventRecordNode(&node, graph, after.data(), after.size(), event),
        "cudaGraphAddEventRecordNode");
  return node;
}

}  // namespace

void LaunchOrder::claim(int device, int held, int most, cudaStream_t stream) {
  device_ = &Device::of(device);
  const std::lock_guard lock(device_->mutex);
  if (device_->free.empty()) {
    auto made = std::make_unique<Place>();
    const auto make = [](cudaEvent_t& event) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    };
    make(made->last);
    for (Place::Captured& each : made->captures) make(each.end);
    device_->free.push_back(made.release());
  }
  place_ = device_->free.back();
  device_->free.pop_back();
  device_->places.push_back(place_);
  device_->held = held;
  for (Place::Captured& each : place_->captures) each.capture = 0;
  place_->most = most, place_->peak = 0;
  // Recorded once before a graph can wait for it.
  check(cudaEventRecord(place_->last, stream), "cudaEventRecord");
}

void LaunchOrder::release() noexcept {
  if (place_ == nullptr) return;
  const std::lock_guard lock(device_->mutex);
  std::erase(device_->places, place_);
  device_->free.push_back(place_);
  place_ = nullptr;
}

std::unique_lock<std::mutex> LaunchOrder::turn() const { return std::unique_lock(device_->mutex); }

std::unique_lock<std::mutex> LaunchOrder::follow_last(cudaStream_t stream, int blocks, bool ended) {
  std::unique_lock lock = turn();
  at_hand_ = capture_of(stream);
  blocks_ = blocks;
  if (!capturing()) {
    // Where there is a graph, the last launch may have been a replay, on any stream.
    if (place_->has_graphs() || (!ended && stream != last_stream_)) wait(stream, place_->last, 0);
  } else if (const Place::Captured* before = place_->of(at_hand_); before == nullptr) {
    wait(stream, place_->last, cudaEventWaitExternal);
  } else if (stream != before->stream) {
    wait(stream, before->end, 0);
  }
  if (blocks > 0) make_room(stream, blocks);
  return lock;
}

// Makes `stream` wait for launches of other communicators, the oldest first, until `blocks` fit
// beside the rest. A launch that has ended does not count, unless a graph has captured it, because
// that may be replayed at any time. A captured launch counts the largest launch of each other
// communicator.
void LaunchOrder::make_room(cudaStream_t stream, int blocks) const {
  const auto count = [&](const Place* p) {
    return p == place_ ? 0 : capturing() ? p->most : p->peak;
  };
  const auto sum = [&] {
    int all = blocks;
    for (const Place* p : device_->places) all += count(p);
    return all;
  };
  if (sum() <= device_->held) return;
  const BesideCaptures beside;
  for (Place* p : device_->places)
    if (!p->has_graphs() && has_ended(p->last)) p->peak = 0;
  int all = sum();
  for (Place* p : device_->places) {
    if (all <= device_->held) return;
    if (count(p) == 0) continue;
    if (!capturing()) wait(stream, p->last, 0);
    else if (const Place::Captured* before = p->of(at_hand_)) wait(stream, before->end, 0);
    else wait(stream, p->last, cudaEventWaitExternal);
    all -= count(p);
  }
}

void LaunchOrder::note_last(cudaStream_t stream) {
  place_->peak = std::max(place_->peak, blocks_);
  const auto mine = std::ranges::find(device_->places, place_);
  std::rotate(mine, mine + 1, device_->places.end());
  if (!capturing()) {
    check(cudaEventRecord(place_->last, stream), "cudaEventRecord");
    last_stream_ = stream;
    return;
  }
  Place::Captured* launch = place_->of(at_hand_);
  const cudaGraphNode_t before = launch == nullptr ? nullptr : launch->record;
  const cudaGraphNode_t record = add_record(stream, place_->last, before);
  if (launch == nullptr) {
    launch = place_->captures.begin();
    std::rotate(launch, place_->captures.end() - 1, place_->captures.end());
  }
  *launch = {launch->end, at_hand_, stream, record};
  check(cudaEventRecord(launch->end, stream), "cudaEventRecord");
}

void LaunchOrder::let_follow(cudaStream_t stream) const {
  (void)cudaStreamWaitEvent(stream, place_->last, 0);
}

bool LaunchOrder::drain(Milliseconds patience) const {
  if (place_ == nullptr) return true;
  const BesideCaptures beside;
  const auto begin = Clock::now();
  while (!has_ended(place_->last)) {
    if (patience == Milliseconds::max()) return (void)cudaEventSynchronize(place_->last), true;
    if (Clock::now() - begin >= patience) return false;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return true;
}

}  // namespace ringkern::cuda
