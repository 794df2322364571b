// A lookout of a thread: called now and then while the thread waits, so that whoever has made the
// call can end the wait for a reason that no other room knows, such as a signal.
#pragma once

namespace ringkern {

struct Lookout {
  void (*look)(void* with);  // does not throw; ends the wait, if at all, as abort() does
  void* with;
};

// Null where nobody looks out: on every thread of the library's own.
inline constinit thread_local const Lookout* lookout = nullptr;

inline void look_out() {
  if (lookout != nullptr) lookout->look(lookout->with);
}

}  // namespace ringkern
