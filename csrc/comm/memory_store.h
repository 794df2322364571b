// A store for ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "comm/interfaces.h"

namespace ringkern {

class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    {
      std::lock_guard lock(mutex_);
      values_[key] = value;
    }
    changed_.notify_all();
  }

  std::string get(const std::string& key, Milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return values_.count(key) > 0; }))
      throw TimeoutError("no key '" + key + "' in the store after " +
                         std::to_string(timeout.count()) + " ms");
    return values_[key];
  }

  int64_t add(const std::string& key, int64_t amount) override {
    std::lock_guard lock(mutex_);
    return counters_[key] += amount;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counters_;
};

}  // namespace ringkern
