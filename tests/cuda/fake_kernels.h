// Kernels on fake devices that end when a test tells them to.
#pragma once

#include <chrono>
#include <mutex>

#include "check.h"
#include "cuda/fake_device.h"

namespace ringkern::test {

// The names of the kernels that have begun and ended on a device, "a+" and "a-", and of copies,
// "a".
class Log {
 public:
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    text_ += (text_.empty() ? "" : " ") + name;
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

// A kernel of one block or several, which ends when it is told to.
struct Kernel {
  Kernel(Log& log, std::string name, uint32_t blocks = 1, int blocks_each = 1,
         bool together = false)
      : log(log), name(std::move(name)), each(together ? blocks : 1),
        launch{blocks, blocks_each, [this](ptx::Room& room) { run(room); }} {}
  void run(ptx::Room& room) {
    for (uint32_t b = 0; b < launch.blocks; b += each) {
      for (uint32_t i = 0; i < each; ++i)
        while (!room.take()) std::this_thread::yield();
      log.add(name + "+");
      ++resident;
      while (to_end <= b) std::this_thread::yield();
      log.add(name + "-");
      for (uint32_t i = 0; i < each; ++i) room.leave();
    }
  }
  void end(uint32_t blocks = 1) { to_end += blocks; }
  void wait_until_resident() const {
    while (resident == 0) std::this_thread::yield();
  }

  Log& log;
  const std::string name;
  const uint32_t each;  // number of blocks that begin and end together
  const ptx::Launch launch;
  std::atomic<uint32_t> to_end{0}, resident{0};
};

constexpr std::chrono::milliseconds kNothingComes{20};
inline void see_that_nothing_comes(Log& log, const std::string& text) {
  std::this_thread::sleep_for(kNothingComes);
  CHECK_EQ(log.text(), text);
}

inline cudaStream_t handle(size_t n) { return reinterpret_cast<cudaStream_t>(n * 16); }

// Devices with this many hardware queues. They remain when a test ends, because threads may hold
// them.
inline FakeDevices& devices_of(int processors, const char* queues = nullptr) {
  if (queues != nullptr) ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues, 1);
  auto* devices = new FakeDevices({}, processors);
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return *devices;
}

}  // namespace ringkern::test
