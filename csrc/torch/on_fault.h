// The policy for a ring that has failed: the rank goes on and raises, or its process ends.
#pragma once

#include <c10/core/Device.h>
#include <pybind11/pytypes.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace ringkern::torch_ext {

enum class OnFault { by_device, raise, exit };

// The policy of a group. The functions of after_fault() follow a later change to `raise`.
class FaultPolicy {
 public:
  void set(OnFault now) { *now_ = now; }
  bool exits(c10::DeviceType type) const {
    return *now_ == OnFault::exit || (*now_ == OnFault::by_device && type == c10::DeviceType::CUDA);
  }

 private:
  std::shared_ptr<std::atomic<OnFault>> now_ =
      std::make_shared<std::atomic<OnFault>>(OnFault::by_device);
};

// Throws ValueError if the text is none of "", "raise" and "exit".
inline OnFault on_fault_of(const std::string& text) {
  if (text.empty()) return OnFault::by_device;
  if (text == "raise") return OnFault::raise;
  if (text == "exit") return OnFault::exit;
  throw pybind11::value_error("on_fault is '" + text + "'; accepted: raise, exit");
}

// Reports the fault, gives Python's thread a moment to log it and to write the last calls, and ends
// the process: nothing that was to follow the failed call runs.
[[noreturn]] void exit_for(const Fault& why);

// Returns the function that a Device calls after a fault, or null if the process goes on. The
// default depends on the device: a program that enqueues on CUDA may never ask about a call's
// result, and would go on with undefined gradients. A rank that has aborted its ring itself goes
// on.
inline std::function<void(const Fault&, bool)> after_fault(const FaultPolicy& policy,
                                                           c10::DeviceType type) {
  if (!policy.exits(type)) return nullptr;
  return [policy, type](const Fault& why, bool here) {
    if (!here && policy.exits(type)) exit_for(why);
  };
}

}  // namespace ringkern::torch_ext
