// Signals during a call that waits. Python runs their handlers on its main thread only, between two
// instructions of Python. So a call that waits for minutes would keep Ctrl-C waiting as long.
#pragma once

#include <pybind11/pytypes.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "comm/interfaces.h"
#include "comm/worker.h"
#include "core/lookout.h"

namespace ringkern::torch_ext {

namespace py = pybind11;

// Ends a call for all ranks; must not wait for it.
using Abort = std::function<void(const std::string& reason)>;

// The lookout for signals during a call. Every 50 ms of a wait on the main thread, it runs the
// handlers. If a handler raises an exception, it keeps the exception and aborts the call.
class Signals {
 public:
  // `call`: an address that stands for all calls that take turns with this one. Within another
  // Signals this one does nothing, except in a handler, because the outer call is the one to abort.
  Signals(const void* call, Abort abort)
      : call_(call), abort_(std::move(abort)), outer_(innermost),
        lookout_{[](void* self) { static_cast<Signals*>(self)->look(); }, this}, before_(lookout) {
    if (outer_ != nullptr && !outer_->handling_) return;
    innermost = this;
    lookout = &lookout_;
  }
  ~Signals() {
    if (innermost != this) return;
    innermost = outer_;
    lookout = before_;
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  bool raised() const { return raised_ != nullptr; }
  // Throws the exception that a handler has raised, if one has.
  void rethrow() const {
    if (raised_) std::rethrow_exception(raised_);
  }

  // Returns true if this thread runs a handler that has interrupted such a call: a new call would
  // wait for itself.
  static bool interrupts(const void* call) {
    for (const Signals* s = innermost; s != nullptr; s = s->outer_)
      if (s->call_ == call && s->handling_) return true;
    return false;
  }

  // Returns true on the thread on which Python runs handlers.
  static bool come_here() { return ::gettid() == ::getpid(); }

  // Keeps the exception of a handler that ran in Python code which the call itself runs.
  static void keep(const py::error_already_set& error);

 private:
  void look() {
    const auto now = Clock::now();
    if (raised_ || handling_ || now < next_ || !come_here()) return;
    const std::string name = run_handlers();
    next_ = Clock::now() + kLookOutEvery;
    if (!raised_) return;
    try {
      abort_("it was interrupted (" + name + ")");
    } catch (const std::exception&) {
      // The other ranks are not told; they find out when this rank's program ends.
    }
  }
  // Runs the handlers. Returns the class name of the exception that one has raised; empty: none
  // has.
  std::string run_handlers();

  static constinit inline thread_local Signals* innermost = nullptr;

  const void* const call_;
  const Abort abort_;
  Signals* const outer_;
  const Lookout lookout_;
  const Lookout* const before_;
  Clock::time_point next_ = Clock::now() + kLookOutEvery;
  bool handling_ = false;
  std::exception_ptr raised_;
};

// Runs a call that signals may interrupt.
template <class Run>
auto interruptible(const void* call, Abort abort, const Run& run) -> decltype(run()) {
  if (Signals::interrupts(call))
    throw UsageError(
        "a call in a signal handler, while the call that the signal has interrupted waits, would "
        "wait for itself. Make it after that one, as when a flag that the handler sets is seen");
  const Signals signals(call, std::move(abort));
  try {
    if constexpr (std::is_void_v<decltype(run())>) {
      run();
      signals.rethrow();
    } else {
      auto result = run();
      signals.rethrow();
      return result;
    }
  } catch (...) {
    signals.rethrow();
    throw;
  }
}

}  // namespace ringkern::torch_ext
