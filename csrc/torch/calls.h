// What a call from Python needs, whoever the ranks are: a protocol, a stream, and care at exit.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/communicator.h"
#include "torch/names.h"

namespace ringkern::torch_ext {

// At most some thirty years, which fit in any clock.
inline Milliseconds milliseconds(double seconds) {
  return Milliseconds(int64_t(std::min(seconds, 1e9) * 1000));
}

// torch's current one; null on a CPU.
inline void* current_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStream(device).native_handle();
}

// Which protocol "auto" is: on each kind of device LL below the first size, LL128 below the second,
// else Simple; bytes of one rank's part.
class Thresholds {
 public:
  void set(const std::string& device, int64_t ll_below, int64_t ll128_below) {
    sizes_[c10::Device(device).type()] = {ll_below, ll128_below};
  }

  Protocol choose(const std::string& name, c10::DeviceType device, DType dtype,
                  int64_t count) const {
    if (name != "auto") return parse<Protocol>(name, kProtocols, "protocol");
    const auto found = sizes_.find(device);
    if (found == sizes_.end()) return Protocol::simple;
    const auto [ll_below, ll128_below] = found->second;
    const int64_t bytes = count * size_of(dtype);
    return bytes < ll_below      ? Protocol::ll
           : bytes < ll128_below ? Protocol::ll128
                                 : Protocol::simple;
  }

 private:
  std::map<c10::DeviceType, std::pair<int64_t, int64_t>> sizes_;
};

// Releases the GIL where it is held: c10d calls a backend without.
class WithoutGil {
 public:
  WithoutGil() {
    if (PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<py::gil_scoped_release> released_;
};

// Threads between Python and the end of a call. An interpreter that ends kills a thread that asks
// for the GIL by unwinding it, which C++ answers with std::terminate. So those whose calls have
// ended because of it come back first.
class Callers {
 public:
  // Releases the GIL; not once the communicator is closed, where a call throws at once.
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

  // Closes the communicator that they call, without the GIL; waits for calls in flight, and not for
  // ever unless `patience_s` is negative.
  void close(Communicator& comm, double patience_s) {
    comm.close(patience_s < 0 ? Milliseconds::max() : milliseconds(patience_s));
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
