// A store that may not answer. One thread asks it; other threads can see whether it answers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "comm/interfaces.h"

namespace ringkern {

class AskedStore {
 public:
  // `connect` is called before the first request, and again after a request that threw.
  explicit AskedStore(std::function<std::shared_ptr<Store>()> connect)
      : connect_(std::move(connect)) {}

  // These throw and block like the store.
  int64_t add(const std::string& key, int64_t amount) {
    return ask<int64_t>([&](Store& store) { return store.add(key, amount); });
  }
  void set(const std::string& key, const std::string& value) {
    ask<bool>([&](Store& store) { return store.set(key, value), true; });
  }
  // Returns the present value without waiting for one.
  std::optional<std::string> find(const std::string& key) {
    return ask<std::optional<std::string>>([&](Store& store) -> std::optional<std::string> {
      try {
        return store.get(key, Milliseconds(0));
      } catch (const TimeoutError&) {
        return {};
      }
    });
  }

  // Returns the time for which the store has not answered; 0 if it answered the last request. Any
  // thread.
  Clock::duration in_vain_for() const {
    const Clock::rep since = since_.load(std::memory_order_relaxed);
    return since == 0 ? Clock::duration(0)
                      : Clock::now().time_since_epoch() - Clock::duration(since);
  }

 private:
  template <class Answer>
  Answer ask(const std::function<Answer(Store&)>& question) {
    Clock::rep answered = 0;
    since_.compare_exchange_strong(answered, Clock::now().time_since_epoch().count());
    try {
      if (store_ == nullptr) store_ = connect_();
      if (store_ == nullptr) throw RendezvousError("the store cannot be reached any more");
      Answer answer = question(*store_);
      since_.store(0, std::memory_order_relaxed);
      return answer;
    } catch (...) {
      store_ = nullptr;
      throw;
    }
  }

  const std::function<std::shared_ptr<Store>()> connect_;
  std::shared_ptr<Store> store_;
  std::atomic<Clock::rep> since_{0};  // the first request since the last answer; 0: none
};

}  // namespace ringkern
