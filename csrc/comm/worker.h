// The thread that runs asynchronous collectives, in the order in which they were posted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ringkern {

class Worker {
 public:
  ~Worker() { stop(); }

  // Tasks must not throw.
  void post(std::function<void()> task) {
    std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    tasks_.push_back(std::move(task));
    ++pending_;
    posted_.notify_one();
  }

  // Returns when everything posted so far has run.
  void drain() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
  }

  // The same, but waits no longer than `patience`; tells whether everything has run.
  bool drain(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, patience, [this] { return pending_ == 0; });
  }

  // Runs what was posted, then ends the thread.
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      posted_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      posted_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // what it captured is released before anyone is told that it is done
      lock.lock();
      if (--pending_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable posted_, done_;
  std::deque<std::function<void()>> tasks_;
  size_t pending_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ringkern
