// The calls that a ring has enqueued on a device, for whoever holds a work of one.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>

#include "comm/ports.h"

namespace ringkern {

// Outlives the ring.
class EnqueuedCalls {
 public:
  explicit EnqueuedCalls(const Executor& of) : executor_(&of) {}

  // Returns the error in which a call ends, or null: it has ended well, or goes on. Asks the device
  // nothing. Where a device has given up, waits until the watch says why: at its next tick, or
  // after 1.2 s where another rank has ended the wait and says nothing; 2 s at most. Any thread but
  // the watch's.
  std::exception_ptr error_of(uint64_t seq);
  // Tells how far a call has come, as the device has shown it. Waits for nobody.
  enum class State { under_way, done, failed };
  State state_of(uint64_t seq);
  // Ends all calls that have not ended well; the first reason stays.
  void fail(const Fault& why);
  // The executor ends.
  void close();

 private:
  void look();  // with the lock

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  const Executor* executor_;
  uint64_t done_ = 0;
  std::optional<Fault> why_;
  bool told_ = false;  // by the ring, and not by the device alone
};

}  // namespace ringkern
