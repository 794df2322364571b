// Fibers: functions, each with a stack of its own, of which one runs at a time. A fiber stays on
// one thread of the host.
#pragma once

#include <cstddef>

namespace simt {

class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Prepares `entry(argument)`, to begin at the first switch to this fiber. `entry` never returns.
  // Earlier contents are dropped without destructors.
  void prepare(void (*entry)(void*), void* argument);
  // Stops `from` and continues `to`; returns when another fiber switches back. A fiber that was
  // never prepared stands for the thread itself.
  static void change(Fiber& from, Fiber& to);

 private:
  static constexpr size_t kStackBytes = 64 << 10;

  void* stack_ = nullptr;    // mapped; the page below it is not
  void* pointer_ = nullptr;  // of the stack, while it is not running
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
#if !defined(__x86_64__)
  void* context_ = nullptr;
#endif
  static void begin();
};

}  // namespace simt
