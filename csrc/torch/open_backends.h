// The backends of this process, so that they can be closed before the interpreter ends.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "torch/callers.h"

namespace ringkern::torch_ext {

class OpenBackends {
 public:
  using Close = std::function<void(Milliseconds patience)>;

  // Never destroyed: torch may keep a backend for longer than statics live.
  static OpenBackends& all() {
    static auto* all = new OpenBackends;
    return *all;
  }
  void add(const void* backend, Close close) {
    std::lock_guard lock(mutex_);
    backends_.emplace(backend, std::move(close));
  }
  void remove(const void* backend) {
    std::lock_guard lock(mutex_);
    backends_.erase(backend);
  }
  void close(Milliseconds patience) {
    const WithoutGil no_gil;
    std::lock_guard lock(mutex_);
    for (const auto& [backend, close] : backends_) close(patience);
  }

 private:
  std::mutex mutex_;
  std::map<const void*, Close> backends_;
};

}  // namespace ringkern::torch_ext
