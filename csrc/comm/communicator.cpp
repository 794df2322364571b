#include "comm/communicator.h"

#include <pthread.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "comm/diagnosis.h"
#include "comm/event_queue.h"
#include "core/lookout.h"
#include "fault/render.h"

namespace ringkern {
namespace {

// Counts forks. Comparing the counter is cheaper than getpid(), which is a system call.
std::atomic<int> forks{0};

int watch_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

// The communicator whose callback runs on this thread. A callback must not wait for this thread,
// because it would wait for itself.
thread_local const Communicator* calling_back = nullptr;

// Throws if ranks have enqueued different calls. Kernels do not check what they receive. Each rank
// publishes its call before it looks, so the last rank to enqueue sees the others' calls.
void throw_if_at_odds(const Control& control) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (const auto found = find_mismatch(control)) throw_fault(*found);
}

}  // namespace

Communicator::Communicator(std::shared_ptr<Store> store, std::string name, int rank, int ranks,
                           Milliseconds timeout, RankNames names)
    : store_(std::move(store)), name_(std::move(name)), rank_(rank), ranks_(ranks),
      timeout_(timeout), names_(std::move(names)), born_in_(int(getpid())),
      generation_(watch_forks()), worker_(std::make_unique<Worker>()) {
  if (ranks < 1 || ranks > kMaxRanks)
    throw UsageError("a communicator has 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                     std::to_string(ranks));
  if (rank < 0 || rank >= ranks)
    throw UsageError(rank_text(rank) + " is not among the " + std::to_string(ranks) +
                     " ranks of the communicator: give 0 to " + std::to_string(ranks - 1));
  if (timeout.count() <= 0)
    throw UsageError("the timeout must be positive, not " + std::to_string(timeout.count()) +
                     " ms");
}

Communicator::~Communicator() { close(); }

bool Communicator::in_callback() const { return calling_back == this; }

bool Communicator::forked() const { return forks.load(std::memory_order_relaxed) != generation_; }

void Communicator::check_callable() {
  if (forked())
    throw UsageError(forked_text("communicator '" + name_ + "'", born_in_, int(getpid())));
  {
    std::lock_guard lock(state_);
    if (closed_)
      throw UsageError("communicator '" + name_ +
                       "' is closed. Make a new one, or call close() after the last call.");
  }
  check_healthy();
}

void Communicator::set_roster(Roster roster) {
  std::lock_guard lock(state_);
  roster_ = std::move(roster);
}

bool Communicator::failed() {
  std::lock_guard lock(state_);
  return poisoned_.has_value();
}

std::optional<Fault> Communicator::trouble() {
  std::lock_guard lock(state_);
  for (const auto& [name, ring] : rings_)
    if (auto failure = ring.control->failure()) return failure;
  return poisoned_;
}

void Communicator::check_healthy() {
  std::lock_guard lock(state_);
  if (!poisoned_) return;
  throw_unusable("communicator '" + name_ + "' became unusable " + ago(poisoned_at_) + ": ",
                 *poisoned_);
}

uint64_t Communicator::run(const Device& device, const Task& task,
                           const std::function<void()>& before) {
  check_callable();
  if (calling_back == this)
    throw UsageError(
        "a synchronous call in the callback of an asynchronous one would wait for "
        "itself. Use async_op=True there, or call after wait().");
  const auto turn = lock_and_look_out(turn_);
  check_callable();  // it may have been closed during the wait for this turn
  worker_->drain();  // asynchronous calls that were made before run first
  return execute(device, task, before);
}

std::optional<uint64_t> Communicator::run_now(const Device& device, const Task& task) {
  if (!usable_.load(std::memory_order_acquire) || forked()) return {};
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn || worker_->busy() || last_device_ != &device || !usable_) return {};
  return run_on(*last_ring_, task);
}

void Communicator::run_async(const Device& device, const Task& task,
                             std::function<void(std::exception_ptr)> done,
                             std::function<void()> before) {
  check_callable();
  std::unique_lock<std::timed_mutex> turn;
  // In a callback the turn is held by a thread that waits for the callback, so no other call runs.
  if (calling_back != this) {
    turn = lock_and_look_out(turn_);
    check_callable();
  }
  // `run` and `tell` are called one after the other, so they can share `error`.
  auto error = std::make_shared<std::exception_ptr>();
  worker_->post(
      [this, &device, task, error, before = std::move(before)] {
        try {
          execute(device, task, before);
        } catch (...) {
          *error = std::current_exception();
        }
      },
      [this, error, done = std::move(done)]() mutable {
        calling_back = this;
        done(*error);
        done = nullptr;  // its captures may hold the last reference to this communicator
        calling_back = nullptr;
      });
}

uint64_t Communicator::execute(const Device& device, const Task& task,
                               const std::function<void()>& before) {
  check_healthy();  // an earlier call may have failed
  const bool connects = !connected(device);
  try {
    last_ring_ = &ring_on(device);
  } catch (const std::exception&) {
    poison(fault_of(std::current_exception(), names_.number(rank_)));
    // It was aborted while it was connecting.
    if (const auto given = trouble(); given && given->given) throw_fault(*given);
    throw;
  }
  last_device_ = &device;
  // Other ranks were quicker and have already failed in this call.
  if (const auto failure = last_ring_->control->failure(); failure && connects) {
    poison(*failure);
    throw_fault(*failure);
  }
  return run_on(*last_ring_, task, before);
}

uint64_t Communicator::run_on(Ring& ring, const Task& asked,
                              const std::function<void()>& before) {
  Control& control = *ring.control;
  if (control.failed()) [[unlikely]] {  // the failure has not reached this rank yet
    const auto failure = control.failure();
    if (failure) poison(*failure);
    check_healthy();
  }
  Task task = asked;
  choose(task, ring.ways);
  task.words = words_of(task);
  const uint64_t history = control.history();
  task.seq = control.begin(task.words, task.part_of);
  task.history = control.history();
  RunResult result;
  try {
    if (before) before();
    if (ring.enqueues) throw_if_at_odds(control);
    result = ring.executor->run(task);
  } catch (const MismatchError& e) {
    const Fault mine = fault_of(std::current_exception(), names_.number(rank_));
    fail(ring, &mine, e);
  } catch (const TimeoutError& e) {
    const Fault wait = fault_of(std::current_exception(), names_.number(rank_));
    const Fault mine = timed_out(control, wait);
    fail(ring, &mine, e);
  } catch (const AbortedError& e) {
    fail(ring, nullptr, e);
  } catch (const std::exception& e) {
    const auto* error = dynamic_cast<const Error*>(&e);
    if (error != nullptr && error->facts.refused && !before) {  // its caller may call again
      control.withdraw(history);
      throw;
    }
    const Fault mine = failed_call(control, task.seq, e.what());
    control.fail(mine);
    ring.executor->abort();
    poison(mine);
    throw;
  }
  if (result.under_way) return task.seq;
  control.end(result.rested ? coarse_now() : 0);
  return 0;
}

// Handles a failed wait of this rank. All ranks report the reason that was recorded first, their
// own or another rank's.
void Communicator::fail(Ring& ring, const Fault* mine, const Error& here) {
  Control& control = *ring.control;
  if (mine != nullptr) control.fail(*mine);
  ring.executor->abort();
  // Wait for the reason: an executor aborts its neighbours before its communicator records it.
  for (auto end = Clock::now() + kReasonComes; !control.failed() && Clock::now() < end;)
    std::this_thread::sleep_for(Milliseconds(1));
  std::optional<Fault> found = control.failure();
  if (!found && here.facts.fault) found = *here.facts.fault;
  if (!found) found = failed_call(control, control.last_seq(), here.what());
  poison(*found);
  if (ring.enqueued) ring.enqueued->fail(*found);
  Fault first = *found;
  if (first.seq == 0) first.seq = here.facts.seq;
  const bool own = mine != nullptr && found->reporter == names_.number(rank_) && !found->given;
  throw_fault(first, here.facts.phase, own ? "" : here.what());
}

// Ends the waits of all ranks for this reason, unless another one was recorded.
void Communicator::end_waits(Ring& ring, const Fault& why) const {
  ring.control->fail(why);
  if (ring.enqueued) ring.enqueued->fail(why);
  ring.executor->abort();
}

bool Communicator::take_reason(const Fault& why) {
  if (poisoned_) return false;  // later reasons are consequences of the first
  poisoned_ = why;
  poisoned_at_ = Clock::now();
  usable_ = false;
  return true;
}

// Posts an event for a failure. The rank that found it posts a report, even if no call raises it.
// Aborts were requested and quoted faults are raised, so they are not reports.
void Communicator::tell(const Fault& why) const {
  const bool mine = ranks_ == 1 || why.reporter == names_.number(rank_);
  const bool reports = mine && why.event != Event::abort && !is_quoted(why.event);
  EventQueue::all().post(reports ? EventKind::report : EventKind::failure,
                         "communicator '" + name_ + "': " + text_of(why));
}

void Communicator::poison(const Fault& why) {
  {
    std::lock_guard lock(state_);
    if (!take_reason(why)) return;
  }
  tell(why);
}

void Communicator::abort(const std::string& reason) {
  end_all(aborted_by(names_.number(rank_), reason));
}

void Communicator::give_up(const Fault& why) {
  Fault given = why;
  given.given = 1;
  end_all(std::move(given));
}

void Communicator::end_all(Fault why) {
  if (forked()) return;
  bool first;
  {
    std::lock_guard lock(state_);
    for (auto& [name, ring] : rings_) end_waits(ring, why);
    // If a ring had failed already, use its reason, which its other ranks report.
    for (auto& [name, ring] : rings_)
      if (auto earlier = ring.control->failure()) why = *std::move(earlier);
    first = take_reason(why);
  }
  // Last: a callback may query the rings and must see them failed.
  if (first) tell(why);
}

}  // namespace ringkern
