// torch's c10d stores behind the library's own Store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/ports.h"

namespace ringkern::torch_ext {

class C10dStore final : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }

  std::string get(const std::string& key, Milliseconds timeout) override {
    try {
      store_->wait({key}, timeout);
    } catch (const std::exception& e) {
      throw TimeoutError("key '" + key + "' did not come into torch's store: " +
                         first_line(e.what()));
    }
    const std::vector<uint8_t> value = store_->get(key);
    return {value.begin(), value.end()};
  }

  int64_t add(const std::string& key, int64_t amount) override { return store_->add(key, amount); }

 private:
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace ringkern::torch_ext
