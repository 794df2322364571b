// Events that the library reports on its own: that a rank is slow, that a ring has
// failed. Kept until somebody asks (Python's logging does), and never printed here.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

namespace ringkern {

// failure: another rank has found it; report: this one has. dump: somebody wants the recorded calls
// written.
enum class EventKind { warning, failure, report, dump };

struct QueuedEvent {
  EventKind kind;
  std::string text;
};

class EventQueue {
 public:
  // The process's; another one in a forked child, where its parent's may have been in use when it
  // was forked. Never destroyed: threads may report for longer than statics live.
  static EventQueue& all();

  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // From any thread. Beyond a limit, the oldest events that nobody has taken are dropped.
  void post(EventKind kind, std::string text);
  // The same for a dump, from a signal handler; of no effect before the first `all()`. Asked for
  // again before it is taken, it is one.
  static void ask_for_dump() noexcept;
  // Waits for the next; nothing once closed and empty. For one reader.
  std::optional<QueuedEvent> next();
  // Waits until the reader has taken all and asks for more; false if it has not within `patience`.
  bool told_within(std::chrono::milliseconds patience);
  void open();
  void close();  // ends `next`; what is posted later is kept

 private:
  static constexpr size_t kMost = 1000;

  // One for each change, or more: a semaphore, because a signal handler may touch nothing else.
  sem_t changes_;
  std::atomic<bool> dump_wanted_{false};
  std::mutex mutex_;  // guards what follows
  std::deque<QueuedEvent> news_;
  bool closed_ = false;
  bool asked_ = false;  // the reader waits for the next
};

}  // namespace ringkern
