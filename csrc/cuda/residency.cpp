#include "cuda/residency.h"

#include <algorithm>
#include <cstring>

#include "cuda/device.h"
#include "cuda/messages.h"

namespace ringkern::cuda {
namespace {

// Calls `with_threads` with each kernel and the threads of its largest block that waits for others.
template <class F>
void for_each_kernel(F&& with_threads) {
  const auto f = [&](const void* kernel) { with_threads(kernel, kMaxThreads); };
  for (int p = 0; p < kProtocols; ++p)
    for (int d = 0; d < kDTypes; ++d)
      for (const Combine c : {Combine::sum, Combine::prod}) f(kernel_for(Protocol(p), DType(d), c));
  for (int p = 0; p < kProtocols; ++p) f(timed_kernel_for(Protocol(p)));
  with_threads(message_kernel(), kMostMessageThreads);
  for (int d = 0; d < kDTypes; ++d) {
    for (const Combine c : {Combine::sum, Combine::prod}) {
      f(direct_kernel_for(DType(d), c));
      f(in_place_kernel(DType(d), c));
      with_threads(across_kernel(DType(d), c), kMostAcrossThreads);
    }
    f(alone_kernel(DType(d)));
    if (const void* const norm = norm_kernel_for(DType(d))) f(norm);
    if (kind_of(DType(d)) != Kind::floating) continue;
    f(direct_kernel_for(DType(d), Combine::sum, /*tree=*/true));
    with_threads(in_place_kernel(DType(d), Combine::sum, true), kMostInPlaceThreads / 2);
    with_threads(across_kernel(DType(d), Combine::sum, true), kMostAcrossThreads);
  }
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

int resident_blocks(int device) {
  int each = 1 << 20;
  for_each_kernel([&](const void* kernel, int threads) {
    load(kernel);
    int blocks = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    each = std::min(each, blocks);
  });
  return each * attribute(cudaDevAttrMultiProcessorCount, device);
}

std::vector<cudaLaunchAttribute> attributes_of_waiting(int device, bool together) {
  std::vector<cudaLaunchAttribute> found;
  // Without domains, a fence would wait for the stores of all kernels beside this one, such as a
  // GEMM. Fences of system scope or the stream must order data that crosses from domain to domain
  // within a device; a launch is in one domain.
  if (attribute(cudaDevAttrComputeCapabilityMajor, device) >= 9) {
    auto& domain = found.emplace_back();
    domain.id = cudaLaunchAttributeMemSyncDomain;
    domain.val.memSyncDomain = cudaLaunchMemSyncDomainRemote;
  }
  // Without this, two rings on streams of different priority could each have room for only a part
  // of their blocks.
  if (together && attribute(cudaDevAttrCooperativeLaunch, device) != 0) {
    auto& cooperative = found.emplace_back();
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
  }
  return found;
}

int channels_of(int64_t blocks, int ranks) {
  if (blocks < ranks) return 0;
  const int64_t cached = kFifoBudget / default_geometry().fifo_bytes(Protocol::simple);
  return int(std::clamp<int64_t>(std::min(blocks, cached) / ranks, 1, kMaxChannels));
}

DeviceRoom room_of(int device) {
  check_device(device);
  const OnDevice guard(device);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  DeviceRoom room{bus_of(device), {}, resident_blocks(device)};
  static_assert(sizeof room.uuid == sizeof properties.uuid);
  std::memcpy(room.uuid.data(), &properties.uuid, sizeof room.uuid);
  return room;
}

int channels_of(const std::vector<DeviceRoom>& rooms, const RankNames& names) {
  int channels = default_geometry().channels;
  for (const DeviceRoom& room : rooms) {
    int ranks = 0;
    std::string list;
    for (size_t r = 0; r < rooms.size(); ++r)
      if (rooms[r].bus == room.bus && rooms[r].uuid == room.uuid) {
        ++ranks;
        list += " " + std::to_string(names.number(int(r)));
      }
    channels = std::min(channels, channels_of(room.blocks, ranks));
    if (channels < 1)
      throw UsageError("the device at " + room.bus + " holds " + std::to_string(room.blocks) +
                       " blocks at once, and " + std::to_string(ranks) +
                       " ranks of a ring are on it, which need one each: rank" + list +
                       ". Put fewer ranks on it, or use a larger GPU or MIG slice");
  }
  return channels;
}

}  // namespace ringkern::cuda
