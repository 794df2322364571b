// A hook that a waiting thread calls periodically. The caller can end the wait for reasons that lie
// outside this library, such as a signal.
#pragma once

namespace ringkern {

struct Lookout {
  void (*look)(void* with);  // does not throw; may end the wait, through abort()
  void* with;
};

// Null on threads that the library owns, which have no hook.
inline constinit thread_local const Lookout* lookout = nullptr;

inline void look_out() {
  if (lookout != nullptr) lookout->look(lookout->with);
}

}  // namespace ringkern
