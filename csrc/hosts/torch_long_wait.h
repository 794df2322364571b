// A wait for a work of any engine that something else can end, too.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "torch/runner.h"

namespace ringkern::torch_ext {

class LongWait {
 public:
  explicit LongWait(const WorkPtr& work) : work_(work), bell_(std::make_shared<Bell>()) {
    try {
      if (const auto future = work->getFuture()) {
        future->addCallback([bell = bell_](c10::ivalue::Future&) { bell->ring(); },
                            /*uses_future=*/false);
        rings_ = true;
      }
    } catch (const c10::Error&) {
      // An engine without futures is polled.
    }
  }

  // Returns true if it ends within `patience`, with success or not.
  bool done_within(Milliseconds patience) {
    if (rings_) return bell_->wait(patience);
    const auto end = Clock::now() + patience;
    for (auto pause = kFirstPause; !work_->isCompleted(); pause = std::min(2 * pause, kLongPause)) {
      if (Clock::now() >= end) return false;
      std::this_thread::sleep_for(pause);
    }
    return true;
  }

 private:
  static constexpr std::chrono::microseconds kFirstPause{20}, kLongPause{1000};

  struct Bell {
    void ring() {
      {
        std::lock_guard lock(mutex);
        rung = true;
      }
      changed.notify_all();
    }
    bool wait(Milliseconds patience) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, patience, [this] { return rung; });
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool rung = false;
  };

  const WorkPtr work_;
  const std::shared_ptr<Bell> bell_;
  bool rings_ = false;
};

}  // namespace ringkern::torch_ext
