// Linked into the extension in place of the CUDA runtime: the fake runtime, and torch's view of its
// devices, which a torch without CUDA lacks. Python follows the host's waits by ctypes.
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <optional>

#include "cuda/device.h"
#include "cuda/fake_runtime.h"
#include "ptx/host.h"
#include "ptx/kernels.h"
#include "torch/work.h"

namespace {

using ringkern::test::FakeDevices;
using ringkern::test::runtime;

std::atomic<long> touched = 0;  // calls of the guard
std::atomic<int> recorded = 0;  // tensors whose use on a stream torch's allocator was told
// Called when the host waits for a stream of a device or for an event; for an event, the stream is
// 0.
std::atomic<void (*)(int, long)> waits = nullptr;
thread_local long current_streams[8];
cudaStream_t current_stream(int device) {
  return reinterpret_cast<cudaStream_t>(current_streams[device]);
}

class FakeGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device before = getDevice();
    return setDevice(d), before;
  }
  c10::Device getDevice() const override { return ++touched, at(runtime.current); }
  void setDevice(c10::Device d) const override { ++touched, (void)cudaSetDevice(d.index()); }
  // Creates no context for the device, like torch.
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    ++touched, runtime.current = d.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return ++touched, c10::DeviceIndex(runtime.devices);
  }

  c10::Stream getStream(c10::Device d) const override {
    ++touched;
    return c10::Stream(c10::Stream::UNSAFE, d, current_streams[d.index()]);
  }
  c10::Stream getNewStream(c10::Device d, int priority) const override {
    const ringkern::cuda::OnDevice guard(d.index());
    cudaStream_t made = nullptr;
    (void)cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority);
    return c10::Stream(c10::Stream::UNSAFE, d, reinterpret_cast<c10::StreamId>(made));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override {
    return getNewStream(d, 0);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const c10::Stream before = getStream(s.device());
    return current_streams[s.device_index()] = s.id(), before;
  }
  void* getStreamNativeHandle(const c10::Stream s) const override {
    return reinterpret_cast<void*>(s.id());
  }
  void synchronizeStream(const c10::Stream& s) const override {
    ++touched;
    if (auto* told = waits.load()) told(s.device_index(), s.id());
    if (runtime.working != nullptr) FakeDevices::wait(FakeDevices::asked(stream(s)));
  }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    ++touched;
    if (*event == nullptr) *event = new FakeDevices::Event{s.device_index(), {}, {}, {}};
    if (runtime.working != nullptr) check(runtime.working->record(of(*event), stream(s)));
  }
  void block(void* event, const c10::Stream& s) const override {
    ++touched;
    if (runtime.working != nullptr) check(runtime.working->follow(stream(s), of(event)));
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override { ++recorded; }
  bool queryEvent(void* event) const override {
    ++touched;
    if (runtime.working != nullptr) check(runtime.working->query(of(event)));
    return runtime.working == nullptr || FakeDevices::ended(runtime.working->recorded(of(event)));
  }
  void synchronizeEvent(void* event) const override {
    if (auto* told = waits.load()) told(of(event).device, 0);
    FakeDevices::wait(of(event).ticket);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeDevices::Event*>(event);
  }

 private:
  static FakeDevices::Event& of(void* event) { return *static_cast<FakeDevices::Event*>(event); }
  static FakeDevices::StreamPtr stream(const c10::Stream& s) {
    return ringkern::test::stream_of(reinterpret_cast<cudaStream_t>(s.id()), s.device_index());
  }
  static void check(cudaError_t error) {
    TORCH_CHECK(error == cudaSuccess, "the fake runtime says ", int(error));
  }
  static c10::Device at(int index) { return {c10::kCUDA, c10::DeviceIndex(index)}; }
};

C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard)

// Returns a tensor on the device that shares the memory.
at::Tensor on_device(const at::Tensor& memory, int device) {
  const c10::Device on(c10::kCUDA, c10::DeviceIndex(device));
  auto maker = at::for_blob(memory.data_ptr(), memory.sizes());
  // The memory is not reused before the device has reached this point; torch's allocator guarantees
  // that.
  maker.deleter([memory, device](void*) {
    if (runtime.working != nullptr) runtime.working->after_all(device, [memory] {});
  });
  maker.options(memory.options().device(on)).target_device(on);
  return maker.make_tensor();
}

// ---- The operators that exchanges need, which a torch without CUDA lacks

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat>) {
  const auto options = at::TensorOptions().dtype(dtype.value_or(at::kFloat));
  return on_device(at::empty(C10_AS_INTARRAYREF_SLOW(sizes), options),
                   device && device->has_index() ? device->index() : runtime.current);
}
// Runs on the current stream of the device that it copies to.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  const auto memory_of = [](const at::Tensor& t) {
    return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU));
  };
  const int device = to.device().index();
  const auto on = ringkern::test::stream_of(current_stream(device), device);
  runtime.working->later(on, [to = memory_of(to), from = memory_of(from)] { to.copy_(from); });
  return to;
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("empty.memory_format", &empty);
  m.impl("copy_", &copy);
}

}  // namespace

// Stands in for torch's cache, which holds all memory of the full device.
class FakeAllocator final : public c10::DeviceAllocator {
 public:
  void emptyCache(c10::MempoolId_t) override { runtime.full = -1; }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, size_t) const override {}
};

// A device whose calls end on the test's request.
class ToldDevice final : public ringkern::Executor {
 public:
  ringkern::RunResult run(const ringkern::Task&) override { return {}; }
  void abort() override {}
  Progress progress() const override { return {done, failed}; }
  uint64_t done = 0;
  std::optional<ringkern::Fault> failed;
};
ToldDevice told_device;
const auto told_calls = std::make_shared<ringkern::EnqueuedCalls>(told_device);

#define RK_EXPORT extern "C" __attribute__((visibility("default")))

RK_EXPORT long fake_touched() { return touched; }
RK_EXPORT int fake_recorded() { return recorded; }
RK_EXPORT int fake_message_launches() { return ringkern::test::message_launches; }
RK_EXPORT void fake_set_devices(int devices) { runtime.devices = devices; }
RK_EXPORT void fake_set_apart(int from, int to) { runtime.apart.insert({from, to}); }
RK_EXPORT void fake_set_descriptors(int has) { runtime.descriptors = has != 0; }
RK_EXPORT void fake_set_registers(int registers) { runtime.registers = registers != 0; }
RK_EXPORT long fake_registered() { return long(runtime.registered.size()); }
RK_EXPORT void fake_set_pcie(int from, int to) { runtime.pcie = {{from, to}}; }
RK_EXPORT void fake_on_wait(void (*told)(int, long)) { waits = told; }
RK_EXPORT long fake_set_stream(int device, long stream) {
  return std::exchange(current_streams[device], stream);
}
// A work of a call on a device: enqueued, the `seq`-th of its ring.
RK_EXPORT PyObject* fake_work(long seq) {
  ringkern::torch_ext::Call call;
  call.type = c10d::OpType::ALLREDUCE;
  call.device = c10::Device(c10::kCUDA, 0);
  auto work = c10::make_intrusive<ringkern::torch_ext::CallWork>(std::move(call), 1);
  work->follow(told_calls, uint64_t(seq));
  work->end_part(nullptr);
  return py::cast(c10::intrusive_ptr<c10d::Work>(std::move(work))).release().ptr();
}
RK_EXPORT void fake_done(long seq) { told_device.done = uint64_t(seq); }
RK_EXPORT void fake_fail(long seq) {
  const ringkern::WaitReport report{ringkern::Verdict::timed_out};
  told_device.failed = ringkern::failed_wait(report, 0, 1, uint64_t(seq), {}, 1, {});
  told_calls->fail(*told_device.failed);  // like the watch
}
// Returns a device tensor, which shares the memory, as a CPU tensor.
RK_EXPORT PyObject* fake_tensor(PyObject* given, int device) {
  // Separate from Python's tensor, so that the device's thread can release it without the GIL.
  const auto memory = py::cast<at::Tensor>(py::handle(given)).detach();
  return py::cast(on_device(memory, device)).release().ptr();
}
// Parses all kernels; otherwise the first ring parses most of them.
RK_EXPORT void fake_read_kernels() {
  for (const auto& [name, kernel] : ptx::kernels()) ptx::kernel_called(name);
}
// Starts the devices of this process.
RK_EXPORT void fake_start(int processors) {
  runtime.processors = processors;
  runtime.working = new FakeDevices({ptx::launch_of, ptx::blocks_each}, runtime.processors);
}

// Lets this many launches fail, after the given number that do not.
RK_EXPORT void fake_fail_launches(int launches, int spared) {
  runtime.failing = launches, runtime.spared = spared;
}
// Makes a call that a capture does not allow.
RK_EXPORT int fake_unsafe_call() { return cudaDeviceSynchronize(); }
RK_EXPORT int fake_current_device() { return runtime.current; }
RK_EXPORT unsigned fake_contexts() { return runtime.contexts; }
RK_EXPORT int fake_streams() { return runtime.streams; }
// Leaves the device without memory, except what torch keeps for later.
RK_EXPORT void fake_fill(int device) {
  static FakeAllocator allocator;
  c10::SetAllocator(c10::kCUDA, &allocator);
  runtime.full = device;
}
RK_EXPORT void fake_lose(int device) { runtime.lost = device; }

// The calls of torch.cuda.CUDAGraph on the current stream of a device; they return CUDA's error.
RK_EXPORT int fake_begin_capture(int device) {
  const ringkern::cuda::OnDevice guard(device);
  return cudaStreamBeginCapture(current_stream(device), cudaStreamCaptureModeGlobal);
}
RK_EXPORT int fake_end_capture(int device, cudaGraphExec_t* exec) {
  const ringkern::cuda::OnDevice guard(device);
  cudaGraph_t graph = nullptr;
  if (const cudaError_t error = cudaStreamEndCapture(current_stream(device), &graph)) return error;
  (void)cudaGraphInstantiate(exec, graph, 0);
  return cudaGraphDestroy(graph);
}
RK_EXPORT int fake_replay(int device, cudaGraphExec_t exec) {
  const ringkern::cuda::OnDevice guard(device);
  return cudaGraphLaunch(exec, current_stream(device));
}
