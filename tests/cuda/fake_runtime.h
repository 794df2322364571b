// A CUDA runtime that keeps its devices in host memory. It launches nothing, but records its calls,
// or passes them to devices that work (cuda/fake_device.h). It replaces the real one in every
// program that links it.
#pragma once

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/fake_device.h"
#include "cuda/messages.h"
#include "cuda/probe.h"
#include "fault/errors.h"

namespace ringkern::test {

struct Launch {
  int device;
  unsigned blocks, threads;
  cudaStream_t stream;
  std::string kernel;
  cuda::LaunchArgs args;
  std::optional<cuda::DirectArgs> direct;  // in place of args
  std::optional<cuda::NormArgs> norm;      // besides direct
  std::optional<cuda::TimedArgs> timed;    // besides args, where the kernel has a clock
  std::optional<cuda::InPlaceArgs> in_place;
  std::optional<cuda::AcrossArgs> across;
  std::optional<cuda::MessagesArgs> messages;
  std::map<cudaLaunchAttributeID, int> attributes;

  int channels() const { return direct ? direct->plan.channels : args.plan.channels; }
  const cuda::RankArgs* ranks() const { return direct ? direct->ranks : args.ranks; }
};

struct FakeRuntime {
  int devices = 3;
  static inline thread_local int current = 0;
  int processors = 132, blocks_each = 2;  // of each device
  int capability = 9;                     // the number before the dot
  bool cooperates = true;                 // takes cooperative launches
  bool peers = true;                      // have access to each other
  std::set<std::pair<int, int>> apart;    // those that have none all the same
  std::set<std::pair<int, int>> pcie;     // those whose link tears lines of LL128
  int refuses = -1;                       // the device on which every launch fails
  int spared = 0, failing = 0;            // this many launches succeed, then this many fail
  int lost = -1;                          // the device whose context is corrupted
  bool records = true;                    // events
  int full = -1;                          // the device that has no memory left
  uint32_t contexts = 0;                  // a bit for each device that has one
  int streams = 0;                        // with a priority that were ever made
  bool descriptors = true;                // for device memory: cuMemCreate
  bool exports = true;                    // them
  bool ipc = true;                        // handles of other device memory
  bool opens = true;                      // the memory of other processes
  bool registers = true;                  // host memory
  std::set<const void*> registered;
  std::map<std::byte*, std::pair<int, size_t>> memory;  // but of devices that work
  std::set<std::pair<int, int>> access;
  std::vector<Launch> launches;
  std::vector<cuda::ProbeArgs> probes;   // that have written, and not received
  std::set<std::pair<int, int>> broken;  // from, to: what is written there goes nowhere
  bool busy = false;                     // no probe ends
  int corrupt = -1;                      // one bit of what is written there is another
  unsigned long long capture = 0;  // that all streams but the default one are part of; 0: none
  int capture_queries = 0;
  cudaError_t last = cudaSuccess;
  FakeDevices* working = nullptr;  // null: copies are made at once, and launches never

  // Returns the device on which `at` lies; -1: none.
  int device_of(const std::byte* at) const {
    for (const auto& [begin, where] : memory)
      if (at >= begin && at < begin + where.second) return where.first;
    return -1;
  }
};
inline FakeRuntime runtime;
inline std::mutex of_memory;  // registered or mapped, by several links at once
inline void make_context(int device) {
  std::atomic_ref(runtime.contexts).fetch_or(uint32_t(1) << device);
}
inline std::atomic<int> message_launches = 0;

// Returns true if the TransportError with this text says that nothing was started.
inline bool refused(const char* text, const std::function<void()>& launch) {
  try {
    launch();
  } catch (const TransportError& e) {
    if (std::string(e.what()).find(text) != std::string::npos) return e.facts.refused;
    throw;
  }
  throw std::logic_error(std::string("nothing was thrown of ") + text);
}

inline FakeDevices::StreamPtr stream_of(cudaStream_t s, int device = runtime.current) {
  return runtime.working->stream(device, s);
}
inline void later(cudaStream_t s, std::function<void()> what) {
  if (runtime.working != nullptr) runtime.working->later(stream_of(s), std::move(what));
  else what();
}
inline FakeDevices::Event& event_of(cudaEvent_t e) {
  return *reinterpret_cast<FakeDevices::Event*>(e);
}
// This thread's capture mode. A relaxed thread may make unsafe calls while others capture.
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
inline cudaError_t unsafe_call() {
  if (runtime.working == nullptr || capture_mode == cudaStreamCaptureModeRelaxed)
    return cudaSuccess;
  return runtime.last = runtime.working->unsafe_call();
}

// The two halves of the probe kernel. The second needs the first of all other ranks.
inline void write_probe(const cuda::ProbeArgs& args) {
  for (const cuda::ProbeEnds& link : args.links) {
    if (link.theirs == nullptr) continue;
    const int to = runtime.device_of(reinterpret_cast<const std::byte*>(link.theirs));
    if (runtime.broken.contains({runtime.current, to})) continue;
    std::memcpy(link.theirs, link.sends, size_t(args.words) * 8);
    if (to >= 0 && to == runtime.corrupt) link.theirs[5] ^= 1;
  }
}
inline void read_probe(const cuda::ProbeArgs& args) {
  for (const cuda::ProbeEnds& link : args.links) {
    if (link.mine == nullptr || link.mine[args.words - 1] == 0) continue;
    std::memcpy(link.receives, link.mine, size_t(args.words) * 8);
    if (link.theirs != nullptr) link.theirs[args.words] = link.sends[args.words];
  }
}
inline void end_probe(const cuda::ProbeArgs& args) {
  for (const cuda::ProbeEnds& link : args.links)
    if (link.mine != nullptr) link.scratch->answer = link.mine[args.words];
}
inline void end_probes() {
  for (const cuda::ProbeArgs& args : runtime.probes) read_probe(args);
  for (const cuda::ProbeArgs& args : runtime.probes) end_probe(args);
  runtime.probes.clear();
}

inline void* zeroed(size_t bytes) {
  const size_t whole = (bytes + 255) / 256 * 256;
  return std::memset(std::aligned_alloc(256, whole), 0, whole);
}

// Returns the demangled name of each kernel, by the host function that stands for it. Code that
// nvcc adds to a file registers them before main.
inline std::map<const void*, std::string>& kernel_names() {
  static std::map<const void*, std::string> names;
  return names;
}

}  // namespace ringkern::test

#include "cuda/fake_driver.h"

extern "C" {

using ringkern::test::event_of;
using ringkern::test::FakeDevices;
using ringkern::test::later;
using ringkern::test::make_context;
using ringkern::test::runtime;
using ringkern::test::stream_of;
using ringkern::test::unsafe_call;
using ringkern::test::zeroed;

// ---- devices
cudaError_t cudaGetDeviceCount(int* n) { return *n = runtime.devices, cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { return *d = runtime.current, cudaSuccess; }
cudaError_t cudaSetDevice(int d) {
  return make_context(d), runtime.current = d, cudaSuccess;  // since CUDA 12
}
int fake_primary_state(int device, unsigned*, int* active) {
  return *active = std::atomic_ref(runtime.contexts) >> device & 1, 0;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *found = std::string(name) == "cuDevicePrimaryCtxGetState"
               ? reinterpret_cast<void*>(&fake_primary_state)
               : ringkern::test::find_driver_function(name);
  *result = *found == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = unsafe_call()) return error;
  if (runtime.working != nullptr) runtime.working->wait_for_all(runtime.current);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr which, int) {
  switch (which) {
    case cudaDevAttrMultiProcessorCount: return *v = runtime.processors, cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: return *v = runtime.capability, cudaSuccess;
    case cudaDevAttrCooperativeLaunch: return *v = runtime.cooperates, cudaSuccess;
    default: return runtime.last = cudaErrorInvalidValue;
  }
}
cudaError_t cudaDeviceCanAccessPeer(int* possible, int from, int to) {
  return *possible = runtime.peers && !runtime.apart.contains({from, to}), cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr what, int from, int to) {
  if (what != cudaDevP2PAttrNativeAtomicSupported) return runtime.last = cudaErrorInvalidValue;
  if (from == to || to >= runtime.devices) return runtime.last = cudaErrorInvalidDevice;
  return *value = !runtime.pcie.contains({from, to}), cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* bus) {
  const bool there = std::sscanf(bus, "0000:0%d:00.0", device) == 1 && *device < runtime.devices;
  return there ? cudaSuccess : runtime.last = cudaErrorInvalidDevice;
}
cudaError_t cudaDeviceEnablePeerAccess(int to, unsigned) {
  const std::lock_guard lock(ringkern::test::of_memory);
  const bool fresh = runtime.access.insert({runtime.current, to}).second;
  return runtime.last = fresh ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int n, int device) {
  return std::snprintf(id, size_t(n), "0000:0%d:00.0", device), cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  return properties->uuid.bytes[15] = char(device), cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "a name"; }
const char* cudaGetErrorString(cudaError_t) { return "a text"; }
cudaError_t cudaGetLastError() { return std::exchange(runtime.last, cudaSuccess); }

// ---- memory
cudaError_t cudaMalloc(void** p, size_t bytes) {
  if (const cudaError_t error = unsafe_call()) return error;
  make_context(runtime.current);
  if (runtime.current == runtime.lost) return runtime.last = cudaErrorIllegalAddress;
  if (runtime.current == runtime.full) return runtime.last = cudaErrorMemoryAllocation;
  if (runtime.working != nullptr) return *p = runtime.working->claim(bytes), cudaSuccess;
  runtime.memory[static_cast<std::byte*>(*p = zeroed(bytes))] = {runtime.current, bytes};
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (runtime.working != nullptr) return runtime.working->free(p), cudaSuccess;
  runtime.memory.erase(static_cast<std::byte*>(p));
  return std::free(p), cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  if (const cudaError_t error = unsafe_call()) return error;
  make_context(runtime.current);
  return *p = zeroed(bytes), cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t, unsigned) {
  make_context(runtime.current);
  if (!runtime.registers) return runtime.last = cudaErrorMemoryAllocation;
  const std::lock_guard lock(ringkern::test::of_memory);
  const bool fresh = runtime.registered.insert(p).second;
  return runtime.last = fresh ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}
cudaError_t cudaHostUnregister(void* p) {
  const std::lock_guard lock(ringkern::test::of_memory);
  const bool there = runtime.registered.erase(p) == 1;
  return runtime.last = there ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}
cudaError_t cudaHostGetDevicePointer(void** seen, void* p, unsigned) {
  const std::lock_guard lock(ringkern::test::of_memory);
  if (!runtime.registered.contains(p)) return runtime.last = cudaErrorInvalidValue;
  return *seen = p, cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return std::free(p), cudaSuccess; }
cudaError_t cudaMemset(void* p, int v, size_t n) { return std::memset(p, v, n), cudaSuccess; }
cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t s) {
  return later(s, [=] { std::memset(p, v, n); }), cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
  *handle = {};
  if (!runtime.ipc) return runtime.last = cudaErrorNotSupported;
  if (runtime.working != nullptr) *handle = runtime.working->handle_of(p, runtime.current);
  else std::memcpy(handle, &p, sizeof p);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t handle, unsigned) {
  if (!runtime.opens) return runtime.last = cudaErrorInvalidDevice;
  if (runtime.working == nullptr) return std::memcpy(p, &handle, sizeof *p), cudaSuccess;
  if (runtime.apart.contains({runtime.current, FakeDevices::device_of(handle)}))
    return runtime.last = cudaErrorInvalidDevice;
  return (*p = runtime.working->open(handle)) != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaIpcCloseMemHandle(void* p) {
  if (runtime.working != nullptr) runtime.working->close(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) {
  if (const cudaError_t error = cudaDeviceSynchronize()) return error;
  return std::memcpy(to, from, n), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t s) {
  return later(s, [=] { std::memcpy(to, from, n); }), cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t bytes, size_t rows, cudaMemcpyKind, cudaStream_t s) {
  later(s, [=] {
    for (size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, bytes);
  });
  return cudaSuccess;
}

// ---- streams and events
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  make_context(runtime.current);
  *e = reinterpret_cast<cudaEvent_t>(new FakeDevices::Event{runtime.current, {}, {}, {}});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete &event_of(e), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  if (!runtime.records) return runtime.last = cudaErrorInvalidResourceHandle;
  if (runtime.working == nullptr) return cudaSuccess;
  return runtime.last = runtime.working->record(event_of(e), stream_of(s));
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (const cudaError_t error = unsafe_call()) return error;
  if (runtime.working == nullptr) return cudaSuccess;
  const FakeDevices::Ticket recorded = runtime.working->recorded(event_of(e));
  return FakeDevices::ended(recorded) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  if (const cudaError_t error = unsafe_call()) return error;
  if (runtime.working == nullptr) return cudaSuccess;
  return FakeDevices::wait(runtime.working->recorded(event_of(e))), cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int priority) {
  make_context(runtime.current);
  if (priority != 0) ++runtime.streams;
  *s = static_cast<cudaStream_t>(zeroed(1));
  if (runtime.working != nullptr) runtime.working->make(runtime.current, *s, priority);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  if (runtime.working != nullptr) runtime.working->forget(s);
  return std::free(s), cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (const cudaError_t error = unsafe_call()) return error;
  if (runtime.working != nullptr) FakeDevices::wait(FakeDevices::asked(stream_of(s)));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  if (const cudaError_t error = unsafe_call()) return error;
  if (runtime.current == runtime.lost) return runtime.last = cudaErrorIllegalAddress;
  if (runtime.busy) return cudaErrorNotReady;
  if (runtime.working == nullptr) return ringkern::test::end_probes(), cudaSuccess;
  return FakeDevices::ended(FakeDevices::asked(stream_of(s))) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
  if (runtime.working == nullptr) return cudaSuccess;
  const bool external = flags == cudaEventWaitExternal;
  return runtime.last = runtime.working->follow(stream_of(s), event_of(e), external);
}

// ---- graphs
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** after,
#if CUDART_VERSION >= 13000
                                     const cudaGraphEdgeData**,
#endif
                                     size_t* count) {
  ++runtime.capture_queries;
  *id = runtime.capture;
  *status = *id != 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (runtime.working == nullptr) return cudaSuccess;
  const auto stream = stream_of(s);
  *status = runtime.working->status_of(stream, *id);
  if (graph == nullptr || *status != cudaStreamCaptureStatusActive) return cudaSuccess;
  *graph = reinterpret_cast<cudaGraph_t>(runtime.working->graph_of(stream));
  const auto& listed = runtime.working->dependencies_of(stream);
  return *after = listed.data(), *count = listed.size(), cudaSuccess;
}
cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                        const cudaGraphNode_t* after, size_t count, cudaEvent_t e) {
  if (!runtime.records) return runtime.last = cudaErrorInvalidResourceHandle;
  if (runtime.working == nullptr) return cudaSuccess;
  return runtime.last = runtime.working->add_record(reinterpret_cast<FakeDevices::Graph*>(graph),
                                                    {after, count}, event_of(e), *node);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return std::swap(*mode, ringkern::test::capture_mode), cudaSuccess;
}
// The others take devices that work.
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
  return runtime.last = runtime.working->begin_capture(stream_of(s), mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  auto*& made = *reinterpret_cast<FakeDevices::Graph**>(graph);
  return runtime.last = runtime.working->end_capture(stream_of(s), made);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const auto& from = *reinterpret_cast<FakeDevices::Graph*>(graph);
  *exec = reinterpret_cast<cudaGraphExec_t>(runtime.working->instantiate(from));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  runtime.working->replay(*reinterpret_cast<FakeDevices::Graph*>(exec), stream_of(s));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete reinterpret_cast<FakeDevices::Graph*>(graph), cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return delete reinterpret_cast<FakeDevices::Graph*>(exec), cudaSuccess;
}

// ---- kernels
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  return make_context(runtime.current), cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void* kernel, int threads,
                                                          size_t) {
  const std::string& name = ringkern::test::kernel_names().at(kernel);
  *n = runtime.working == nullptr ? runtime.blocks_each
                                  : runtime.working->kernels.occupancy(name, uint32_t(threads));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** args) {
  const auto [blocks, threads, stream] =
      std::tuple(config->gridDim, config->blockDim, config->stream);
  if (runtime.current == runtime.lost) return runtime.last = cudaErrorIllegalAddress;
  if (runtime.spared > 0) {
    --runtime.spared;
  } else if (runtime.current == runtime.refuses || runtime.failing > 0) {
    runtime.failing = std::max(0, runtime.failing - 1);
    return runtime.last = cudaErrorLaunchOutOfResources;
  }
  const std::string& name = ringkern::test::kernel_names().at(kernel);
  const auto is = [&](const char* what) { return name.find(what) != std::string::npos; };
  if (runtime.working != nullptr) {
    const auto on = stream_of(stream);
    if (is("::messages(")) ++ringkern::test::message_launches;
    if (on->device != runtime.current) return runtime.last = cudaErrorInvalidResourceHandle;
    const auto& kernels = runtime.working->kernels;
    return runtime.last =
               runtime.working->launch(on, kernels.launch(name, blocks.x, threads.x, args[0]));
  }
  if (is("::probe(")) {
    const auto& probe = *static_cast<ringkern::cuda::ProbeArgs*>(args[0]);
    ringkern::test::write_probe(probe);
    runtime.probes.push_back(probe);
    return cudaSuccess;
  }
  auto& launch = runtime.launches.emplace_back();
  launch.device = runtime.current, launch.blocks = blocks.x, launch.threads = threads.x;
  launch.stream = stream, launch.kernel = name;
  for (const auto& each : std::span(config->attrs, config->numAttrs)) {
    if (each.id == cudaLaunchAttributeMemSyncDomain)
      launch.attributes[each.id] = each.val.memSyncDomain;
    else if (each.id == cudaLaunchAttributeCooperative)
      launch.attributes[each.id] = each.val.cooperative;
    else return runtime.last = cudaErrorInvalidValue;
  }
  if (is("::alone<")) return cudaSuccess;
  if (is("::messages(")) {
    launch.messages = *static_cast<ringkern::cuda::MessagesArgs*>(args[0]);
    return cudaSuccess;
  }
  if (is("::in_place<")) {
    launch.in_place = *static_cast<ringkern::cuda::InPlaceArgs*>(args[0]);
    return cudaSuccess;
  }
  if (is("::across<")) {
    launch.across = *static_cast<ringkern::cuda::AcrossArgs*>(args[0]);
    return cudaSuccess;
  }
  if (is("::norm_kernel<")) launch.norm = *static_cast<ringkern::cuda::NormArgs*>(args[0]);
  if (is("::direct_kernel<") || launch.norm)
    launch.direct = *static_cast<ringkern::cuda::DirectArgs*>(args[0]);
  else launch.args = *static_cast<ringkern::cuda::LaunchArgs*>(args[0]);
  if (is("::timed_kernel<")) launch.timed = *static_cast<ringkern::cuda::TimedArgs*>(args[0]);
  return cudaSuccess;
}

// ---- functions that nvcc calls
void** __cudaRegisterFatBinary(void*) {
  static void* none = nullptr;
  return &none;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, nullptr);
  ringkern::test::kernel_names()[host] = text;
  std::free(text);
}
// Called only for a kernel that is called as a function, which none is.
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { std::abort(); }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { std::abort(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  std::abort();
}

}  // extern "C"
