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

// failure: found by another rank; report: found by this one; dump: a request to write the recorded
// calls.
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

  // Adds an event, from any thread. Beyond a limit, the oldest unread event is dropped.
  void post(EventKind kind, std::string text);
  // Requests a dump; a signal handler may call it. Has no effect before the first `all()`. Requests
  // that come before the dump is read count as one.
  static void ask_for_dump() noexcept;
  // Waits for the next event; returns nothing once closed and empty. For one reader.
  std::optional<QueuedEvent> next();
  // Waits until the reader has taken all events and asks for more. Returns false after `patience`.
  bool told_within(std::chrono::milliseconds patience);
  void open();
  void close();  // ends `next`; events posted later are kept

 private:
  static constexpr size_t kMost = 1000;

  // Posted on each change. A semaphore, because a signal handler may use no mutex.
  sem_t changes_;
  std::atomic<bool> dump_wanted_{false};
  std::mutex mutex_;  // guards what follows
  std::deque<QueuedEvent> news_;
  bool closed_ = false;
  bool asked_ = false;  // the reader waits for the next
};

}  // namespace ringkern
