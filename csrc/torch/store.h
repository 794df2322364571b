// torch's c10d stores behind the library's own Store.
#pragma once

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/interfaces.h"

namespace ringkern::torch_ext {

class C10dStore final : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    ask([&] { store_->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
  }

  // Lets torch log errors only, because a TCPStore prints a warning and a stack before it throws.
  // Skips a FileStore whose file is gone: without its folder, it would wait for the folder as long
  // as for a key.
  void try_set(const std::string& key, const std::string& value) override {
    if (auto* file = dynamic_cast<c10d::FileStore*>(innermost()); file != nullptr) {
      if (std::error_code ignored; !std::filesystem::exists(file->getPath(), ignored)) return;
    }
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    const int level = std::exchange(FLAGS_caffe2_log_level, c10::GLOG_ERROR);
    Store::try_set(key, value);
    FLAGS_caffe2_log_level = level;
  }

  std::string get(const std::string& key, Milliseconds timeout) override {
    // Not store_->wait(): a TCPStore prints two warnings whenever that ends without the key.
    const auto end = Clock::now() + timeout;
    auto pause = kFirstPause;
    while (!ask([&] { return store_->check({key}); })) {
      const auto now = Clock::now();
      if (now >= end) throw TimeoutError("key '" + key + "' did not come into torch's store");
      std::this_thread::sleep_for(std::min<Clock::duration>(pause, end - now));
      pause = std::min(2 * pause, kLongestPause);
    }
    const std::vector<uint8_t> value = ask([&] { return store_->get(key); });
    return {value.begin(), value.end()};
  }

  int64_t add(const std::string& key, int64_t amount) override {
    return ask([&] { return store_->add(key, amount); });
  }

  // Sets a key that has the value `expected`, or none if that is empty. Returns its value then.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) {
    return ask([&] { return store_->compareSet(key, expected, desired); });
  }

 private:
  // Replaces torch's errors, which name a place in torch and no ranks.
  template <class F>
  static auto ask(F&& f) -> decltype(f()) {
    try {
      return f();
    } catch (const c10::Error& e) {
      throw RendezvousError(
          std::string("torch's store, in which ranks find each other, has "
                      "failed: ") +
          e.what_without_backtrace() +
          ". Has the process ended that keeps it (as a rule the first rank, or the "
          "launcher)?");
    }
  }

  c10d::Store* innermost() const {
    auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store_.get());
    return prefixed == nullptr ? store_.get() : prefixed->getUnderlyingNonPrefixStore().get();
  }

  // kFirstPause is about the time in which a TCPStore answers; kLongestPause keeps many ranks from
  // flooding it.
  static constexpr std::chrono::microseconds kFirstPause{100}, kLongestPause{10'000};

  const c10::intrusive_ptr<c10d::Store> store_;
};

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// A store of torch for code that waits in it and does not see that another rank is gone. A Watch
// ends such a wait from outside.
class WatchedStore final : public c10d::PrefixStore {
  struct State {
    std::function<void()> look;
    Milliseconds timeout;
    std::exception_ptr thrown;
  };

 public:
  // While this lives, a wait lasts at most `timeout`, whatever limit it asks for, and calls `look`
  // now and then, which throws to end the wait.
  class Watch {
   public:
    Watch(Milliseconds timeout, std::function<void()> look)
        : state_(std::make_shared<State>(State{std::move(look), timeout, nullptr})) {}
    ~Watch() { state_->look = nullptr; }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    // Throws the exception that `look` has thrown, because torch and Python pass on another one.
    void rethrow() const {
      if (state_->thrown) std::rethrow_exception(state_->thrown);
    }

   private:
    friend WatchedStore;
    const std::shared_ptr<State> state_;
  };

  WatchedStore(const std::string& prefix, StorePtr store, const Watch& watch)
      : PrefixStore(prefix, std::move(store)), state_(watch.state_) {}

  std::vector<uint8_t> get(const std::string& key) override {
    wait({key});
    return PrefixStore::get(key);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    wait(keys);
    return PrefixStore::multiGet(keys);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    const auto start = Clock::now();
    auto pause = kFirstPause;
    while (!check(keys)) {
      if (!state_->look) return PrefixStore::wait(keys, timeout);
      if (Clock::now() - start >= state_->timeout)
        C10_THROW_ERROR(DistStoreError,
                        "no answer in the store within " + seconds_text(state_->timeout));
      look();
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

 private:
  static constexpr std::chrono::microseconds kFirstPause{100}, kLongestPause{10'000};

  void look() {
    try {
      state_->look();
    } catch (...) {
      state_->thrown = std::current_exception();
      throw std::runtime_error("another rank is gone");
    }
  }

  const std::shared_ptr<State> state_;
};

}  // namespace ringkern::torch_ext
