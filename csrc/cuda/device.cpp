#include "cuda/device.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace ringkern::cuda {
namespace {

// Returns true if the driver cannot be queried.
bool has_context(int device) {
  using GetState = int (*)(int device, unsigned* flags, int* active);
  static const auto get_state = driver_function<GetState>("cuDevicePrimaryCtxGetState", 7000);
  unsigned flags = 0;
  int active = 0;
  return get_state == nullptr || get_state(device, &flags, &active) != 0 || active != 0;
}

// Streams that were given back, by device.
struct StreamPool {
  static StreamPool& mine() {
    static auto* const all = new StreamPool;  // tensors outlive everything
    return *all;
  }
  std::mutex mutex;
  std::map<int, std::vector<cudaStream_t>> free;
};

}  // namespace

int device_count() noexcept {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  (void)cudaGetLastError();  // or a later call of someone else would report it
  return 0;
}

int runtime_version() noexcept {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

std::string describe(const char* call, cudaError_t error) {
  return std::string(call) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) +
         ", code " + std::to_string(int(error)) + ")";
}

void check(cudaError_t error, const char* call, const char* remedy) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  if (error == cudaErrorStreamCaptureUnsupported || error == cudaErrorStreamCaptureImplicit)
    remedy = "A CUDA graph is captured, and the first call takes memory: make one call before";
  if (error == cudaErrorStreamCaptureInvalidated)
    remedy =
        "A call that a CUDA graph cannot hold has made the capture invalid: end it and capture "
        "again without that call";
  throw TransportError(describe(call, error) + (*remedy ? std::string(". ") + remedy : ""));
}

cudaError_t beside_cache(const std::function<cudaError_t()>& take) {
  const cudaError_t error = take();
  if (error != cudaErrorMemoryAllocation || framework.empty_cache == nullptr) return error;
  (void)cudaGetLastError();  // or a later call of someone else would report it
  framework.empty_cache();
  return take();
}

void* allocate(size_t bytes, const char* remedy) {
  void* memory = nullptr;
  check(beside_cache([&] { return cudaMalloc(&memory, bytes); }), "cudaMalloc", remedy);
  return memory;
}

void* find_in_driver(const char* name, unsigned version) noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
#else
  (void)version;
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (error == cudaSuccess && result == cudaDriverEntryPointSuccess) return found;
  (void)cudaGetLastError();  // or a later call of someone else would report it
  return nullptr;
}

void load(const void* kernel) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes",
        "ringkern.build_info() says for which GPUs it was built; build it again with "
        "RINGKERN_CUDA_ARCHS set for this one");
}

void launch_kernel(const void* kernel, unsigned blocks, int threads, void* argument,
                   cudaStream_t stream, std::span<const cudaLaunchAttribute> attributes) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(unsigned(threads));
  config.stream = stream;
  config.attrs = const_cast<cudaLaunchAttribute*>(attributes.data());
  config.numAttrs = unsigned(attributes.size());
  check(cudaLaunchKernelExC(&config, kernel, &argument), "cudaLaunchKernelExC");
}

std::string bus_of(int device) noexcept {
  char bus[32] = {};
  if (cudaDeviceGetPCIBusId(bus, int(sizeof bus), device) == cudaSuccess) return bus;
  (void)cudaGetLastError();
  return {};
}

bool carries_lines(int from, int to) {
  if (from == to) return true;
  int native = 0;
  if (cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, from, to) ==
      cudaSuccess)
    return native != 0;
  (void)cudaGetLastError();  // as below: a ring does without LL128 where nothing is known
  return false;
}

bool carries_lines(int from, const char* bus) {
  int to = -1;
  if (cudaDeviceGetByPCIBusId(&to, bus) == cudaSuccess) return carries_lines(from, to);
  (void)cudaGetLastError();  // or a later call of someone else would report it
  return false;
}

void check_device(int device) {
  int n = 0;
  check(cudaGetDeviceCount(&n), "cudaGetDeviceCount",
        "No GPU can be used: see whether nvidia-smi shows one, whether its driver is new enough "
        "for the CUDA version of ringkern.build_info(), and what CUDA_VISIBLE_DEVICES says");
  if (device < 0 || device >= n)
    throw TransportError("there is no CUDA device " + std::to_string(device) +
                         ": this process sees " + std::to_string(n) +
                         ", numbered from 0 (see CUDA_VISIBLE_DEVICES)");
}

cudaStream_t take_stream(int device) {
  const OnDevice guard(device);
  const BesideCaptures beside;
  StreamPool& pool = StreamPool::mine();
  const std::lock_guard lock(pool.mutex);
  std::vector<cudaStream_t>& free = pool.free[device];
  const auto idle = std::ranges::find_if(
      free, [](cudaStream_t stream) { return cudaStreamQuery(stream) == cudaSuccess; });
  (void)cudaGetLastError();  // or a later call of someone else would report it
  if (idle != free.end()) {
    const cudaStream_t found = *idle;
    free.erase(idle);
    return found;
  }
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
        "cudaStreamCreateWithPriority");
  return stream;
}

void give_back_stream(int device, cudaStream_t stream) {
  StreamPool& pool = StreamPool::mine();
  const std::lock_guard lock(pool.mutex);
  pool.free[device].push_back(stream);
}

void clear(int device, void* memory, size_t bytes) {
  const cudaStream_t stream = take_stream(device);
  cudaError_t error = cudaMemsetAsync(memory, 0, bytes, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  give_back_stream(device, stream);
  check(error, "cudaMemsetAsync");
}

unsigned long long capture_of(cudaStream_t stream) {
  if (stream == nullptr) return 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  check(cudaStreamGetCaptureInfo(stream, &status, &id), "cudaStreamGetCaptureInfo");
  if (status == cudaStreamCaptureStatusInvalidated)
    check(cudaErrorStreamCaptureInvalidated, "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

OnDevice::OnDevice(int device) {
  int current = -1;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  check(cudaSetDevice(device), "cudaSetDevice");
  before_ = current;
}

OnDevice::~OnDevice() {
  if (before_ < 0) return;
  if (has_context(before_)) (void)cudaSetDevice(before_);
  else if (framework.choose != nullptr) framework.choose(before_);
}

}  // namespace ringkern::cuda
