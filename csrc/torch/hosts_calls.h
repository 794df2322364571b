// Calls of a group that spans hosts, from launch to wait. Failures: torch/hosts_failures.h.
#pragma once

#include <utility>

#include "comm/news.h"
#include "torch/hosts_communicator.h"

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
    // A rank of this host has failed while this one was in no call, and other hosts do not know.
    if (const auto why = trouble_inside()) settle(*why);
    check_healthy();
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
  const std::lock_guard turn(turn_);
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
  Task task = prepared.task;
  // How it goes inside is compared there.
  const CallWords words = words_of(task.collective, task.reduction, {}, {}, task.root, task.count);
  now_.device = prepared.device;
  now_.timeout = timeout.count() > 0 ? timeout : timeout_;
  now_.seq = ++seq_;
  now_.text = text_of({.seq = seq_, .words = words});
  const Journey::Ways ways{hosts_, crossing_on(prepared.device),
                           [&](const Task& step, const Wish& how) {
                             inner_->run(prepared.device, step, how, now_.timeout);
                           },
                           [&]() -> Engine& { return engine(prepared.device, false); },
                           [&]() -> Engine& { return engine(prepared.device, true); }};
  const Telegraph::Listening listening(telegraph_);
  compare_calls(words);
  Journey(ways, prepared, wish).run();
}

// A call that has not been made so far is compared with that of the other hosts before anything of
// it is sent: Gloo ends a process that is sent more than it expects. The first rail does so, and
// the other ranks of a host wait for its; inside, the ring compares. On CUDA to look at what has
// come would be to wait for the device.
inline void HostsCommunicator::compare_calls(const CallWords& words) {
  constexpr size_t kMost = 4096;
  if (compared_.size() >= kMost) compared_.clear();  // on all ranks at the same call
  const bool first = compared_.empty();
  if (!compared_.insert(to_bytes(words)).second || !now_.device.is_cpu()) return;
  const auto come_together = [&] {
    uint8_t all_alike = 1;
    Task t;
    t.reduction = Reduction::of(Op::min, DType::u8, inner_->ranks());
    t.in = t.out = &all_alike;
    t.count = 1;
    inner_->run(now_.device, t, Wish{}, now_.timeout);
  };
  if (first) come_together();  // ranks that are not connected yet are not told what is found here
  if (hosts_.local() == 0) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor mine = at::tensor({int64_t(words.what), words.count}, at::kLong);
    const at::Tensor all = at::empty({hosts_.count(), 2}, at::kLong);
    engine(now_.device, false).begin_all_gather(all, mine)();
    const auto* const of = all.const_data_ptr<int64_t>();
    for (int h = 0; h < hosts_.count(); ++h) {
      const CallWords theirs{uint64_t(of[2 * h]), of[2 * h + 1]};
      if (theirs == words) continue;
      throw Differ{hosts_.ranks_on(h).front(), text_of({.seq = now_.seq, .words = theirs})};
    }
  }
  come_together();
}

inline Crossing HostsCommunicator::crossing_on(c10::Device device) const {
  const auto found = crossings_.find(c10::DeviceTypeName(device.type(), true));
  if (found == crossings_.end()) return {};
  const auto& [rail_bytes, piece_bytes, tree] = found->second;
  return {rail_bytes, piece_bytes, tree};
}

inline Engine& HostsCommunicator::flat(c10::Device device) {
  const std::lock_guard turn(turn_);
  now_ = {device, timeout_, 0, "making the group"};
  try {
    return engine(device, true);
  } catch (...) {
    fail(std::current_exception());
  }
}

inline Engine& HostsCommunicator::engine(c10::Device device, bool over_all) {
  std::unique_ptr<Engine>& found = engines_[{device.type(), over_all}];
  if (found) return *found;
  std::vector<int> ranks;
  for (int h = 0; h < hosts_.count() && !over_all; ++h)
    ranks.push_back(hosts_.ranks_on(h)[size_t(hosts_.local())]);
  for (int r = 0; r < hosts_.ranks() && over_all; ++r) ranks.push_back(r);
  const std::string kind = c10::DeviceTypeName(device.type(), true);
  meet(kind + (over_all ? "/all" : "/rail/" + std::to_string(hosts_.local())), ranks.size());
  const py::gil_scoped_acquire gil;
  try {
    auto backend = py::cast<c10::intrusive_ptr<c10d::Backend>>(make_engine_(kind, ranks));
    const Milliseconds theirs = timeout_ + 4 * kLater;  // this rank's own is told better
    found = std::make_unique<Engine>(std::move(backend), theirs,
                                     [this](const WorkPtr& work) { await(work); });
  } catch (const py::error_already_set& e) {
    throw NoEngine{hosts_.text_of_rank(rank()) +
                   " has no engine between the hosts: " + py::str(e.value()).cast<std::string>()};
  }
  return *found;
}

// The ranks of an engine come together before they make it: there they would wait for each other
// without seeing that another has given up.
inline void HostsCommunicator::meet(const std::string& name, size_t ranks) {
  const WithoutGil no_gil;
  constexpr Milliseconds kFirstPause{1}, kLongestPause{50};
  C10dStore store(store_);
  const std::string key = prefix_ + "/engine/" + name;
  const auto start = Clock::now();
  telegraph_.watch(now_.seq, now_.text);
  auto pause = kFirstPause;
  for (int64_t come = store.add(key, 1); come < int64_t(ranks); come = store.add(key, 0)) {
    throw_if_over(start);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  telegraph_.rest();
}

// Whether there is still something to wait for.
inline void HostsCommunicator::throw_if_over(Clock::time_point start) {
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
  constexpr Milliseconds kSlice{20}, kLong{60}, kVeryLong{1000}, kWarning{5000};
  LongWait done(work);
  if (done.done_within(kSlice)) return wait();
  const auto start = Clock::now();
  // Each once, when the wait has lasted so long.
  bool watches = false, looked = false, warned = false;
  const auto due = [&](bool& did, Milliseconds after) {
    return !did && Clock::now() - start >= after && (did = true);
  };
  while (!done.done_within(kSlice)) {
    throw_if_over(start);
    if (due(watches, kLong)) telegraph_.watch(now_.seq, now_.text);
    if (due(looked, kVeryLong) && hosts_.local() == 0)
      look_around([&] { return done.done_within(Milliseconds(0)); });
    if (due(warned, kWarning))
      NewsDesk::all().post(NewsKind::warning,
                           here() + " has waited for other hosts for " + in_seconds(kWarning));
  }
  telegraph_.rest();
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
  if (why && !why->given) why->about.seq = now_.seq;
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

// Ranks that make different calls may wait for each other.
inline void HostsCommunicator::look_around(const std::function<bool()>& enough) {
  if (const auto found = difference(telegraph_.call_roll(kRollCall, enough))) throw Differ(*found);
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
