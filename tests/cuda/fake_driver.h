// The driver's virtual memory management for the fake runtime's devices: device memory is a memory
// file that bears the number of its device, and an exported descriptor is that file's.
#pragma once

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>

namespace ringkern::test {

// Returns the device of a memory file; -1: it is not a device's file.
inline int device_of_file(int fd) {
  char name[64] = {};
  int device = -1;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (::readlink(path.c_str(), name, sizeof name - 1) < 0) return -1;
  return std::sscanf(name, "/memfd:fake device %d", &device) == 1 ? device : -1;
}

inline std::map<CUdeviceptr, int> device_mapped_at;

inline CUresult fake_granularity(size_t* bytes, const CUmemAllocationProp*,
                                 CUmemAllocationGranularity_flags) {
  return *bytes = size_t(2) << 20, CUDA_SUCCESS;
}
inline CUresult fake_create(CUmemGenericAllocationHandle* made, size_t bytes,
                            const CUmemAllocationProp* what, unsigned long long) {
  const int device = what->location.id;
  if (!runtime.descriptors) return CUDA_ERROR_NOT_SUPPORTED;
  if (device == runtime.lost) return CUDA_ERROR_ILLEGAL_ADDRESS;
  if (device == runtime.full) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::string name = "fake device " + std::to_string(device);
  const int fd = ::memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, off_t(bytes)) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  return *made = CUmemGenericAllocationHandle(fd), CUDA_SUCCESS;
}
inline CUresult fake_release(CUmemGenericAllocationHandle memory) {
  return ::close(int(memory)) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
inline CUresult fake_export(void* fd, CUmemGenericAllocationHandle memory,
                            CUmemAllocationHandleType, unsigned long long) {
  if (!runtime.exports) return CUDA_ERROR_NOT_SUPPORTED;
  return *static_cast<int*>(fd) = ::dup(int(memory)), CUDA_SUCCESS;
}
inline CUresult fake_import(CUmemGenericAllocationHandle* memory, void* fd,
                            CUmemAllocationHandleType) {
  const int given = int(uintptr_t(fd));
  if (!runtime.opens) return CUDA_ERROR_NOT_PERMITTED;
  if (device_of_file(given) < 0) return CUDA_ERROR_INVALID_VALUE;
  return *memory = CUmemGenericAllocationHandle(::dup(given)), CUDA_SUCCESS;
}
inline CUresult fake_reserve(CUdeviceptr* at, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  void* found = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  return *at = reinterpret_cast<CUdeviceptr>(found), CUDA_SUCCESS;
}
inline CUresult fake_free(CUdeviceptr at, size_t bytes) {
  return ::munmap(reinterpret_cast<void*>(at), bytes) == 0 ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_VALUE;
}
// Maps memory that nothing may touch until a device has access.
inline CUresult fake_map(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle memory,
                         unsigned long long) {
  struct stat file{};
  if (::fstat(int(memory), &file) != 0 || size_t(file.st_size) < bytes)
    return CUDA_ERROR_INVALID_VALUE;
  void* const to = reinterpret_cast<void*>(at);
  if (::mmap(to, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, int(memory), 0) == MAP_FAILED)
    return CUDA_ERROR_INVALID_VALUE;
  const int device = device_of_file(int(memory));
  const std::lock_guard lock(of_memory);
  device_mapped_at[at] = device;
  if (runtime.working == nullptr) runtime.memory[static_cast<std::byte*>(to)] = {device, bytes};
  return CUDA_SUCCESS;
}
inline CUresult fake_unmap(CUdeviceptr at, size_t bytes) {
  void* const from = reinterpret_cast<void*>(at);
  const std::lock_guard lock(of_memory);
  if (device_mapped_at.erase(at) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (runtime.working == nullptr) runtime.memory.erase(static_cast<std::byte*>(from));
  (void)::mmap(from, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}
inline CUresult fake_set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc* what, size_t) {
  const std::lock_guard lock(of_memory);
  const int from = what->location.id, to = device_mapped_at.at(at);
  if (from != to && (!runtime.peers || runtime.apart.contains({from, to})))
    return CUDA_ERROR_INVALID_DEVICE;
  return ::mprotect(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE) == 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

// Returns a driver function by name; null if the driver has none.
inline void* find_driver_function(const std::string& name) {
  static const std::map<std::string, void*> all{
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&fake_granularity)},
      {"cuMemCreate", reinterpret_cast<void*>(&fake_create)},
      {"cuMemRelease", reinterpret_cast<void*>(&fake_release)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(&fake_export)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(&fake_import)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&fake_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&fake_free)},
      {"cuMemMap", reinterpret_cast<void*>(&fake_map)},
      {"cuMemUnmap", reinterpret_cast<void*>(&fake_unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&fake_set_access)},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace ringkern::test
