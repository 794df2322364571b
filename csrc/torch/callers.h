// Common parts of calls from Python: the stream, the GIL, and the end of the interpreter.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/gil_simple.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "comm/communicator.h"
#include "torch/choice.h"
#include "torch/signals.h"

namespace ringkern::torch_ext {

// Converts seconds, at most 1e9 of them (some thirty years), which fit in any clock.
inline Milliseconds milliseconds(double seconds) {
  return Milliseconds(int64_t(std::min(seconds, 1e9) * 1000));
}
inline double seconds(Milliseconds time) { return double(time.count()) / 1000; }

// Returns torch's current stream; null on a CPU.
inline void* current_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStream(device).native_handle();
}

// The most bytes of a call that keeps the GIL: it ends before another thread could use the GIL.
inline constexpr int64_t kKeepsGil = 16 << 10;

// Releases the GIL if this thread holds it: c10d calls a backend without it.
class WithoutGil {
 public:
  WithoutGil() {
    if (PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<py::gil_scoped_release_simple> released_;
};

// The threads between Python and the end of a call. An interpreter that ends kills a thread that
// asks for the GIL by unwinding it, and C++ answers that with std::terminate. So close() lets
// threads return to Python before the interpreter ends.
class Callers {
 public:
  // Counts a call in flight, and releases the GIL, except when the communicator is closed: the call
  // then throws at once.
  class Scope {
   public:
    explicit Scope(Callers& callers) : callers_(callers) {
      ++callers_.inside_;
      if (!callers_.closed_) no_gil_.emplace();
    }
    ~Scope() {
      no_gil_.reset();
      --callers_.inside_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Callers& callers_;
    std::optional<WithoutGil> no_gil_;
  };

  // Closes the communicator, and waits for the calls in flight; without a time limit if
  // `patience_s` is negative. Called without the GIL.
  void close(Communicator& comm, double patience_s) {
    if (Signals::interrupts(this)) return comm.abort("it was closed in a signal handler");
    comm.close(patience_s < 0 ? Milliseconds::max() : milliseconds(patience_s));
    come_back();
  }
  // Notes that the communicator is closed, and waits at most kTimeout for the calls in flight.
  void come_back() {
    closed_ = true;
    const auto end = Clock::now() + kTimeout;
    while (inside_ > 0 && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
  }

 private:
  static constexpr Milliseconds kTimeout{2000};
  std::atomic<int> inside_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace ringkern::torch_ext
