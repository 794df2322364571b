#include "torch/devices.h"

#include <ATen/Parallel.h>

namespace ringkern::torch_ext {

namespace {

// Runs `body` on torch's intra-op threads: those of the operators of the program.
void on_torch_threads(int n, const std::function<void(int first, int last)>& body) {
  at::parallel_for(0, n, /*grain_size=*/1,
                   [&](int64_t first, int64_t last) { body(int(first), int(last)); });
}

}  // namespace

Device cpu_device(int rank, int ranks, Milliseconds timeout, int threads) {
  Device device;
  device.name = device.terms.device = "cpu";
  device.terms.geometry = cpu::default_geometry();
  device.terms.segment_bytes = cpu::segment_bytes(device.terms.geometry, threads);
  device.probe = cpu::probe_room(device.terms.geometry);
  const auto arenas = std::make_shared<cpu::Arenas>();
  device.make_transport = [=, bytes = device.terms.segment_bytes] {
    return std::make_unique<cpu::ShmTransport>(bytes, arenas);
  };
  device.make_executor =
      [=, geometry = device.terms.geometry](const Segments& segments) -> std::unique_ptr<Executor> {
    const int socket = cpu::my_socket();
    if (threads == 1)
      return std::make_unique<cpu::CpuExecutor>(segments, geometry, rank, ranks, timeout, arenas,
                                                /*channel=*/0, /*channels=*/1, socket);
    return std::make_unique<cpu::ThreadedExecutor>(segments, geometry, rank, ranks, timeout, arenas,
                                                   threads, &on_torch_threads, socket);
  };
  return device;
}

#if RK_WITH_CUDA
void set_channels(Device& device, int index, int rank, int ranks, Milliseconds timeout,
                  int channels, bool meshes, const FindOrders& orders) {
  device.terms.geometry = cuda::default_geometry();
  device.terms.geometry.channels = channels;
  device.terms.segment_bytes = cuda::segment_bytes(device.terms.geometry, ranks);
  device.probe = cuda::probe_room(device.terms.geometry);
  if (ranks > 2 && orders)  // two can stand in one order only
    device.orders = [=](const std::vector<std::string>& buses) { return orders(buses, channels); };
  const auto regions = std::make_shared<std::shared_ptr<cuda::PeerRegions>>();
  device.make_transport = [=, bytes = device.terms.segment_bytes] {
    if (meshes) *regions = std::make_shared<cuda::PeerRegions>(index, rank, ranks);
    return std::make_unique<cuda::IpcTransport>(index, bytes, rank, ranks, *regions);
  };
  device.make_executor = [=, geometry = device.terms.geometry](const Segments& segments) {
    return std::make_unique<cuda::CudaExecutor>(segments, geometry, rank, ranks, index, timeout,
                                                regions->get());
  };
}

Device cuda_device(int index, int rank, int ranks, Milliseconds timeout, bool pair,
                   const FindOrders& orders) {
  const int channels = pair ? 4 : cuda::default_geometry().channels;
  const bool meshes = !pair && cuda::MeshGeometry::make(ranks, 1).possible();
  Device device;
  device.name = "cuda:" + std::to_string(index);
  device.terms.device = "cuda";
  device.terms.workers = cuda::kPlanWorkers;
  device.terms.room.bus = cuda::bus_of(index);
  device.in_place = meshes && cuda::Regions::mine().count() > 0;
  set_channels(device, index, rank, ranks, timeout, channels, meshes, orders);
  device.room = [index] { return cuda::room_of(index); };
  device.fit = [=](Device& fitted, const std::vector<DeviceRoom>& rooms, const RankNames& names) {
    set_channels(fitted, index, rank, ranks, timeout,
                 std::min(channels, cuda::channels_of(rooms, names)), meshes, orders);
  };
  return device;
}
#endif

void throw_no_kernels(c10::Device device) {
  throw pybind11::value_error("ringkern has no kernels for a tensor on device '" + device.str() +
                              "'. It takes CPU tensors" +
                              (RK_WITH_CUDA
                                   ? " and CUDA tensors."
                                   : "; for CUDA tensors build it where nvcc is on the PATH "
                                     "(see ringkern.build_info())."));
}

Device device_for(c10::Device device, int rank, int ranks, Milliseconds timeout,
                  const FaultPolicy& policy, [[maybe_unused]] const FindOrders& orders,
                  int threads) {
  Device made;
  if (device.is_cpu()) made = cpu_device(rank, ranks, timeout, threads);
#if RK_WITH_CUDA
  else if (device.is_cuda())
    made = cuda_device(device.index(), rank, ranks, timeout, /*pair=*/false, orders);
#endif
  else throw_no_kernels(device);
  made.after_fault = after_fault(policy, device.type());
  return made;
}

std::shared_ptr<const c10::Stream> own_stream(c10::Device device) {
#if RK_WITH_CUDA
  if (device.is_cuda()) {
    cudaStream_t const stream = cuda::take_stream(device.index());
    return {new c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(stream)),
            [=](const c10::Stream* known) {
              cuda::give_back_stream(device.index(), stream);
              delete known;
            }};
  }
#endif
  throw_no_kernels(device);
}

bool is_captured([[maybe_unused]] void* stream) {
#if RK_WITH_CUDA
  return stream != nullptr && cuda::capture_of(static_cast<cudaStream_t>(stream)) != 0;
#else
  return false;
#endif
}

void check_not_captured(void* stream) {
  if (is_captured(stream))
    throw UsageError(
        "a CUDA graph is captured, and the first call takes device memory and waits for the other "
        "ranks: make one call before the capture");
}

Device pair_device_for(c10::Device device, int place, Milliseconds timeout,
                       const FaultPolicy& policy) {
#if RK_WITH_CUDA
  if (device.is_cuda()) {
    Device made = cuda_device(device.index(), place, 2, timeout, /*pair=*/true, nullptr);
    made.after_fault = after_fault(policy, device.type());
    return made;
  }
#endif
  throw_no_kernels(device);
}

}  // namespace ringkern::torch_ext
