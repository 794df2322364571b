// The threads that run asynchronous collectives, one at a time and in the order in which they were
// posted. Normally there is one; while it runs a callback, which may wait for the next collective,
// another thread goes on.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/lookout.h"

namespace ringkern {

// The interval at which a wait wakes and calls look_out().
inline constexpr std::chrono::milliseconds kLookOutEvery{50};

// Locks the mutex; calls look_out() periodically until it is locked.
template <class TimedMutex>
std::unique_lock<TimedMutex> lock_and_look_out(TimedMutex& mutex) {
  std::unique_lock lock(mutex, std::defer_lock);
  while (!lock.try_lock_for(kLookOutEvery)) look_out();
  return lock;
}

class Worker {
 public:
  ~Worker() { stop(); }

  // Posts a task. `tell` is called when `run` has returned, on the same thread; the `run` of
  // another task may be in progress. Neither may throw; both may post. Throws std::system_error if
  // no thread can run the task and none can be started: then nothing was posted.
  void post(std::function<void()> run, std::function<void()> tell) {
    std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(run), std::move(tell)});
    ++pending_;
    try {
      find_somebody();
    } catch (...) {
      if (!threads_.empty()) return;  // a thread in a callback runs it later
      tasks_.pop_back();              // else drain() would wait forever
      --pending_;
      throw;
    }
  }

  // Returns true if a posted task, or its callback, has not run. If false, all effects of the tasks
  // are visible to the caller.
  bool busy() const { return pending_.load(std::memory_order_acquire) != 0; }

  // Returns when all posted tasks and their callbacks have run.
  void drain() {
    while (!drain(kLookOutEvery)) look_out();
  }

  // Waits at most `patience`; returns true if all have run.
  bool drain(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, patience, [this] { return pending_ == 0; });
  }

  // Runs the posted tasks, then ends the threads.
  void stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    posted_.notify_all();
    while (!threads_.empty()) {
      std::thread last = std::move(threads_.back());
      threads_.pop_back();
      lock.unlock();
      last.join();
      lock.lock();  // the task may have needed another thread
    }
  }

 private:
  struct Task {
    std::function<void()> run, tell;
  };

  // Finds a thread for the next task, if there is one and none is running. With the lock held.
  void find_somebody() {
    if (running_ || tasks_.empty()) return;
    if (idle_ > 0) posted_.notify_one();
    else threads_.emplace_back([this] { work(); });
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      posted_.wait(lock, [this] { return !running_ && (stopping_ || !tasks_.empty()); });
      --idle_;
      if (tasks_.empty()) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
      lock.unlock();
      task.run();
      lock.lock();
      running_ = false;
      try {
        find_somebody();
      } catch (const std::exception&) {
        // No other thread can be started: this one runs the next task after its callback.
      }
      if (stopping_) posted_.notify_all();
      lock.unlock();
      task.tell();
      task = {};  // releases its captures before drain() returns
      lock.lock();
      if (--pending_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable posted_, done_;
  std::deque<Task> tasks_;
  std::atomic<size_t> pending_{0};  // written with the lock held
  int idle_ = 0;                    // threads
  bool running_ = false, stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ringkern
