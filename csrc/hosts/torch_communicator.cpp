// Calls of a group that spans hosts, from launch to wait; their engines; and failures: the reason
// that counts, the ranks that are told, and the error that all ranks raise.
//
// Inside a host, the ring finds the cause. Between hosts, an engine reports only a broken
// connection, or nothing. Then ranks that know more have a moment to say so; if none does, all
// ranks are asked for their position.
#include "hosts/torch_communicator.h"

#include <c10/core/DeviceGuard.h>

#include <utility>

#include "comm/agreement.h"
#include "comm/diagnosis.h"
#include "comm/event_queue.h"
#include "fault/render.h"
#include "hosts/torch_hierarchy.h"
#include "hosts/torch_long_wait.h"
#include "torch/bindings.h"

namespace ringkern::torch_ext {
namespace {

// The communicator whose callback runs on this thread: a wait there for another of its calls would
// never end.
thread_local const HostsCommunicator* hosts_calling_back = nullptr;

}  // namespace

HostsCommunicator::HostsCommunicator(const c10::intrusive_ptr<c10d::Store>& store,
                                     const std::string& name, Hosts hosts, double timeout_s,
                                     py::object make_engine, const InterHostCosts& inter_host_costs)
    : hosts_(std::move(hosts)), name_(name), timeout_(milliseconds(timeout_s)),
      inter_host_costs_(inter_host_costs), make_engine_(kept(std::move(make_engine))),
      inner_(inner_over(store, timeout_s)), store_(store), prefix_(prefix_in(store)),
      channel_(connector(store), prefix_, hosts_,
               // A wait inside this host, for example for a late rank, asks no other host.
               [this](const Fault& why) {
                 inner_->give_up(why);
                 std::lock_guard lock(told_);
                 if (on_told_) on_told_(why);
               }),
      worker_(std::make_unique<Worker>()) {}

HostsCommunicator::~HostsCommunicator() {
  const WithoutGil no_gil;
  if (in_callback()) end_in_callback();
  else close(-1);
}

std::unique_ptr<TorchCommunicator> HostsCommunicator::inner_over(
    const c10::intrusive_ptr<c10d::Store>& store, double timeout_s) const {
  const std::string name = name_ + "/host " + std::to_string(hosts_.host());
  return std::make_unique<TorchCommunicator>(
      std::make_shared<C10dStore>(store), name, hosts_.local(),
      int(hosts_.ranks_on(hosts_.host()).size()), timeout_s, hosts_.ranks_on(hosts_.host()));
}

std::string HostsCommunicator::prefix_in(const c10::intrusive_ptr<c10d::Store>& store) const {
  C10dStore mine(store);
  return unique_prefix(mine, name_ + "/hosts", {hosts_.rank(), hosts_.ranks()});
}

// ---- Making engines

InterHostEngine& HostsCommunicator::flat(c10::Device device) {
  return interruptible(&callers_, aborter(), [&]() -> std::reference_wrapper<InterHostEngine> {
    return flat_engine(device);
  });
}

InterHostEngine& HostsCommunicator::flat_engine(c10::Device device) {
  const auto turn = lock_and_look_out(turn_);
  now_ = {device, timeout_, {}};
  const StoreChannel::Listening listening(channel_, now_.call);
  try {
    return engine(device, true);
  } catch (...) {
    fail(std::current_exception());
  }
}

InterHostEngine& HostsCommunicator::engine(c10::Device device, bool over_all) {
  std::unique_ptr<InterHostEngine>& found = engines_[{device.type(), over_all}];
  if (found) return *found;
  std::vector<int> ranks;
  for (int h = 0; h < hosts_.count() && !over_all; ++h)
    ranks.push_back(hosts_.ranks_on(h)[size_t(hosts_.local())]);
  for (int r = 0; r < hosts_.ranks() && over_all; ++r) ranks.push_back(r);
  const std::string kind = c10::DeviceTypeName(device.type(), true);
  const std::string name = kind + (over_all ? "/all" : "/rail/" + std::to_string(hosts_.local()));
  meet(name, ranks);
  found = make_engine_over(ranks, device);
  // A rank that left earlier, with its own part done, would be lost to ranks that still connect.
  meet(name + "/made", ranks);
  return *found;
}

std::unique_ptr<InterHostEngine> HostsCommunicator::make_engine_over(const std::vector<int>& ranks,
                                                                     c10::Device device) {
  // A rank may still give up or end before it has published its address in the store.
  const auto look = [this, look_for_gone = look_for_gone(ranks)] {
    const WithoutGil no_gil;
    look_out();
    if (const auto why = told()) throw Ended{*why};
    look_for_gone();
  };
  const WatchedStore::Watch watch(timeout_, look);
  const py::gil_scoped_acquire gil;
  try {
    const auto watched = [&watch](const std::string& prefix, StorePtr store) -> StorePtr {
      return c10::make_intrusive<WatchedStore>(prefix, std::move(store), watch);
    };
    const auto make = [&] {
      return py::cast<InterHostEngine::BackendPtr>((*make_engine_)(
          c10::DeviceTypeName(device.type(), true), ranks, py::cpp_function(watched)));
    };
    InterHostEngine::BackendPtr backend = make(), slots;
    if (device.is_cpu()) slots = make();  // on CUDA, looking at received data means waiting for it
    const Milliseconds theirs = timeout_ + 4 * kLater;  // this rank's own error is more precise
    return std::make_unique<InterHostEngine>(
        std::move(backend), std::move(slots), theirs, [this](const WorkPtr& work) { await(work); },
        [this, ranks](int place, const CallRecord& theirs) {
          throw Ended{differs(ranks[size_t(place)], now_.call, {theirs.seq, theirs.words}), true};
        });
  } catch (const py::error_already_set& e) {
    Signals::keep(e);
    watch.rethrow();
    // A better reason than the engine's "nobody was there" may still come. There is none if engines
    // also fail on other ranks.
    try {
      const WithoutGil no_gil;
      for (const auto end = Clock::now() + kReasonComes; Clock::now() < end; look())
        std::this_thread::sleep_for(Milliseconds(20));
    } catch (const Ended&) {
      const WithoutGil no_gil;
      const auto why = channel_.hear(kReasonComes);
      if (!why || why->cause != Cause::failed) throw;
    }
    Fault none = fault(Event::no_engine, rank());
    none.evidence = py::str(e.value()).cast<std::string>();
    throw Ended{none, true};
  }
}

// Waits until the ranks of an engine have come, before they make it and after. While they make it,
// they would wait for each other without noticing that one has given up.
void HostsCommunicator::meet(const std::string& name, const std::vector<int>& ranks) {
  const WithoutGil no_gil;
  constexpr Milliseconds kFirstPause{1}, kLongestPause{50};
  C10dStore store(store_);
  const std::string key = prefix_ + "/engine/" + name;
  const auto look_for_gone = this->look_for_gone(ranks);
  auto look_around_at = Clock::now() + kLookAround;
  auto pause = kFirstPause;
  const auto start = Clock::now();
  const auto all_come = [&](int64_t more) { return store.add(key, more) >= int64_t(ranks.size()); };
  bool come = all_come(1);
  try {
    for (; !come; come = all_come(0)) {
      try {
        throw_if_over(now_.since);
        look_for_gone();
      } catch (const Ended&) {
        if (all_come(0)) break;  // they came meanwhile; the failure was told after that
        throw;
      }
      look_around_if_due(start, look_around_at, [&] { return all_come(0); });
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  } catch (...) {
    // Keeps a rank that comes only now from going on without this one.
    try {
      store.add(key, -1);
    } catch (const std::exception&) {
    }
    throw;
  }
}

// Looks at these ranks only: others may have finished their first call, and have ended.
std::function<void()> HostsCommunicator::look_for_gone(const std::vector<int>& ranks) {
  static constexpr Milliseconds kLookForGone{100};
  const Roster roster = now_.call.seq <= 1 ? roster_.of(ranks) : Roster();
  return [this, ranks, roster, next_look = Clock::now() + kLookForGone]() mutable {
    if (Clock::now() < next_look) return;
    next_look = Clock::now() + kLookForGone;
    C10dStore store(store_);
    const auto gone = roster.find_gone(store);
    if (!gone) return;
    Fault why = hosts_.at_home(*gone);
    why.reporter = why.mine.rank = rank();
    why.seq = now_.call.seq;
    throw Ended{why};
  };
}

// ---- Calls

bool HostsCommunicator::in_callback() const { return hosts_calling_back == this; }

void HostsCommunicator::check_callable() {
  inner_->check_open();
  check_healthy();
  try {
    inner_->check_callable();
  } catch (const AbortedError&) {
    // The group has failed while this rank was in no call: it raises the same error as the others.
    if (const auto why = trouble_inside())
      throw_fault(settle(*why), "", text_of(fault(Event::idle)));
    throw;
  }
}

void HostsCommunicator::check_healthy() {
  std::lock_guard lock(state_);
  if (failure_)
    throw_unusable("communicator '" + name_ + "' became unusable " + ago(failed_at_) + ": ",
                   *failure_);
}

WorkPtr HostsCommunicator::submit(Call call, const CallOptions& options) {
  return interruptible(&callers_, aborter(),
                       [&] { return submit_uninterrupted(std::move(call), options); });
}

WorkPtr HostsCommunicator::submit_uninterrupted(Call call, const CallOptions& options) {
  const WayRequest& request = options.request;
  const Milliseconds timeout = options.timeout;
  for (const Prepared& prepared : call.tasks) {
    Task tried = prepared.task;  // raises the errors of arguments before anything is sent
    apply_request(tried, request, call.device.type());
  }
  const Callers::Scope no_gil(callers_);
  check_callable();
  const c10::Device on = call.device;
  const std::vector<Prepared> tasks = call.tasks;
  auto work = c10::make_intrusive<CallWork>(std::move(call), 1);
  if (on.is_cpu() && options.async_op) {
    work->abort_by(aborter());
    auto error = std::make_shared<std::exception_ptr>();
    worker_->post(
        [this, tasks, request, timeout, error] {
          try {
            run_tasks(tasks, request, timeout);
          } catch (...) {
            *error = std::current_exception();
          }
          --posted_;  // the last use of this communicator
        },
        [this, work, error] {
          hosts_calling_back = this;
          work->end_part(*error);
          hosts_calling_back = nullptr;
        });
    ++posted_;  // only now: there may be no thread for it
    return work;
  }
  if (in_callback()) throw_call_in_callback();
  const c10::OptionalStreamGuard stream_guard(options.stream);
  const c10::OptionalDeviceGuard device_guard(on.is_cpu() ? std::nullopt : std::optional(on));
  worker_->drain();  // runs the asynchronous calls first
  run_tasks(tasks, request, timeout);
  if (!on.is_cpu()) inner_->follow(*work, on);
  work->end_part(nullptr);
  if (!options.has_work) return nullptr;
  return work;
}

void HostsCommunicator::run_tasks(const std::vector<Prepared>& tasks, const WayRequest& request,
                                  Milliseconds timeout) {
  const auto turn = lock_and_look_out(turn_);
  check_callable();  // earlier calls may have failed
  try {
    for (const Prepared& task : tasks) run_task(task, request, timeout);
  } catch (const UsageError&) {
    throw;  // concerns only this rank
  } catch (...) {
    fail(std::current_exception());
  }
}

void HostsCommunicator::run_task(const Prepared& prepared, const WayRequest& request,
                                 Milliseconds timeout) {
  const CallWords words = words_between_hosts(prepared.task, request);
  now_.device = prepared.device;
  now_.timeout = timeout.count() > 0 ? timeout : timeout_;
  if (seq_ == 0) now_.timeout = roster_.left_of(now_.timeout);
  now_.since = Clock::now();
  now_.call = {++seq_, words};
  const auto inside = [&](Task step, const WayRequest& how) {
    step.part_of = words;
    inner_->run(prepared.device, step, how, now_.timeout);
  };
  const auto between = [&](bool over_all) -> InterHostEngine& {
    InterHostEngine& found = engine(prepared.device, over_all);
    found.set_call({.seq = now_.call.seq, .words = now_.call.words});
    return found;
  };
  const HierarchicalTask::Ways ways{hosts_, inter_host_cost_on(prepared.device), inside,
                                    [&]() -> InterHostEngine& { return between(false); },
                                    [&]() -> InterHostEngine& { return between(true); }};
  const StoreChannel::Listening listening(channel_, now_.call);
  HierarchicalTask(ways, prepared, request).run();
  ++completed_;
}

// Returns the words that hosts compare. Leaves out how a call goes inside a host. Small floats may
// cross as float32, and may be combined in rank order, which takes another algorithm: the hosts
// compare both.
CallWords HostsCommunicator::words_between_hosts(const Task& task, const WayRequest& request) {
  Reduction reduction = task.reduction;
  const bool all_reduce = task.collective == Collective::all_reduce;
  reduction.wide = all_reduce && request.wide && reduction.can_be_wide();
  const bool in_order = all_reduce && request.in_rank_order;
  CallWords words =
      words_of(task.collective, reduction, in_order ? Algorithm::two_shot : Algorithm::ring, {},
               task.root, task.count, task.moved);
  words.what |= kSpansHosts;
  return words;
}

InterHostCost HostsCommunicator::inter_host_cost_on(c10::Device device) const {
  const auto found = inter_host_costs_.find(c10::DeviceTypeName(device.type(), true));
  if (found == inter_host_costs_.end()) return {};
  const auto& [rail_bytes, stage_bytes, tree] = found->second;
  return {rail_bytes, stage_bytes, tree};
}

// Throws Ended if there is nothing left to wait for.
void HostsCommunicator::throw_if_over(Clock::time_point start) {
  look_out();
  if (const auto why = told()) throw Ended{*why};
  if (Clock::now() - start >= now_.timeout + kLater || is_late(trouble_inside()))
    throw Ended{fault(Event::network_slow), true};
}

void HostsCommunicator::await(const WorkPtr& work) {
  const auto wait = [&] {
    try {
      work->wait();
    } catch (const std::exception& e) {
      Fault broken = fault(Event::host_unreachable);
      broken.evidence = printable(what_of(e), kEngineSays);
      throw Ended{broken, true};
    }
  };
  if (!now_.device.is_cpu()) return wait();  // the stream waits
  constexpr Milliseconds kSlice{20}, kWarning{5000};
  LongWait done(work);
  if (done.done_within(kSlice)) return wait();
  const auto start = Clock::now();
  // The first rank of a host looks around, and a rank of another rail only if its wait lasts
  // longer.
  auto look_at = start + (hosts_.local() == 0 ? 1 : 2) * kLookAround;
  bool warned = false;
  while (!done.done_within(kSlice)) {
    throw_if_over(start);
    look_around_if_due(start, look_at, [&] { return done.done_within(Milliseconds(0)); });
    if (Clock::now() - start >= kWarning && !std::exchange(warned, true)) {
      Fault slow = fault(Event::hosts_late);
      slow.timeout_ns = std::chrono::nanoseconds(kWarning).count();
      EventQueue::all().post(EventKind::warning, text_of(slow));
    }
  }
  wait();
}

std::optional<Fault> HostsCommunicator::trouble_inside() {
  std::optional<Fault> why = inner_->trouble();
  if (why && !why->from_outside) why = hosts_.at_home(*why);
  return why;
}

// Returns the same for a rank in a call, with the number of that call instead of the ring's.
std::optional<Fault> HostsCommunicator::trouble_in_call() {
  std::optional<Fault> why = trouble_inside();
  if (why && !why->from_outside) why->seq = now_.call.seq;
  return why;
}

// Returns true if another rank of this host waited for this one, which itself waits for another
// host.
bool HostsCommunicator::is_late(const std::optional<Fault>& inside) const {
  return inside && inside->cause == Cause::timed_out && !inside->from_outside &&
         inside->rank == rank();
}

// Returns the reason why another rank has given up, or this one by abort(); none if neither has.
std::optional<Fault> HostsCommunicator::told() {
  {
    std::lock_guard lock(state_);
    if (failure_) return failure_;
  }
  if (auto why = trouble_in_call(); why && !is_late(why)) return why;
  return channel_.heard();
}

// Checks whether ranks make different calls, and so wait for each other. A rank may not have come
// when another looks for the first time, so it looks again, after twice the time.
void HostsCommunicator::look_around_if_due(Clock::time_point start, Clock::time_point& due,
                                           const std::function<bool()>& enough) {
  if (Clock::now() < due) return;
  const auto over = [&] {
    look_out();
    return failed() || enough();
  };
  if (const auto found = difference(channel_.query_status(kStatusQuery, over)))
    throw Ended{*found, true};
  due = Clock::now() + (due - start);
}

void HostsCommunicator::abort(const std::string& reason) {
  const Fault mine = hosts_.at_home(aborted_by(rank(), reason));
  {
    std::lock_guard lock(state_);
    if (!failure_) failure_ = mine, failed_at_ = Clock::now();
  }
  channel_.tell(mine, kStoreAnswers);
  inner_->give_up(mine);
}

void HostsCommunicator::shut_out(const std::vector<int>& members, Milliseconds patience) {
  std::vector<int> inside;
  for (const int rank : members)
    if (hosts_.host_of(rank) == hosts_.host()) inside.push_back(hosts_.local_of(rank));
  inner_->shut_out(inside, patience);
}

std::pair<uint64_t, uint64_t> HostsCommunicator::calls() {
  return interruptible(&callers_, aborter(), [&] {
    const Callers::Scope no_gil(callers_);
    inner_->check_open();
    if (in_callback()) throw_call_in_callback();
    worker_->drain();
    const auto turn = lock_and_look_out(turn_);
    return std::pair(completed_, seq_);
  });
}

// Finishes the calls in progress on any thread first.
void HostsCommunicator::close(double patience_s) {
  if (forked()) {
    // Threads and locks belong to the parent, and so does everything that engines wait for at their
    // end.
    (void)worker_.release();
    for (auto& [on, made] : engines_) (void)made.release();
    inner_->close(patience_s);
    return;
  }
  if (Signals::interrupts(&callers_)) return abort("it was closed in a signal handler");
  if (in_callback()) throw_close_in_callback(name_);
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

// Ends the communicator from its own callback, which held it last: that thread cannot wait for
// itself, but other threads run the remaining calls.
void HostsCommunicator::end_in_callback() {
  while (posted_ > 0) std::this_thread::sleep_for(Milliseconds(1));
  inner_->close(-1);
  leave_engines();
  std::thread([worker = std::move(worker_)] {}).detach();
}

// An engine that waits for a missing rank blocks its destruction, so nobody waits for that.
void HostsCommunicator::leave_engines() {
  if (failed()) std::thread([left = std::move(engines_)]() mutable { left.clear(); }).detach();
  engines_.clear();
}

// ---- Faults

Fault HostsCommunicator::fault(Event event, int about) const {
  Fault f = fault_of(event, rank(), about, now_.call.seq);
  f.mine.call = {now_.call.seq, now_.call.words};
  f.mine.call.is_there = 1;
  f.timeout_ns = std::chrono::nanoseconds(now_.timeout).count();
  return hosts_.at_home(f);
}

// Returns the hosts of which no rank has answered.
std::vector<int> HostsCommunicator::absent(const Query& roll) const {
  std::vector<int> hosts;
  for (int h = 0; h < hosts_.count(); ++h) {
    bool answers = h == hosts_.host();
    for (const int r : hosts_.ranks_on(h)) answers |= roll[size_t(r)].has_value();
    if (!answers) hosts.push_back(h);
  }
  return hosts;
}

std::string HostsCommunicator::hosts_text(const std::vector<int>& which) const {
  constexpr size_t kMost = 4;
  std::string text;
  for (size_t i = 0; i < which.size() && i < kMost; ++i)
    text += (i > 0 ? ", " : "") + hosts_.text(which[i]);
  if (which.size() > kMost) text += " and " + std::to_string(which.size() - kMost) + " more";
  return text;
}

// Returns the first call that this rank and another one have made differently. Either may be in a
// later call by now, in which the other waits for it in vain.
std::optional<Fault> HostsCommunicator::difference(const Query& roll) const {
  const auto& mine = roll[size_t(rank())];
  if (!mine) return {};
  for (uint64_t back = kCallLines; back-- > 0;) {
    const CallAt* const here = mine->find(mine->seq - back);  // none before the first call
    for (size_t r = 0; here != nullptr && r < roll.size(); ++r)
      if (const CallAt* const theirs = roll[r] ? roll[r]->find(here->seq) : nullptr;
          theirs != nullptr && *theirs != *here)
        return differs(int(r), *here, *theirs);
  }
  return {};
}

Fault HostsCommunicator::differs(int other, const CallAt& mine, const CallAt& theirs) const {
  Fault f = fault(Event::hosts_mismatch, other);
  f.seq = mine.seq;
  f.mine.call.seq = mine.seq;
  f.mine.call.words = mine.words;
  f.theirs.call = {theirs.seq, theirs.words};
  f.theirs.call.is_there = 1;
  return f;
}

// Adds the lost hosts to an engine's report of a broken connection.
Fault HostsCommunicator::lost(const Fault& broken) {
  const Query roll = channel_.query_status(kStatusQuery);
  if (const auto why = told()) return *why;
  if (const auto found = difference(roll)) return *found;
  std::vector<int> gone = absent(roll);
  // If no host is missing, a rank is, and another rank of its host knows of it.
  if (gone.empty())
    if (const auto why = channel_.hear(kReasonComes)) return *why;
  const bool asked = channel_.store_answers();
  if (!asked && gone.size() > 1) gone.clear();  // one is lost, and the others cannot answer
  const Event event = !asked         ? Event::network_cut
                      : gone.empty() ? Event::host_unreachable
                                     : Event::host_silent;
  Fault f = fault(event, gone.empty() ? -1 : hosts_.ranks_on(gone.front()).front());
  f.hosts = gone.empty() ? "" : hosts_text(gone);
  f.evidence = broken.evidence;
  return f;
}

Fault HostsCommunicator::late() {
  const Query roll = channel_.query_status(kStatusQuery);
  if (const auto found = difference(roll)) return *found;
  std::vector<int> behind = absent(roll);
  Event event = Event::host_absent;
  if (behind.empty()) {
    for (int h = 0; h < hosts_.count(); ++h)
      for (const int r : hosts_.ranks_on(h))
        if (roll[size_t(r)] && roll[size_t(r)]->seq < now_.call.seq &&
            (behind.empty() || behind.back() != h))
          behind.push_back(h);
    event = behind.empty() ? Event::network_slow : Event::host_behind;
    // The other host knows which of its ranks is late.
    if (behind.empty())
      if (const auto reason = channel_.hear(kReasonComes)) return *reason;
  }
  Fault f = fault(event, behind.empty() ? -1 : hosts_.ranks_on(behind.front()).front());
  f.hosts = behind.empty() ? "" : hosts_text(behind);
  f.store_is_silent = !channel_.store_answers();
  return f;
}

// Names the calls: inside a host, ranks that make different calls are found by their steps alone.
Fault HostsCommunicator::in_calls(const Fault& why) {
  if (why.cause != Cause::mismatch || why.from_outside) return why;
  return difference(channel_.query_status(kCallsCome)).value_or(why);
}

// Turns an exception of a call into the fault of the group.
Fault HostsCommunicator::reason_of(std::exception_ptr error) {
  const auto inside = [&] {
    if (auto why = trouble_in_call()) return *why;
    return hosts_.at_home(fault_of(error, rank()));
  };
  try {
    std::rethrow_exception(error);
  } catch (const Ended& e) {
    if (!e.own) return in_calls(e.fault);
    if (e.fault.event == Event::network_slow) return late();
    if (e.fault.event == Event::host_unreachable) return lost(e.fault);
    return e.fault;
  } catch (const MismatchError&) {
    return in_calls(inside());
  } catch (const TimeoutError&) {
    // The late rank inside may itself wait for another host.
    const Fault why = inside();
    if (why.from_outside || why.rank < 0 || why.rank >= ranks()) return why;
    const bool waits = channel_.query_status(kStatusQuery)[size_t(why.rank)].has_value();
    return waits || !channel_.store_answers() ? late() : why;
  } catch (const Error&) {
    return inside();
  } catch (const std::exception& e) {
    Fault f = fault(Event::exception, rank());
    f.evidence = what_of(e);
    return f;
  }
}

// Tells a reason to all ranks; returns the first one, which counts on all of them.
Fault HostsCommunicator::settle(const Fault& mine) {
  const Fault first = channel_.tell(mine, kStoreAnswers);
  inner_->give_up(first);
  std::lock_guard lock(state_);
  if (!failure_) failure_ = first, failed_at_ = Clock::now();
  return first;
}

void HostsCommunicator::fail(std::exception_ptr error) {
  // Ranks that give up at the same time answer each other.
  channel_.watch(now_.call);
  const Fault first = settle(reason_of(error));
  channel_.rest();
  try {
    // Otherwise another rank knew better, though it may look as if a rank of this host had failed.
    if (first.cause == Cause::failed) std::rethrow_exception(error);
  } catch (const Ended& e) {
    if (e.fault.event == Event::no_engine)
      throw RendezvousError(text_of(e.fault), facts_of(e.fault));
  } catch (const TransportError&) {
    throw;
  } catch (const RendezvousError&) {
    throw;
  } catch (...) {
    // All ranks raise the same error in later calls.
  }
  const bool own = first.reporter == rank() || first.rank == rank();
  throw_fault(first, "", own ? "" : text_of(fault(Event::here)));
}

void bind_hosts_communicator(py::module_& m) {
  py::class_<HostsCommunicator, Runner, std::shared_ptr<HostsCommunicator>>(m, "HostsCommunicator")
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                       int rank, std::vector<int> host_of, std::vector<std::string> host_names,
                       double timeout_s, py::object engine,
                       const HostsCommunicator::InterHostCosts& inter_host_costs) {
             return std::make_unique<HostsCommunicator>(
                 store, name, Hosts(rank, std::move(host_of), std::move(host_names)), timeout_s,
                 std::move(engine), inter_host_costs);
           }),
           py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("host_of"),
           py::arg("host_names"), py::arg("timeout_s"), py::arg("engine"),
           py::arg("inter_host_costs") = HostsCommunicator::InterHostCosts())
      .def("calls", &HostsCommunicator::calls);
}

}  // namespace ringkern::torch_ext
