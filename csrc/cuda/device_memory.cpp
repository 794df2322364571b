#include "cuda/device_memory.h"

#include <cuda.h>
#include <fcntl.h>
#include <unistd.h>

#include "cuda/device.h"

namespace ringkern::cuda {
namespace {

constexpr auto kByDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// The driver's virtual memory management. Its codes are those of the runtime.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemExportToShareableHandle) exported;
  decltype(&cuMemImportFromShareableHandle) imported;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;

  // Null where the driver lacks a function.
  static const Driver* mine() {
    static const Driver found = [] {
      Driver d{};
      const bool all = d.find(d.granularity, "cuMemGetAllocationGranularity") &&
                       d.find(d.create, "cuMemCreate") && d.find(d.release, "cuMemRelease") &&
                       d.find(d.exported, "cuMemExportToShareableHandle") &&
                       d.find(d.imported, "cuMemImportFromShareableHandle") &&
                       d.find(d.reserve, "cuMemAddressReserve") &&
                       d.find(d.free, "cuMemAddressFree") && d.find(d.map, "cuMemMap") &&
                       d.find(d.unmap, "cuMemUnmap") && d.find(d.set_access, "cuMemSetAccess");
      return all ? d : Driver{};
    }();
    return found.set_access != nullptr ? &found : nullptr;
  }

  // Maps memory for a device, and releases it: from here on the mapping alone holds it.
  CUresult map_for(int device, CUmemGenericAllocationHandle memory, int64_t bytes,
                   void*& at) const {
    CUdeviceptr address = 0;
    CUmemAccessDesc access{};
    access.location = place(device);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUresult result = reserve(&address, size_t(bytes), 0, 0, 0);
    if (result == CUDA_SUCCESS) {
      result = map(address, size_t(bytes), 0, memory, 0);
      const bool mapped = result == CUDA_SUCCESS;
      if (mapped) result = set_access(address, size_t(bytes), &access, 1);
      if (result == CUDA_SUCCESS) at = reinterpret_cast<void*>(address);
      else drop(reinterpret_cast<void*>(address), bytes, mapped);
    }
    (void)release(memory);
    return result;
  }
  void drop(void* at, int64_t bytes, bool mapped = true) const {
    const auto address = reinterpret_cast<CUdeviceptr>(at);
    if (mapped) (void)unmap(address, size_t(bytes));
    (void)free(address, size_t(bytes));
  }
  static CUmemLocation place(int device) {
    CUmemLocation on{};
    on.type = CU_MEM_LOCATION_TYPE_DEVICE;
    on.id = device;
    return on;
  }

 private:
  template <class F>
  static bool find(F& function, const char* name) {
    function = driver_function<F>(name, 10020);
    return function != nullptr;
  }
};

std::string describe(const char* call, CUresult result) {
  return cuda::describe(call, cudaError_t(result));
}

}  // namespace

bool export_by_ipc(void* at, cudaIpcMemHandle_t& handle) noexcept {
  if (cudaIpcGetMemHandle(&handle, at) == cudaSuccess) return true;
  (void)cudaGetLastError();  // or a later call of someone else would report it
  return false;
}

DeviceMemory::DeviceMemory(int device, int64_t bytes, const std::string& remedy)
    : device_(device), bytes_(align_up(bytes, kBlock)) {
  check_device(device);
  const OnDevice guard(device);
  exportable_ = memory_choice == MemoryChoice::any && claim_exportable();
  if (!exportable_) at_ = allocate(size_t(bytes_), remedy.c_str());
  try {
    // Before anybody gets a handle: a neighbour's first write must not be cleared.
    clear(device, at_, size_t(bytes));
  } catch (...) {
    release();
    throw;
  }
}

// Returns false if the device has no such memory, or no room: then `allocate` reports it.
bool DeviceMemory::claim_exportable() {
  const Driver* const driver = Driver::mine();
  if (driver == nullptr) return false;
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = Driver::place(device_);
  what.requestedHandleTypes = kByDescriptor;
  size_t granule = 0;
  if (driver->granularity(&granule, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
    return false;
  const int64_t whole = align_up(bytes_, int64_t(granule));
  CUmemGenericAllocationHandle memory{};
  const cudaError_t error =
      beside_cache([&] { return cudaError_t(driver->create(&memory, size_t(whole), &what, 0)); });
  if (error != cudaSuccess) return false;
  if (driver->exported(&fd_, memory, kByDescriptor, 0) != CUDA_SUCCESS) {
    (void)driver->release(memory);
    return false;
  }
  (void)::fcntl(fd_, F_SETFD, FD_CLOEXEC);
  if (driver->map_for(device_, memory, whole, at_) != CUDA_SUCCESS) return close_fd(), false;
  bytes_ = whole;
  return true;
}

DeviceMemory::~DeviceMemory() { release(); }

void DeviceMemory::close_fd() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void DeviceMemory::release() noexcept {
  close_fd();
  if (at_ == nullptr) return;
  try {
    const OnDevice guard(device_);
    if (exportable_) Driver::mine()->drop(at_, bytes_);
    else (void)cudaFree(at_);
  } catch (const Error&) {
    // The driver has shut down before us, at exit, and has taken the memory back.
  }
}

MemoryHandle DeviceMemory::handle() const {
  MemoryHandle handle{};
  handle.kind = MemoryHandle::Kind::descriptor;
  handle.bytes = bytes_;
  handle.pid = ::getpid();
  if (exportable_) return handle;
  const OnDevice guard(device_);
  const bool exported = export_by_ipc(at_, handle.ipc);
  handle.kind = exported ? MemoryHandle::Kind::ipc : MemoryHandle::Kind::none;
  return handle;
}

void* OpenedMemory::open(const MemoryHandle& handle, int fd, std::string& why_not) {
  const auto refuse = [&](std::string why) -> void* { return why_not = std::move(why), nullptr; };
  if (handle.kind == MemoryHandle::Kind::ipc) {
    if (handle.pid == ::getpid())
      return refuse("both processes are pid " + std::to_string(handle.pid) +
                    " in pid namespaces of their own, and CUDA IPC does not tell them apart");
    return open(handle.ipc, why_not);
  }
  if (handle.kind != MemoryHandle::Kind::descriptor)
    return refuse("its device exports none: neither by a file descriptor nor by CUDA IPC");
  const Driver* const driver = Driver::mine();
  if (driver == nullptr) return refuse("this rank's driver lacks virtual memory management");
  const OnDevice guard(device_);
  opened_.reserve(opened_.size() + 1);
  void* at = nullptr;
  CUmemGenericAllocationHandle memory{};
  CUresult result =
      driver->imported(&memory, reinterpret_cast<void*>(uintptr_t(fd)), kByDescriptor);
  if (result != CUDA_SUCCESS) return refuse(describe("cuMemImportFromShareableHandle", result));
  result = driver->map_for(device_, memory, handle.bytes, at);
  if (result != CUDA_SUCCESS) return refuse(describe("mapping its file descriptor", result));
  opened_.push_back({at, handle.bytes});
  return at;
}

void* OpenedMemory::open(const cudaIpcMemHandle_t& handle, std::string& why_not) {
  const OnDevice guard(device_);
  opened_.reserve(opened_.size() + 1);
  void* at = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // or a later call of someone else would report it
    return why_not = cuda::describe("cudaIpcOpenMemHandle", error), nullptr;
  }
  opened_.push_back({at, 0});
  return at;
}

void OpenedMemory::close() noexcept {
  if (opened_.empty()) return;
  try {
    const OnDevice guard(device_);
    for (const Opened& each : opened_)
      if (each.bytes > 0) Driver::mine()->drop(each.at, each.bytes);
      else (void)cudaIpcCloseMemHandle(each.at);
  } catch (const Error&) {
    // The driver has shut down before us, at exit.
  }
  opened_.clear();
}

}  // namespace ringkern::cuda
