#include "comm/enqueued.h"

#include "comm/diagnosis.h"

namespace ringkern {

void EnqueuedCalls::look() {
  if (executor_ == nullptr) return;
  const Executor::Progress progress = executor_->progress();
  done_ = progress.done;
  if (!why_) why_ = progress.failed;
}

std::exception_ptr EnqueuedCalls::error_of(uint64_t seq) {
  std::unique_lock lock(mutex_);
  look();
  // A device knows the rank that it waited for; the watch knows the late rank and the reason.
  changed_.wait_for(lock, 2 * kReasonComes,
                    [&] { return !why_ || seq <= done_ || told_ || executor_ == nullptr; });
  return why_ && seq > done_ ? ringkern::error_of(*why_) : nullptr;
}

EnqueuedCalls::State EnqueuedCalls::state_of(uint64_t seq) {
  std::lock_guard lock(mutex_);
  look();
  if (seq <= done_) return State::done;
  return why_ || executor_ == nullptr ? State::failed : State::under_way;
}

void EnqueuedCalls::fail(const Fault& why) {
  std::lock_guard lock(mutex_);
  look();
  // The device alone names neither the call nor the state of the ranks.
  if (!why_ || !told_) why_ = why;
  told_ = true;
  changed_.notify_all();
}

void EnqueuedCalls::close() {
  std::lock_guard lock(mutex_);
  look();
  executor_ = nullptr;
  changed_.notify_all();
}

}  // namespace ringkern
