// The calls that a ring has enqueued on a device, for the holders of their works.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>

#include "comm/interfaces.h"

namespace ringkern {

// Outlives the ring.
class EnqueuedCalls {
 public:
  explicit EnqueuedCalls(const Executor& of) : executor_(&of) {}

  // Returns the error in which a call ended; null if it ended well or goes on. Does not query the
  // device. If the device has given up, waits for the watch's reason: until its next tick, or 1.2 s
  // if another rank has ended the wait without a reason; 2 s at most. Any thread but the watch's.
  std::exception_ptr error_of(uint64_t seq);
  // Returns the progress that the device has shown. Does not wait.
  enum class State { under_way, done, failed };
  State state_of(uint64_t seq);
  // Fails all calls that have not ended well. The first reason given here stays.
  void fail(const Fault& why);
  // Stops using the executor, which is destroyed next.
  void close();

 private:
  void look();  // with the lock

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  const Executor* executor_;
  uint64_t done_ = 0;
  std::optional<Fault> why_;
  bool told_ = false;  // the ring has given the reason, not the device alone
};

}  // namespace ringkern
