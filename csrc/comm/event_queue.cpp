#include "comm/event_queue.h"

#include <pthread.h>

#include <cerrno>
#include <thread>

namespace ringkern {
namespace {

std::atomic<EventQueue*> instance{nullptr};
static_assert(decltype(instance)::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler reads them");

}  // namespace

EventQueue& EventQueue::all() {
  EventQueue* found = instance.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { instance = nullptr; });
  (void)registered;
  auto* const fresh = new EventQueue;
  if (instance.compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;
  return *found;
}

EventQueue::EventQueue() { ::sem_init(&changes_, /*pshared=*/0, 0); }
EventQueue::~EventQueue() { ::sem_destroy(&changes_); }

void EventQueue::post(EventKind kind, std::string text) {
  {
    std::lock_guard lock(mutex_);
    if (news_.size() == kMost) news_.pop_front();
    news_.push_back({kind, std::move(text)});
  }
  ::sem_post(&changes_);
}

void EventQueue::ask_for_dump() noexcept {
  EventQueue* const here = instance.load(std::memory_order_acquire);
  if (here == nullptr) return;
  const int errno_of_what_was_interrupted = errno;
  here->dump_wanted_ = true;
  ::sem_post(&here->changes_);
  errno = errno_of_what_was_interrupted;
}

std::optional<QueuedEvent> EventQueue::next() {
  for (;;) {
    if (dump_wanted_.exchange(false)) return QueuedEvent{EventKind::dump, "a signal"};
    {
      std::lock_guard lock(mutex_);
      if (!news_.empty()) {
        QueuedEvent first = std::move(news_.front());
        news_.pop_front();
        asked_ = false;
        return first;
      }
      if (closed_) return std::nullopt;
      asked_ = true;
    }
    ::sem_wait(&changes_);  // a signal ends it, too; looking again does no harm
  }
}

bool EventQueue::told_within(std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (news_.empty() && asked_) return true;
    }
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void EventQueue::open() {
  std::lock_guard lock(mutex_);
  closed_ = false;
}

void EventQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  ::sem_post(&changes_);
}

}  // namespace ringkern
