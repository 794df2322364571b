// Device memory of a rank that other processes open: by a file descriptor of CUDA's virtual memory
// management, for which they need no pid or IPC namespace in common, or by CUDA IPC.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "comm/interfaces.h"

namespace ringkern::cuda {

// Smaller allocations share one CUDA allocation, and their handle is that of the whole.
inline constexpr int64_t kBlock = 2 << 20;

// Makes the handle of CUDA IPC to device memory; returns false if CUDA has none.
bool export_by_ipc(void* at, cudaIpcMemHandle_t& handle) noexcept;

// Handle of a rank's device memory; a descriptor goes beside it.
struct MemoryHandle {
  enum class Kind : int64_t { none, ipc, descriptor };
  Kind kind;
  int64_t bytes;  // of the allocation
  cudaIpcMemHandle_t ipc;
  int64_t pid;
};

// An allocation of its own, zeroed, and never part of a caching allocator's: those may be
// expandable, which cannot be exported.
class DeviceMemory {
 public:
  // At least this many bytes. Throws TransportError, with advice if there is no room.
  DeviceMemory(int device, int64_t bytes, const std::string& remedy);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* at() const { return at_; }
  // `kind` is none if CUDA exports it in neither way. Throws TransportError.
  MemoryHandle handle() const;
  int fd() const { return fd_; }  // -1: it is opened by CUDA IPC
  // Closes the descriptor. From then on, a process forked from this one does not hold the memory.
  void close_fd() noexcept;
  // Leaves the memory to the end of the process: other ranks may still write to it.
  void abandon() { at_ = nullptr; }

 private:
  bool claim_exportable();
  void release() noexcept;

  const int device_;
  int64_t bytes_;
  void* at_ = nullptr;
  bool exportable_ = false;  // by a descriptor
  int fd_ = -1;
};

// Memory of other processes that this one has opened on a device.
class OpenedMemory {
 public:
  explicit OpenedMemory(int device) : device_(device) {}
  ~OpenedMemory() { close(); }
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;

  // Does not keep the descriptor. Returns null, and the reason, if it cannot be opened.
  void* open(const MemoryHandle& handle, int fd, std::string& why_not);
  // The same by CUDA IPC, of another process.
  void* open(const cudaIpcMemHandle_t& handle, std::string& why_not);
  void close() noexcept;
  bool empty() const { return opened_.empty(); }

 private:
  struct Opened {
    void* at;
    int64_t bytes;  // 0: by CUDA IPC
  };

  const int device_;
  std::vector<Opened> opened_;
};

}  // namespace ringkern::cuda
