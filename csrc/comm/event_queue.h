// Events that the library reports unasked: a slow rank, a failed ring. Kept until they are read
// (by Python's logging), and never printed here.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

namespace ringkern {

// failure: found by another rank; report: found by this one. dump: the recorded calls are to be
// written.
enum class EventKind { warning, failure, report, dump };

struct QueuedEvent {
  EventKind kind;
  std::string text;
};

class EventQueue {
 public:
  // Returns the queue of the process; a forked child has its own, because its parent's may have
  // been in use during the fork. Never destroyed: threads may outlive statics.
  static EventQueue& all();

  EventQueue();
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // From any thread. Beyond a limit, the oldest unread events are dropped.
  void post(EventKind kind, std::string text);
  // The same for a dump, from a signal handler; has no effect before the first `all()`. Several
  // requests before it is read are one.
  static void ask_for_dump() noexcept;
  // Waits for the next event; returns nothing once closed and empty. For one reader.
  std::optional<QueuedEvent> next();
  // Waits until the reader has taken all and waits for more; false after `patience`.
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
