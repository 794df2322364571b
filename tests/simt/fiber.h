// Fibers: functions with a stack each, one of which runs at a time. Each stays on one thread of the
// host.
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
  // Stops here and continues there; returns when another fiber switches back. A fiber that was
  // never prepared stands for the thread itself.
  static void change(Fiber& from, Fiber& to);

 private:
  static constexpr size_t kStackBytes = 64 << 10;

  void* stack_ = nullptr;    // mapped, with a page below it that is not
  void* pointer_ = nullptr;  // of the stack, while it is not running
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
#if !defined(__x86_64__)
  void* context_ = nullptr;
#endif
  static void begin();
};

}  // namespace simt
