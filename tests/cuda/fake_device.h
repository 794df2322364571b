// Fake CUDA devices that run work: streams in hardware queues, events, graphs, blocks that need
// room on a multiprocessor, and memory that other processes can open.
//
// STREAMS    each uses one of the device's hardware queues, in turn: 8, or as many as
//            CUDA_DEVICE_MAX_CONNECTIONS says. The operation at the head of a queue holds up all
//            behind it, also of other streams, until its own stream and the events before it let
//            it begin, and a kernel until the last of its blocks is resident.
// ROOM       a block takes the part of a multiprocessor that its kernel's occupancy gives. If
//            several kernels wait for room, the one of the stream with the highest priority, and
//            then the oldest, gets the freed room.
// MEMORY     is memfd memory; unlike a GPU, a device stops with its process.
//
// A given function runs their kernels: tests/ptx/host.h has one.
#pragma once

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/worker.h"
#include "ptx/host.h"

namespace ringkern::test {

// The room on a device's multiprocessors, and the kernels that wait for some.
class Processors {
 public:
  explicit Processors(int processors) : free_(processors * kWhole) {}

  class Room final : public ptx::Room {
   public:
    Room(Processors& of, const ptx::Launch& launch, int priority)
        : of_(of), each_(kWhole / launch.blocks_each), left_(launch.blocks) {
      const std::lock_guard lock(of_.mutex_);
      place_ = {priority, of_.launches_++};
      of_.waiting_.insert(place_);
    }
    bool take() override {
      const std::lock_guard lock(of_.mutex_);
      if (left_ == 0 || *of_.waiting_.begin() != place_ || of_.free_ < each_) return false;
      of_.free_ -= each_;
      if (--left_ == 0) {
        of_.waiting_.erase(place_);
        of_.all_taken_.notify_all();
      }
      return true;
    }
    void leave() override {
      const std::lock_guard lock(of_.mutex_);
      of_.free_ += each_;
    }
    void wait_until_resident() {
      std::unique_lock lock(of_.mutex_);
      of_.all_taken_.wait(lock, [this] { return left_ == 0; });
    }

   private:
    Processors& of_;
    const int each_;
    uint32_t left_;  // blocks that have had no room yet
    std::pair<int, uint64_t> place_;
  };

 private:
  static constexpr int kWhole = 5040;  // parts of a multiprocessor: any number of blocks up to 10

  std::mutex mutex_;
  std::condition_variable all_taken_;
  int free_;
  uint64_t launches_ = 0;
  std::set<std::pair<int, uint64_t>> waiting_;
};

// The fake devices. They are never destroyed, because their threads may outlive statics.
class FakeDevices {
 public:
  struct Stream;
  struct Capture;
  using StreamPtr = std::shared_ptr<Stream>;
  using CapturePtr = std::shared_ptr<Capture>;
  // All operations of a stream up to a number.
  struct Ticket {
    StreamPtr stream;
    uint64_t number = 0;
  };
  struct Operation {
    std::function<void()> copy;  // or else:
    ptx::Launch launch;
  };
  struct Event;
  struct Node {
    StreamPtr on;  // null: was added to the graph itself
    Operation what;
    std::set<size_t> after;    // indices of nodes
    Event* waits = nullptr;    // or else: waits, in each replay, for what the event was last
    Event* records = nullptr;  // recorded for; records it
  };
  struct Stream {
    int device, priority;
    Worker* queue;
    std::atomic<uint64_t> asked{0}, done{0};
    CapturePtr capture;                   // that it takes part in
    std::set<size_t> after;               // its nodes that the next one follows
    std::vector<cudaGraphNode_t> listed;  // the same, as CUDA returns them
  };
  struct Graph {
    unsigned long long id;  // of the capture
    std::vector<Node> nodes;

    cudaGraphNode_t handle(size_t node) const {
      return reinterpret_cast<cudaGraphNode_t>(id << 32 | node);
    }
  };
  struct Capture {
    StreamPtr origin;
    cudaStreamCaptureMode mode;
    std::thread::id by;
    std::unique_ptr<Graph> graph;
    bool broken = false;
  };
  struct Event {
    int device;
    Ticket ticket;
    CapturePtr capture;
    std::set<size_t> after;
  };

  FakeDevices(ptx::Kernels kernels, int processors) : kernels(kernels) {
    const char* queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int count = queues == nullptr ? 8 : std::clamp(std::atoi(queues), 1, 32);
    for (Device& d : devices_) {
      d.processors = std::make_unique<Processors>(processors);
      d.queues = std::vector<Worker>(size_t(count));
    }
  }
  const ptx::Kernels kernels;

  // ---- streams

  // Returns the stream of a device with this handle; a new one for a handle that it does not know.
  StreamPtr stream(int device, cudaStream_t handle) {
    const std::lock_guard lock(mutex_);
    if (const auto made = made_.find(handle); made != made_.end()) return made->second;
    StreamPtr& found = devices_[device].others[handle];
    if (found == nullptr) found = new_stream(device, 0);
    return found;
  }
  void make(int device, cudaStream_t handle, int priority) {
    const std::lock_guard lock(mutex_);
    made_[handle] = new_stream(device, priority);
  }
  void forget(cudaStream_t handle) {
    const std::lock_guard lock(mutex_);
    made_.erase(handle);
  }
  // Enqueues a copy, or anything else that needs no multiprocessor.
  void later(const StreamPtr& s, std::function<void()> copy) { submit(s, {std::move(copy), {}}); }
  cudaError_t launch(const StreamPtr& s, ptx::Launch launch) {
    return submit(s, {nullptr, std::move(launch)});
  }
  // Calls `call` when a device has done all that it has been asked for.
  void after_all(int device, std::function<void()> call) {
    devices_[device].aside.post(
        [all = all_on(device), call = std::move(call)] {
          for (const Ticket& t : all) wait(t);
          call();
        },
        [] {});
  }
  static bool ended(const Ticket& t) { return t.stream == nullptr || t.stream->done >= t.number; }
  static void wait(const Ticket& t) {
    if (t.stream == nullptr) return;
    std::atomic<uint64_t>& now = t.stream->done;
    for (uint64_t done = now; done < t.number; done = now) now.wait(done);
  }
  static Ticket asked(const StreamPtr& s) { return {s, s->asked}; }
  void wait_for_all(int device) const {
    for (const Ticket& t : all_on(device)) wait(t);
  }

  // ---- events and graphs, with CUDA's return values

  cudaError_t record(Event& e, const StreamPtr& s) {
    const std::lock_guard lock(mutex_);
    if (e.device != s->device) return cudaErrorInvalidResourceHandle;
    if (is_broken(s)) return cudaErrorStreamCaptureInvalidated;
    e = {e.device, s->capture ? Ticket() : asked(s), s->capture, s->after};
    return cudaSuccess;
  }
  // Makes a stream wait for an event. `external`: each replay of the graph waits when it is
  // launched; only in a capture.
  cudaError_t follow(const StreamPtr& s, Event& e, bool external = false) {
    const std::lock_guard lock(mutex_);
    if (is_broken(s)) return cudaErrorStreamCaptureInvalidated;
    if (external && s->capture == nullptr) return cudaErrorIllegalState;
    if (external) return add({s, {}, {}, &e});
    if (e.capture == nullptr) {
      if (e.ticket.stream == nullptr) return cudaSuccess;  // it was never recorded
      if (s->capture != nullptr) return broken(*s->capture, cudaErrorStreamCaptureIsolation);
      return enqueue_wait(s, e.ticket), cudaSuccess;
    }
    if (s->capture == nullptr) s->capture = e.capture;
    if (s->capture != e.capture) return broken(*s->capture, cudaErrorStreamCaptureMerge);
    s->after.insert(e.after.begin(), e.after.end());
    return cudaSuccess;
  }
  // Returns whether an event is done. Fails, like the capture, if a graph has the event.
  cudaError_t query(const Event& e) const {
    const std::lock_guard lock(mutex_);
    return e.capture == nullptr ? cudaSuccess : broken(*e.capture, cudaErrorCapturedEvent);
  }
  Ticket recorded(const Event& e) const {
    const std::lock_guard lock(mutex_);
    return e.ticket;
  }
  cudaStreamCaptureStatus status_of(const StreamPtr& s, unsigned long long& capture) const {
    const std::lock_guard lock(mutex_);
    capture = s->capture == nullptr || is_broken(s) ? 0 : s->capture->graph->id;
    if (is_broken(s)) return cudaStreamCaptureStatusInvalidated;
    return capture != 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  }
  // Returns the graph that a stream captures into; null for none.
  Graph* graph_of(const StreamPtr& s) const {
    const std::lock_guard lock(mutex_);
    return s->capture == nullptr || is_broken(s) ? nullptr : s->capture->graph.get();
  }
  // Lists the nodes that the next one of a stream follows.
  const std::vector<cudaGraphNode_t>& dependencies_of(const StreamPtr& s) const {
    const std::lock_guard lock(mutex_);
    s->listed.clear();
    for (const size_t i : s->after) s->listed.push_back(s->capture->graph->handle(i));
    return s->listed;
  }
  // Adds a node that records an event. No stream follows it.
  cudaError_t add_record(Graph* graph, std::span<const cudaGraphNode_t> after, Event& e,
                         cudaGraphNode_t& node) {
    const std::lock_guard lock(mutex_);
    if (graph == nullptr) return cudaErrorInvalidValue;
    std::set<size_t> indices;
    for (const cudaGraphNode_t each : after) {
      const auto index = reinterpret_cast<size_t>(each) & 0xffffffff;
      if (index >= graph->nodes.size() || each != graph->handle(index) ||
          !indices.insert(index).second)
        return cudaErrorInvalidValue;
    }
    node = graph->handle(graph->nodes.size());
    graph->nodes.push_back({nullptr, {}, std::move(indices), nullptr, &e});
    return cudaSuccess;
  }
  // Fails a call that may wait for a device, or that no graph can hold, during a capture.
  cudaError_t unsafe_call() {
    const std::lock_guard lock(mutex_);
    for (const CapturePtr& capture : captures_)
      if (capture->mode == cudaStreamCaptureModeGlobal ||
          (capture->mode == cudaStreamCaptureModeThreadLocal &&
           capture->by == std::this_thread::get_id()))
        return broken(*capture, cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
  }
  cudaError_t begin_capture(const StreamPtr& s, cudaStreamCaptureMode mode) {
    const std::lock_guard lock(mutex_);
    if (s->capture != nullptr) return cudaErrorIllegalState;
    s->capture = std::make_shared<Capture>(
        Capture{s, mode, std::this_thread::get_id(), std::make_unique<Graph>(++last_capture_)});
    captures_.insert(s->capture);
    return cudaSuccess;
  }
  cudaError_t end_capture(const StreamPtr& s, Graph*& graph) {
    const std::lock_guard lock(mutex_);
    const CapturePtr capture = s->capture;
    if (capture == nullptr) return cudaErrorIllegalState;
    if (capture->origin != s) return broken(*capture, cudaErrorStreamCaptureUnmatched);
    const std::set<size_t> joined = with_earlier(*capture->graph, s->after);
    captures_.erase(capture);
    for (const Device& d : devices_)
      for (const StreamPtr& each : d.all)
        if (each->capture == capture) each->capture = nullptr, each->after.clear();
    graph = nullptr;
    if (capture->broken) return cudaErrorStreamCaptureInvalidated;
    for (size_t i = 0; i < capture->graph->nodes.size(); ++i)
      if (capture->graph->nodes[i].on != nullptr && !joined.contains(i))
        return cudaErrorStreamCaptureUnjoined;
    graph = capture->graph.release();
    return cudaSuccess;
  }
  // Returns a graph whose nodes are on streams of its own, one for each stream of the capture and
  // one for each node that was added to the graph itself.
  Graph* instantiate(const Graph& graph) {
    const std::lock_guard lock(mutex_);
    auto* exec = new Graph(graph);
    std::map<StreamPtr, StreamPtr> own;
    for (Node& node : exec->nodes) {
      if (node.on == nullptr) {
        node.on = new_stream(node.records->device, 0);
        continue;
      }
      StreamPtr& mine = own[node.on];
      if (mine == nullptr) mine = new_stream(node.on->device, node.on->priority);
      node.on = mine;
    }
    return exec;
  }
  // Launches a graph. Its nodes wait for records before the replay. CUDA does not define which of
  // two unordered records is an event's last; here the first is.
  void replay(const Graph& exec, const StreamPtr& s) {
    const std::lock_guard lock(mutex_);
    const Ticket before = asked(s);
    std::set<StreamPtr> used;
    std::vector<Ticket> tickets;
    std::map<Event*, size_t> last;
    for (const Node& node : exec.nodes) {
      if (used.insert(node.on).second) enqueue_wait(node.on, before);
      for (const size_t i : node.after) enqueue_wait(node.on, tickets[i]);
      if (node.waits != nullptr) enqueue_wait(node.on, node.waits->ticket);
      else if (node.records == nullptr) enqueue(node.on, node.what);
      tickets.push_back(asked(node.on));
      if (node.records == nullptr) continue;
      const auto [found, first] = last.emplace(node.records, tickets.size() - 1);
      if (!first && !with_earlier(exec, node.after).contains(found->second)) continue;
      found->second = tickets.size() - 1;
    }
    for (const auto& [event, i] : last) *event = {event->device, tickets[i], nullptr, {}};
    for (const StreamPtr& each : used) enqueue_wait(s, asked(each));
  }

  // ---- memory that other processes can open

  void* claim(size_t bytes) {
    const int fd = ::memfd_create("fake device", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, off_t(bytes)) != 0) return nullptr;
    return map({bytes, fd});
  }
  void free(void* at) { ::close(unmap(at).fd); }
  cudaIpcMemHandle_t handle_of(void* at, int device) const {
    cudaIpcMemHandle_t handle{};
    const std::lock_guard lock(mapping_);
    const Handle h{::getpid(), device, mapped_.at(at)};
    return std::memcpy(&handle, &h, sizeof h), handle;
  }
  static int device_of(const cudaIpcMemHandle_t& handle) { return read(handle).device; }
  void* open(const cudaIpcMemHandle_t& handle) {
    const Handle h = read(handle);
    const std::string path =
        "/proc/" + std::to_string(h.pid) + "/fd/" + std::to_string(h.memory.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void* at = map({h.memory.bytes, fd});
    ::close(fd);
    return at;
  }
  void close(void* at) { unmap(at); }

 private:
  struct Device {
    std::unique_ptr<Processors> processors;
    std::vector<Worker> queues;
    Worker aside;
    std::map<cudaStream_t, StreamPtr> others;  // that were not made: the default stream
    std::vector<StreamPtr> all;
  };
  struct Memory {
    size_t bytes;
    int fd;
  };
  struct Handle {
    pid_t pid;
    int device;
    Memory memory;
  };
  static Handle read(const cudaIpcMemHandle_t& handle) {
    Handle h{};
    std::memcpy(&h, &handle, sizeof h);
    return h;
  }

  // Returns these nodes of a graph and all before them.
  static std::set<size_t> with_earlier(const Graph& graph, std::set<size_t> these) {
    for (size_t i = graph.nodes.size(); i-- > 0;)
      if (these.contains(i)) these.insert(graph.nodes[i].after.begin(), graph.nodes[i].after.end());
    return these;
  }

  // The following are called with the lock held.
  StreamPtr new_stream(int device, int priority) {
    Device& d = devices_[device];
    Worker& queue = d.queues[d.all.size() % d.queues.size()];
    return d.all.emplace_back(new Stream{device, priority, &queue, {}, {}, {}, {}, {}});
  }
  static cudaError_t broken(Capture& capture, cudaError_t error) {
    capture.broken = true;
    return error;
  }
  void enqueue_wait(const StreamPtr& s, const Ticket& t) {
    if (t.stream != s) enqueue(s, {[t] { wait(t); }, {}});
  }
  void enqueue(const StreamPtr& s, Operation what) {
    const uint64_t number = ++s->asked;
    s->queue->post(
        [this, s, number, what = std::move(what)] {
          wait({s, number - 1});
          if (what.copy == nullptr) return start(s, number, what.launch);
          what.copy();
          end(s, number);
        },
        [] {});
  }

  cudaError_t submit(const StreamPtr& s, Operation what) {
    const std::lock_guard lock(mutex_);
    if (s->capture == nullptr) return enqueue(s, std::move(what)), cudaSuccess;
    if (is_broken(s)) return cudaErrorStreamCaptureInvalidated;
    return add({s, std::move(what), {}});
  }
  static bool is_broken(const StreamPtr& s) { return s->capture != nullptr && s->capture->broken; }
  static cudaError_t add(Node node) {
    std::vector<Node>& nodes = node.on->capture->graph->nodes;
    node.after = std::exchange(node.on->after, {nodes.size()});
    return nodes.push_back(std::move(node)), cudaSuccess;
  }
  std::vector<Ticket> all_on(int device) const {
    const std::lock_guard lock(mutex_);
    std::vector<Ticket> all;
    for (const StreamPtr& s : devices_[device].all) all.push_back(asked(s));
    return all;
  }
  void start(const StreamPtr& s, uint64_t number, const ptx::Launch& launch) {
    const auto room =
        std::make_shared<Processors::Room>(*devices_[s->device].processors, launch, s->priority);
    std::thread([s, number, launch, room] {
      launch.run(*room);
      end(s, number);
    }).detach();
    room->wait_until_resident();
  }
  static void end(const StreamPtr& s, uint64_t number) {
    s->done = number;
    s->done.notify_all();
  }

  void* map(const Memory& memory) {
    void* at = ::mmap(nullptr, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    const std::lock_guard lock(mapping_);
    mapped_[at] = memory;
    return at;
  }
  Memory unmap(void* at) {
    const std::lock_guard lock(mapping_);  // until it is unmapped: then its address may return
    const Memory memory = mapped_.extract(at).mapped();
    ::munmap(at, memory.bytes);
    return memory;
  }

  static constexpr int kDevices = 8;
  mutable std::mutex mutex_;  // of streams, events and captures
  Device devices_[kDevices];
  std::map<cudaStream_t, StreamPtr> made_;
  std::set<CapturePtr> captures_;
  unsigned long long last_capture_ = 0;
  mutable std::mutex mapping_;  // of what several links map at once
  std::map<void*, Memory> mapped_;
};

}  // namespace ringkern::test
