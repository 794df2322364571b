// Which backend serves a torch device, and what its rings are made of.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/news.h"
#include "cpu/engine.h"
#include "cpu/shm.h"
#if RK_WITH_CUDA
#include "cuda/device.h"
#include "cuda/engine.h"
#include "cuda/ipc.h"
#endif

namespace ringkern::torch_ext {

inline Device cpu_device(int rank, int ranks, Milliseconds timeout) {
  Device device;
  device.name = device.terms.device = "cpu";
  device.terms.geometry = cpu::default_geometry();
  device.terms.segment_bytes = cpu::segment_bytes(device.terms.geometry);
  device.probe = cpu::probe_room(device.terms.geometry);
  const auto arenas = std::make_shared<cpu::Arenas>();
  device.make_transport = [=, bytes = device.terms.segment_bytes] {
    return std::make_unique<cpu::ShmTransport>(bytes, arenas);
  };
  device.make_executor = [=, geometry = device.terms.geometry](const Segments& segments) {
    return std::make_unique<cpu::Engine>(segments, geometry, rank, ranks, timeout, arenas);
  };
  return device;
}

// The function of ringkern/choose/ring_order.py from buses and channels to orders of the ranks. Null
// until Python has set it; never freed, because Python may end first.
inline pybind11::object*& arranger() {
  static pybind11::object* function = nullptr;
  return function;
}

// A ring is none the worse for an order that was not found.
inline RingOrders arranged(const std::vector<std::string>& buses, int channels) {
  RingOrders orders;
  if (arranger() == nullptr) return orders;
  const pybind11::gil_scoped_acquire gil;
  try {
    const auto found =
        pybind11::cast<std::vector<std::vector<int>>>((*arranger())(buses, channels));
    for (const std::vector<int>& order : found)
      if (order.size() != buses.size() || !orders.add(order.data(), int(order.size())))
        throw pybind11::value_error("no order of " + std::to_string(buses.size()) + " ranks");
  } catch (const std::exception& e) {
    NewsDesk::all().post(NewsKind::warning,
                         std::string("the ranks stand in their own order, because no better one "
                                     "could be looked for: ") +
                             e.what());
    return {};
  }
  return orders;
}

#if RK_WITH_CUDA
inline Device cuda_device(int index, int rank, int ranks, Milliseconds timeout,
                          int channels = cuda::default_geometry().channels) {
  Device device;
  device.name = "cuda:" + std::to_string(index);
  device.terms.device = "cuda";
  device.terms.geometry = cuda::default_geometry();
  device.terms.geometry.channels = channels;
  device.terms.segment_bytes = cuda::segment_bytes(device.terms.geometry, ranks);
  device.terms.workers = cuda::kPlanWorkers;
  device.probe = cuda::probe_room(device.terms.geometry);
  if (ranks > 2) {  // two can stand in one order only
    device.terms.bus = cuda::bus_of(index);
    device.arrange = [=](const std::vector<std::string>& buses) {
      return arranged(buses, channels);
    };
  }
  device.make_transport = [=, bytes = device.terms.segment_bytes] {
    return std::make_unique<cuda::IpcTransport>(index, bytes, rank, ranks);
  };
  device.make_executor = [=, geometry = device.terms.geometry](const Segments& segments) {
    return std::make_unique<cuda::Engine>(segments, geometry, rank, ranks, index, timeout);
  };
  return device;
}
#endif

[[noreturn]] inline void throw_no_kernels(c10::Device device) {
  throw pybind11::value_error("ringkern has no kernels for a tensor on device '" + device.str() +
                              "'. It takes CPU tensors" +
                              (RK_WITH_CUDA
                                   ? " and CUDA tensors."
                                   : "; for CUDA tensors build it where nvcc is on the PATH "
                                     "(see ringkern.build_info())."));
}

inline Device device_for(c10::Device device, int rank, int ranks, Milliseconds timeout) {
  if (device.is_cpu()) return cpu_device(rank, ranks, timeout);
#if RK_WITH_CUDA
  if (device.is_cuda()) return cuda_device(device.index(), rank, ranks, timeout);
#endif
  throw_no_kernels(device);
}

// A stream of ringkern's own, as torch knows those that it did not make: by their address. torch's
// pools are shared with the user, and what waits for a peer there may keep the peer waiting.
inline c10::Stream make_stream(c10::Device device) {
#if RK_WITH_CUDA
  if (device.is_cuda())
    return c10::Stream(c10::Stream::UNSAFE, device,
                       reinterpret_cast<c10::StreamId>(cuda::make_stream(device.index())));
#endif
  throw_no_kernels(device);
}

// What a link between a pair of ranks is made of: `place` 0 sends and 1 receives. A rank may have
// many, so they are smaller than those of the ring.
inline Device pair_device_for(c10::Device device, int place, Milliseconds timeout) {
#if RK_WITH_CUDA
  if (device.is_cuda()) return cuda_device(device.index(), place, 2, timeout, /*channels=*/4);
#endif
  throw_no_kernels(device);
}

inline void bind_arranger(pybind11::module_& m) {
  m.def(
      "set_arranger",
      [](const pybind11::object& function) {
        delete std::exchange(arranger(),
                             function.is_none() ? nullptr : new pybind11::object(function));
      },
      pybind11::arg("function"));
  m.def(
      "arranged",
      [](const std::vector<std::string>& buses, int channels) {
        const RingOrders orders = arranged(buses, channels);
        std::vector<std::vector<int>> lists;
        for (int i = 0; i < orders.count; ++i)
          for (int p = (lists.emplace_back(), 0); p < int(buses.size()); ++p)
            lists.back().push_back(orders.rank_at(i, p));
        return lists;
      },
      pybind11::arg("buses"), pybind11::arg("channels"),
      "What a ring on CUDA asks the arranger on rank 0, and what it makes of the answer.");
}

}  // namespace ringkern::torch_ext
