// Calls of a group that spans hosts, from launch to wait; the engines that they go by; and
// failures: which reason counts, who is told, and what all ranks raise.
//
// Inside a host the ring finds the cause, as ever. Between hosts an engine says that a connection
// has broken, or nothing: then those who know better are given a moment to say so, and if nobody
// does, all are asked where they are.
#include "hosts/torch_communicator.h"

#include <c10/core/DeviceGuard.h>

#include <utility>

#include "comm/agreement.h"
#include "comm/event_queue.h"
#include "fault/render.h"
#include "hosts/torch_hierarchy.h"
#include "hosts/torch_long_wait.h"
#include "torch/bindings.h"

namespace ringkern::torch_ext {
namespace {

// The communicator whose callback runs on this thread: to wait there for another of its calls would
// be to wait for oneself.
thread_local const HostsCommunicator* hosts_calling_back = nullptr;

}  // namespace

HostsCommunicator::HostsCommunicator(const c10::intrusive_ptr<c10d::Store>& store,
                                     const std::string& name, Hosts hosts, double timeout_s,
                                     py::object make_engine, const InterHostCosts& inter_host_costs)
    : hosts_(std::move(hosts)), name_(name), timeout_(milliseconds(timeout_s)),
      inter_host_costs_(inter_host_costs), make_engine_(kept(std::move(make_engine))),
      inner_(inner_over(store, timeout_s)), store_(store), prefix_(prefix_in(store)),
      channel_(connector(store), prefix_, hosts_,
               // A wait inside this host, as for a rank that is late, asks no other host.
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
  return std::make_unique<TorchCommunicator>(store, name, hosts_.local(),
                                             int(hosts_.ranks_on(hosts_.host()).size()), timeout_s,
                                             hosts_.ranks_on(hosts_.host()));
}

std::string HostsCommunicator::prefix_in(const c10::intrusive_ptr<c10d::Store>& store) const {
  C10dStore mine(store);
  return unique_prefix(mine, name_ + "/hosts", {hosts_.rank(), hosts_.ranks()});
}

// ---- Making engines

Engine& HostsCommunicator::flat(c10::Device device) {
  return interruptible(&callers_, aborter(),
                       [&]() -> std::reference_wrapper<Engine> { return flat_engine(device); });
}

Engine& HostsCommunicator::flat_engine(c10::Device device) {
  const auto turn = lock_and_look_out(turn_);
  now_ = {device, timeout_, {}};
  const StoreChannel::Listening listening(channel_, now_.call);
  try {
    return engine(device, true);
  } catch (...) {
    fail(std::current_exception());
  }
}

Engine& HostsCommunicator::engine(c10::Device device, bool over_all) {
  std::unique_ptr<Engine>& found = engines_[{device.type(), over_all}];
  if (found) return *found;
  std::vector<int> ranks;
  for (int h = 0; h < hosts_.count() && !over_all; ++h)
    ranks.push_back(hosts_.ranks_on(h)[size_t(hosts_.local())]);
  for (int r = 0; r < hosts_.ranks() && over_all; ++r) ranks.push_back(r);
  const std::string kind = c10::DeviceTypeName(device.type(), true);
  const std::string name = kind + (over_all ? "/all" : "/rail/" + std::to_string(hosts_.local()));
  meet(name, ranks);
  found = make_engine_over(ranks, device);
  // A rank that left before, done with its part, would be lost to those that still connect.
  meet(name + "/made", ranks);
  return *found;
}

std::unique_ptr<Engine> HostsCommunicator::make_engine_over(const std::vector<int>& ranks,
                                                            c10::Device device) {
  // A rank may still give up, or end, before it has said in the store where it listens.
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
      return py::cast<Engine::BackendPtr>((*make_engine_)(c10::DeviceTypeName(device.type(), true),
                                                          ranks, py::cpp_function(watched)));
    };
    Engine::BackendPtr backend = make(), slots;
    if (device.is_cpu()) slots = make();  // on CUDA to look at what has come is to wait for it
    const Milliseconds theirs = timeout_ + 4 * kLater;  // this rank's own is told better
    return std::make_unique<Engine>(
        std::move(backend), std::move(slots), theirs, [this](const WorkPtr& work) { await(work); },
        [this, ranks](int place, const ringkern::Call& theirs) {
          throw Ended{differs(ranks[size_t(place)], now_.call, {theirs.seq, theirs.words}), true};
        });
  } catch (const py::error_already_set& e) {
    Signals::keep(e);
    watch.rethrow();
    // A better reason than the engine's, that nobody was there, may still come. Where engines fail
    // on other ranks, too, there is none.
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

// The ranks of an engine come together before they make it: there they would wait for each other
// without seeing that another has given up. And they do when it is made.
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
        if (all_come(0)) break;  // since this rank has asked; what it was told comes after that
        throw;
      }
      look_around_if_due(start, look_around_at, [&] { return all_come(0); });
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  } catch (...) {
    // Keeps a rank that comes now from going on without this one.
    try {
      store.add(key, -1);
    } catch (const std::exception&) {
    }
    throw;
  }
}

// Looks at these alone: others may be through with their first call, and have ended.
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
  check_healthy();
  try {
    inner_->check_callable();
  } catch (const AbortedError&) {
    // The group has failed while this rank was in no call: it raises what the others do.
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
  const Request& request = options.request;
  const Milliseconds timeout = options.timeout;
  for (const Prepared& prepared : call.tasks) {
    Task tried = prepared.task;  // what cannot be is told before anything is sent
    choose_way(tried, request, call.device.type());
  }
  const Callers::Scope no_gil(callers_);
  check_callable();
  const c10::Device on = call.device;
  const std::vector<Prepared> tasks = call.tasks;
  auto work = c10::make_intrusive<RingWork>(std::move(call), 1);
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
  if (in_callback()) throw_call_in_callback();
  const c10::OptionalStreamGuard stream_guard(options.stream);
  const c10::OptionalDeviceGuard device_guard(on.is_cpu() ? std::nullopt : std::optional(on));
  worker_->drain();  // asynchronous calls came first
  run_tasks(tasks, request, timeout);
  if (!on.is_cpu()) inner_->follow(*work, on);
  work->end_part(nullptr);
  if (!options.has_work) return nullptr;
  return work;
}

void HostsCommunicator::run_tasks(const std::vector<Prepared>& tasks, const Request& request,
                                  Milliseconds timeout) {
  const auto turn = lock_and_look_out(turn_);
  check_callable();  // what came before may have failed
  try {
    for (const Prepared& task : tasks) run_task(task, request, timeout);
  } catch (const UsageError&) {
    throw;  // of this rank alone
  } catch (...) {
    fail(std::current_exception());
  }
}

void HostsCommunicator::run_task(const Prepared& prepared, const Request& request,
                                 Milliseconds timeout) {
  const CallWords words = words_between_hosts(prepared.task, request);
  now_.device = prepared.device;
  now_.timeout = timeout.count() > 0 ? timeout : timeout_;
  if (seq_ == 0) now_.timeout = roster_.left_of(now_.timeout);
  now_.since = Clock::now();
  now_.call = {++seq_, words};
  const auto inside = [&](Task step, const Request& how) {
    step.part_of = words;
    inner_->run(prepared.device, step, how, now_.timeout);
  };
  const auto between = [&](bool over_all) -> Engine& {
    Engine& found = engine(prepared.device, over_all);
    found.set_call({.seq = now_.call.seq, .words = now_.call.words});
    return found;
  };
  const HierarchicalTask::Ways ways{hosts_, inter_host_cost_on(prepared.device), inside,
                                    [&]() -> Engine& { return between(false); },
                                    [&]() -> Engine& { return between(true); }};
  const StoreChannel::Listening listening(channel_, now_.call);
  HierarchicalTask(ways, prepared, request).run();
}

// Leaves out how a call goes inside a host. Small floats may cross as float32, and may be combined
// in the order of the ranks, which takes another algorithm: the hosts compare both.
CallWords HostsCommunicator::words_between_hosts(const Task& task, const Request& request) {
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

// Tells if there is still something to wait for.
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
  if (why && !why->given) why = hosts_.at_home(*why);
  return why;
}

// The same to whoever is in a call, of which it is: its number is that of the ring inside.
std::optional<Fault> HostsCommunicator::trouble_in_call() {
  std::optional<Fault> why = trouble_inside();
  if (why && !why->given) why->seq = now_.call.seq;
  return why;
}

// Tells if another rank of this host waited for this one, which itself waits for another host.
bool HostsCommunicator::is_late(const std::optional<Fault>& inside) const {
  return inside && inside->cause == Cause::timed_out && !inside->given && inside->rank == rank();
}

// Why another rank has given up, if one has; or this one, by abort().
std::optional<Fault> HostsCommunicator::told() {
  {
    std::lock_guard lock(state_);
    if (failure_) return failure_;
  }
  if (auto why = trouble_in_call(); why && !is_late(why)) return why;
  return channel_.heard();
}

// Ranks that make different calls may wait for each other. A rank may not have come when another
// looks first, so it looks again, after twice the time.
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

// Calls that are in progress, on this thread or another, come to their end first.
void HostsCommunicator::close(double patience_s) {
  if (forked()) {
    // Threads and locks are the parent's, and so are what engines wait for when they end.
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

// The last to hold this communicator was a callback of it, whose thread cannot wait for itself. But
// other threads run what is left to run.
void HostsCommunicator::end_in_callback() {
  while (posted_ > 0) std::this_thread::sleep_for(Milliseconds(1));
  inner_->close(-1);
  leave_engines();
  std::thread([worker = std::move(worker_)] {}).detach();
}

// One that waits for who will not come keeps whoever ends it: so nobody waits for that.
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

// Hosts of which no rank has answered.
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

// The first call that this rank and another one have made differently. Either may be in a later one
// by now, which the other waits for in vain.
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

// Adds to what an engine says of a broken connection which hosts are lost.
Fault HostsCommunicator::lost(const Fault& broken) {
  const Query roll = channel_.query_status(kStatusQuery);
  if (const auto why = told()) return *why;
  if (const auto found = difference(roll)) return *found;
  std::vector<int> gone = absent(roll);
  // Where all hosts are, a rank is not, and another one of its host knows of it.
  if (gone.empty())
    if (const auto why = channel_.hear(kReasonComes)) return *why;
  const bool asked = channel_.store_answers();
  if (!asked && gone.size() > 1) gone.clear();  // one of them, and the others cannot answer
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

// Inside, ranks that make different calls are seen by their steps. The texts name the calls.
Fault HostsCommunicator::in_calls(const Fault& why) {
  if (why.cause != Cause::mismatch || why.given) return why;
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
    if (why.given || why.rank < 0 || why.rank >= ranks()) return why;
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

// The first reason is everybody's.
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
    // Otherwise another rank knew better: here it may look as if one of this host had failed.
    if (first.cause == Cause::failed) std::rethrow_exception(error);
  } catch (const Ended& e) {
    if (e.fault.event == Event::no_engine)
      throw RendezvousError(text_of(e.fault), facts_of(e.fault));
  } catch (const TransportError&) {
    throw;
  } catch (const RendezvousError&) {
    throw;
  } catch (...) {
    // All ranks raise the same for anything later.
  }
  const bool own = first.reporter == rank() || first.rank == rank();
  throw_fault(first, "", own ? "" : text_of(fault(Event::here)));
}

void bind_hosts_communicator(py::module_& m) {
  py::class_<HostsCommunicator, Runner>(m, "HostsCommunicator")
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
           py::arg("inter_host_costs") = HostsCommunicator::InterHostCosts());
}

}  // namespace ringkern::torch_ext
