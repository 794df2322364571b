// Fake CUDA devices that work: a thread of each does what is launched and copied there, in the
// order in which it was asked for, and their memory can be opened by other processes.
//
// A function that they are given runs their kernels: tests/ptx/host.h has one. Unlike a GPU, a
// device stops with its process.
#pragma once

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "comm/worker.h"

namespace ringkern::test {

// Never destroyed: their threads may outlive statics.
class FakeDevices {
 public:
  // Returns what runs a kernel, of which it is told the demangled name, to its end.
  using LaunchOf = std::function<void()> (*)(const std::string& kernel, uint32_t blocks,
                                             uint32_t threads, const void* arguments);
  explicit FakeDevices(LaunchOf launch) : launch_of(launch) {}
  const LaunchOf launch_of;

  void later(int device, std::function<void()> what) {
    Queue& queue = queues_[device];
    ++queue.asked;  // before it can be done
    queue.worker.post(
        [&queue, what = std::move(what)] {
          what();
          ++queue.done;
          queue.done.notify_all();
        },
        [] {});
  }
  // Returns a ticket: what a device has been asked for so far.
  uint64_t asked(int device) const { return queues_[device].asked * kDevices + uint64_t(device); }
  bool ended(uint64_t ticket) const { return done_of(ticket) >= ticket / kDevices; }
  void wait(uint64_t ticket) const {
    const std::atomic<uint64_t>& now = done_of(ticket);
    for (uint64_t done = now; done < ticket / kDevices; done = now) now.wait(done);
  }

  // ---- memory that other processes can open

  void* claim(size_t bytes) {
    const int fd = ::memfd_create("fake device", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, off_t(bytes)) != 0) return nullptr;
    void* at = map(fd, bytes);
    mine_.at(at).fd = fd;
    return at;
  }
  void free(void* at) {
    ::close(mine_.at(at).fd);
    ::munmap(at, mine_.extract(at).mapped().bytes);
  }
  cudaIpcMemHandle_t handle_of(void* at) const {
    cudaIpcMemHandle_t handle{};
    const Handle h{::getpid(), mine_.at(at)};
    return std::memcpy(&handle, &h, sizeof h), handle;
  }
  void* open(const cudaIpcMemHandle_t& handle) {
    Handle h{};
    std::memcpy(&h, &handle, sizeof h);
    const std::string path =
        "/proc/" + std::to_string(h.pid) + "/fd/" + std::to_string(h.memory.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void* at = map(fd, h.memory.bytes);
    ::close(fd);
    return at;
  }
  void close(void* at) { ::munmap(at, mine_.extract(at).mapped().bytes); }

 private:
  struct Memory {
    size_t bytes;
    int fd;
  };
  struct Handle {
    pid_t pid;
    Memory memory;
  };

  void* map(int fd, size_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    mine_[at] = {bytes, -1};
    return at;
  }

  static constexpr uint64_t kDevices = 8;
  struct Queue {
    std::atomic<uint64_t> asked{0}, done{0};
    Worker worker;
  };
  const std::atomic<uint64_t>& done_of(uint64_t ticket) const {
    return queues_[ticket % kDevices].done;
  }

  Queue queues_[kDevices];
  std::map<void*, Memory> mine_;  // of the thread that makes the ring alone
};

}  // namespace ringkern::test
