// Calls of a group that spans hosts, from launch to wait. Failures: torch/hosts_failures.h.
#pragma once

#include <utility>

#include "comm/news.h"
#include "torch/hosts_engines.h"

namespace ringkern::torch_ext {

// The communicator whose callback runs on this thread: to wait there for another of its calls would
// be to wait for oneself.
inline thread_local const HostsCommunicator* hosts_calling_back = nullptr;

inline bool HostsCommunicator::in_callback() const { return hosts_calling_back == this; }

inline void HostsCommunicator::check_callable() {
  check_healthy();
  try {
    inner_->check_callable();
  } catch (const AbortedError&) {
    // The group has failed while this rank was in no call: it raises what the others do.
    if (const auto why = trouble_inside()) {
      throw_told(settle(*why), hosts_.text_of_rank(rank()) + " was in no call");
    }
    throw;
  }
}

inline void HostsCommunicator::check_healthy() {
  std::lock_guard lock(state_);
  if (failure_)
    throw AbortedError("communicator '" + name_ + "' became unusable " + ago(failed_at_) + ": " +
                           failure_->text,
                       {failure_->about.rank, failure_->about.seq, ""});
}

inline WorkPtr HostsCommunicator::launch(Call call, const Wish& wish, bool async_op,
                                         Milliseconds timeout, std::optional<c10::Stream> stream) {
  return interruptible(&callers_, aborter(), [&] {
    return launch_uninterrupted(std::move(call), wish, async_op, timeout, stream);
  });
}

inline WorkPtr HostsCommunicator::launch_uninterrupted(Call call, const Wish& wish, bool async_op,
                                                       Milliseconds timeout,
                                                       std::optional<c10::Stream> stream) {
  for (const Prepared& prepared : call.tasks) {
    Task tried = prepared.task;  // what cannot be is told before anything is sent
    choose_way(tried, wish, call.device.type());
  }
  const Callers::Scope no_gil(callers_);
  check_callable();
  const c10::Device on = call.device;
  const std::vector<Prepared> tasks = call.tasks;
  auto work = c10::make_intrusive<RingWork>(std::move(call), 1);
  if (on.is_cpu() && async_op) {
    work->abort_by(aborter());
    auto error = std::make_shared<std::exception_ptr>();
    worker_->post(
        [this, tasks, wish, timeout, error] {
          try {
            run_tasks(tasks, wish, timeout);
          } catch (...) {
            *error = std::current_exception();
          }
          --posted_;  // the last that is done with this communicator
        },
        [this, work, error] {
          hosts_calling_back = this;
          work->end_part(*error);
          hosts_calling_back = nullptr;
        });
    ++posted_;  // not before: there may be no thread for it
    return work;
  }
  if (in_callback())
    throw UsageError(
        "a synchronous call in the callback of an asynchronous one would wait for itself. Use "
        "async_op=True there, or call after wait().");
  const c10::OptionalStreamGuard stream_guard(stream);
  const c10::OptionalDeviceGuard device_guard(on.is_cpu() ? std::nullopt : std::optional(on));
  worker_->drain();  // asynchronous calls came first
  run_tasks(tasks, wish, timeout);
  work->end_part(nullptr);
  return work;
}

inline void HostsCommunicator::run_tasks(const std::vector<Prepared>& tasks, const Wish& wish,
                                         Milliseconds timeout) {
  const auto turn = lock_and_look_out(turn_);
  check_callable();  // what came before may have failed
  try {
    for (const Prepared& task : tasks) run_task(task, wish, timeout);
  } catch (const UsageError&) {
    throw;  // of this rank alone
  } catch (...) {
    fail(std::current_exception());
  }
}

inline void HostsCommunicator::run_task(const Prepared& prepared, const Wish& wish,
                                        Milliseconds timeout) {
  const CallWords words = words_between_hosts(prepared.task, wish);
  now_.device = prepared.device;
  now_.timeout = timeout.count() > 0 ? timeout : timeout_;
  if (seq_ == 0) now_.timeout = roster_.left_of(now_.timeout);
  now_.since = Clock::now();
  now_.call = {.seq = ++seq_, .words = words};
  now_.text = text_of(now_.call);
  const auto inside = [&](Task step, const Wish& how) {
    step.part_of = words;
    inner_->run(prepared.device, step, how, now_.timeout);
  };
  const auto between = [&](bool over_all) -> Engine& {
    Engine& found = engine(prepared.device, over_all);
    found.set_call(now_.call);
    return found;
  };
  const Journey::Ways ways{hosts_, crossing_on(prepared.device), inside,
                           [&]() -> Engine& { return between(false); },
                           [&]() -> Engine& { return between(true); }};
  const Telegraph::Listening listening(telegraph_, now_.call.seq, now_.text);
  Journey(ways, prepared, wish).run();
}

// Leaves out how a call goes inside a host. Small floats may cross as float32, and may be combined
// in the order of the ranks, which takes another algorithm: the hosts compare both.
inline CallWords HostsCommunicator::words_between_hosts(const Task& task, const Wish& wish) {
  Reduction reduction = task.reduction;
  const bool all_reduce = task.collective == Collective::all_reduce;
  reduction.wide = all_reduce && wish.wide && reduction.can_be_wide();
  const bool in_order = all_reduce && wish.in_rank_order;
  CallWords words =
      words_of(task.collective, reduction, in_order ? Algorithm::two_shot : Algorithm::ring, {},
               task.root, task.count, task.moved);
  words.what |= kSpansHosts;
  return words;
}

inline Crossing HostsCommunicator::crossing_on(c10::Device device) const {
  const auto found = crossings_.find(c10::DeviceTypeName(device.type(), true));
  if (found == crossings_.end()) return {};
  const auto& [rail_bytes, piece_bytes, tree] = found->second;
  return {rail_bytes, piece_bytes, tree};
}

// Whether there is still something to wait for.
inline void HostsCommunicator::throw_if_over(Clock::time_point start) {
  look_out();
  if (const auto why = told()) throw Told{*why};
  if (Clock::now() - start >= now_.timeout + kLater || is_late(trouble_inside())) throw Late{};
}

inline void HostsCommunicator::await(const WorkPtr& work) {
  const auto wait = [&] {
    try {
      work->wait();
    } catch (const std::exception& e) {
      throw EngineFailed{what_of(e)};
    }
  };
  if (!now_.device.is_cpu()) return wait();  // the stream does
  constexpr Milliseconds kSlice{20}, kWarning{5000};
  LongWait done(work);
  if (done.done_within(kSlice)) return wait();
  const auto start = Clock::now();
  // The first rank of a host looks, unless it is another rail that waits.
  auto look_at = start + (hosts_.local() == 0 ? 1 : 2) * kLookAround;
  bool warned = false;
  while (!done.done_within(kSlice)) {
    throw_if_over(start);
    look_around_if_due(start, look_at, [&] { return done.done_within(Milliseconds(0)); });
    if (Clock::now() - start >= kWarning && !std::exchange(warned, true))
      NewsDesk::all().post(NewsKind::warning,
                           here() + " has waited for other hosts for " + in_seconds(kWarning));
  }
  wait();
}

// What a rank of this host has to say, in the group's numbers.
inline std::optional<Failure> HostsCommunicator::trouble_inside() {
  std::optional<Failure> why = inner_->trouble();
  if (!why || why->given) return why;
  why = renumbered(*why, hosts_.ranks_on(hosts_.host()));
  why->text = hosts_.text(hosts_.host()) + ": " + why->text;
  return why;
}

// The same to whoever is in a call, of which it is: its number is that of the ring inside.
inline std::optional<Failure> HostsCommunicator::trouble_in_call() {
  std::optional<Failure> why = trouble_inside();
  if (why && !why->given) why->about.seq = now_.call.seq;
  return why;
}

// Whether another rank of this host has waited for this one, which itself waits for another host.
inline bool HostsCommunicator::is_late(const std::optional<Failure>& inside) const {
  return inside && inside->cause == Cause::timed_out && !inside->given &&
         inside->about.rank == rank();
}

// Why another rank has given up, if one has; or this one, by abort().
inline std::optional<Failure> HostsCommunicator::told() {
  {
    std::lock_guard lock(state_);
    if (failure_) return failure_;
  }
  if (auto why = trouble_in_call(); why && !is_late(why)) return why;
  return telegraph_.heard();
}

// Ranks that make different calls may wait for each other. A rank may not have come when another
// looks first, so it looks again, after twice the time.
inline void HostsCommunicator::look_around_if_due(Clock::time_point start, Clock::time_point& due,
                                                  const std::function<bool()>& enough) {
  if (Clock::now() < due) return;
  const auto over = [&] {
    look_out();
    return failed() || enough();
  };
  if (const auto found = difference(telegraph_.call_roll(kRollCall, over))) throw Differ(*found);
  due = Clock::now() + (due - start);
}

inline void HostsCommunicator::abort(const std::string& reason) {
  const Failure mine{Cause::aborted,
                     rank(),
                     {rank(), 0, ""},
                     "aborted by " + hosts_.text_of_rank(rank()) + ": " + reason};
  {
    std::lock_guard lock(state_);
    if (!failure_) failure_ = mine, failed_at_ = Clock::now();
  }
  telegraph_.tell(mine, kStoreAnswers);
  inner_->give_up(mine);
}

// Calls that are in progress, on this thread or another, come to their end first.
inline void HostsCommunicator::close(double patience_s) {
  if (forked()) {
    // Threads and locks are the parent's, and so are what engines wait for when they end.
    (void)worker_.release();
    for (auto& [on, made] : engines_) (void)made.release();
    inner_->close(patience_s);
    return;
  }
  if (Signals::interrupts(&callers_)) return abort("it was closed in a signal handler");
  if (in_callback())
    throw UsageError(
        "close() in the callback of an asynchronous call would wait for itself. Close "
        "communicator '" +
        name_ + "' elsewhere.");
  {
    std::lock_guard lock(state_);
    if (std::exchange(closed_, true)) return;
  }
  const bool for_ever = patience_s < 0;
  const auto end = Clock::now() + (for_ever ? Milliseconds(0) : milliseconds(patience_s));
  std::unique_lock turn(turn_, std::defer_lock);
  if (for_ever) {
    worker_->drain();
    turn.lock();
  } else if (!worker_->drain(milliseconds(patience_s)) || !turn.try_lock_until(end)) {
    abort("it was closed with calls in flight");
    worker_->drain();
    if (!turn.owns_lock()) turn.lock();
  }
  inner_->close(patience_s);
  leave_engines();
  turn.unlock();
  callers_.come_back();
}

// The last to hold this communicator was a callback of it, whose thread cannot wait for itself. But
// other threads run what is left to run.
inline void HostsCommunicator::end_in_callback() {
  while (posted_ > 0) std::this_thread::sleep_for(Milliseconds(1));
  inner_->close(-1);
  leave_engines();
  std::thread([worker = std::move(worker_)] {}).detach();
}

// One that waits for who will not come keeps whoever ends it: so nobody waits for that.
inline void HostsCommunicator::leave_engines() {
  if (failed()) std::thread([left = std::move(engines_)]() mutable { left.clear(); }).detach();
  engines_.clear();
}

}  // namespace ringkern::torch_ext
