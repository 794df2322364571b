// Calls that cannot succeed, because one rank does not make them.
#pragma once

#include "cpu/thread_ring.h"

namespace ringkern::test {

// The error of a failed wait, and whether it timed out.
inline std::string text_of(const std::exception_ptr& error, bool& timed_out) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const TimeoutError& e) {
    timed_out = true;
    return e.what();
  } catch (const AbortedError& e) {
    return e.what();
  }
  FAIL("a call without one rank came to an end");
}

// All ranks but `absent` make the call, with this many elements of 8 bits. Returns what they throw,
// and whether any timed out.
inline std::vector<std::string> without_one(ThreadRing& ring, int absent, const Task& call,
                                            int64_t count, bool& timed_out,
                                            const std::function<void()>& meanwhile) {
  const auto errors = ring.on_threads([&](int rank) {
    if (rank == absent) return meanwhile();
    std::vector<char> data(size_t(count), 1);
    Task task = call;
    task.in = task.out = data.data();
    task.count = count;
    ring.engine(rank).run(task);
  });
  timed_out = false;
  std::vector<std::string> texts(errors.size());
  for (int r = 0; r < ring.ranks(); ++r)
    if (r != absent) texts[size_t(r)] = text_of(errors[size_t(r)], timed_out);
  return texts;
}

// Waits until the rank sleeps in a wait.
inline void until_asleep(ThreadRing& ring, int rank) {
  while (!cpu::asleep(ring.bell(rank))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace ringkern::test
