#include "comm/communicator.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "comm/diagnosis.h"
#include "comm/disconnect.h"
#include "comm/event_queue.h"
#include "comm/probe.h"
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

void throw_call_in_callback() {
  throw UsageError(
      "a synchronous call in the callback of an asynchronous one would wait for itself. Use "
      "async_op=True there, or call after wait().");
}

void throw_close_in_callback(const std::string& communicator) {
  throw UsageError(
      "close() in the callback of an asynchronous call would wait for itself. Close "
      "communicator '" +
      communicator + "' outside the callback.");
}

// ---- Calls -------------------------------------------------------------------------------------

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

void Communicator::check_open() {
  if (forked())
    throw UsageError(forked_text("communicator '" + name_ + "'", born_in_, int(getpid())));
  {
    std::lock_guard lock(state_);
    if (closed_)
      throw UsageError("communicator '" + name_ +
                       "' is closed. Make a new one, or call close() after the last call.");
  }
}

void Communicator::check_callable() {
  check_open();
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
  if (in_callback()) throw_call_in_callback();
  const auto turn = lock_and_look_out(turn_);
  check_callable();  // it may have been closed during the wait for this turn
  worker_->drain();  // asynchronous calls that were made before run first
  return execute(device, task, before);
}

std::optional<uint64_t> Communicator::run_now(const Device& device, Task& task) {
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

uint64_t Communicator::execute(const Device& device, Task task,
                               const std::function<void()>& before) {
  return run_on(ready_ring(device), task, before);
}

void Communicator::connect_on(const Device& device) {
  check_callable();
  if (in_callback()) throw_call_in_callback();
  const auto turn = lock_and_look_out(turn_);
  check_callable();
  worker_->drain();
  ready_ring(device);
}

// Returns the ring of the next call, connected, and remembers it for run_now().
Communicator::Ring& Communicator::ready_ring(const Device& device) {
  check_healthy();  // an earlier call may have failed
  const bool connects = !connected(device);
  try {
    last_ring_ = &ring_on(device);
  } catch (const std::exception&) {
    poison(fault_of(std::current_exception(), names_.number(rank_)));
    // give_up() has ended the rendezvous: report its reason.
    if (const auto given = trouble(); given && given->from_outside) throw_fault(*given);
    throw;
  }
  last_device_ = &device;
  // Faster ranks may already have failed in this call.
  if (const auto failure = last_ring_->control->failure(); failure && connects) {
    poison(*failure);
    throw_fault(*failure);
  }
  return *last_ring_;
}

uint64_t Communicator::run_on(Ring& ring, Task& task, const std::function<void()>& before) {
  Control& control = *ring.control;
  if (control.failed()) [[unlikely]] {  // the failure has not reached this rank yet
    const auto failure = control.failure();
    if (failure) poison(*failure);
    check_healthy();
  }
  resolve_auto(task, ring.ways);
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

// ---- Failures ----------------------------------------------------------------------------------

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
  const bool own =
      mine != nullptr && found->reporter == names_.number(rank_) && !found->from_outside;
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
  given.from_outside = 1;
  end_all(std::move(given));
}

void Communicator::end_all(Fault why) {
  if (forked()) return;
  ++aborts_;
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

// ---- Going on with other ranks -----------------------------------------------------------------

std::vector<std::string> Communicator::devices() {
  std::lock_guard lock(state_);
  std::vector<std::string> names;
  for (const auto& [name, ring] : rings_) names.push_back(name);
  return names;
}

// Returns the ring whose pages the ranks agree over. Either all ranks have connected on a device,
// or none has.
Communicator::Ring& Communicator::first_ring() {
  std::lock_guard lock(state_);
  if (rings_.empty())
    throw UsageError("the ranks of communicator '" + name_ +
                     "' were never connected, so those that are left cannot find each other: make "
                     "a new communicator");
  return rings_.begin()->second;
}

std::function<void()> Communicator::look_for_abort() {
  return [this, before = aborts_.load()] {
    look_out();  // runs the handlers of signals, which may abort
    if (aborts_ != before)
      throw AbortedError("communicator '" + name_ + "' was aborted on " + names_.text(rank_) +
                         " while its ranks agreed who goes on");
  };
}

Regroup::Round Communicator::gather(const std::vector<int>& excluded, Milliseconds patience,
                                    const Regroup::Propose& propose) {
  check_open();
  if (in_callback()) throw_call_in_callback();
  const auto turn = lock_and_look_out(turn_);
  check_open();
  worker_->drain();
  Ring& first = first_ring();
  Regroup::Calls mine;
  for (auto& [name, ring] : rings_) {
    if (ring.control->failed()) ring.executor->abort();
    if (ring.enqueues) {
      if (!ring.executor->drain(patience))
        throw TimeoutError("the calls of communicator '" + name_ + "' on " + name +
                           " have not ended within " + seconds_text(patience));
      ring.control->end_through(ring.executor->progress().done, coarse_now());
    }
    const auto open = ring.control->open_call(rank_);
    mine.begun += ring.control->last_seq();
    mine.completed += open ? open->seq - 1 : ring.control->last_seq();
  }
  return Regroup(*first.control, look_for_abort()).gather(excluded, mine, patience, propose);
}

bool Communicator::conclude(const Regroup::Round& round, bool joined, Milliseconds patience) {
  check_open();
  const auto turn = lock_and_look_out(turn_);
  check_open();
  return Regroup(*first_ring().control, look_for_abort()).conclude(round, joined, patience);
}

void Communicator::shut_out(const std::vector<int>& members, Milliseconds patience) {
  check_open();
  const auto turn = lock_and_look_out(turn_);
  check_open();
  for (auto& [name, ring] : rings_)
    if (Regroup(*ring.control).leaves_out_alive(members)) ring.transport->shut_out(patience);
}

std::shared_ptr<PageStore> Communicator::meeting_of(const Regroup::Round& round) {
  check_open();
  return std::make_shared<PageStore>(first_ring().control, round);
}

// ---- Connecting --------------------------------------------------------------------------------

namespace {

// Long enough for ranks that end together; a rank that ends long before its neighbours does not
// wait for them.
constexpr Milliseconds kDisconnectTimeout{2000};
// The interval at which a waiting rank checks whether another rank is gone.
constexpr Milliseconds kLookEvery{100};

// Suffixes of a ring's key, for counters: ranks without access to the device memory of all others;
// ranks from which a line of LL128 may arrive in parts; ranks without memory for tensors in place.
constexpr const char* kApart = "/apart";
constexpr const char* kTorn = "/torn";
constexpr const char* kStages = "/stages";

// A rank sends its control page with its transport's offer: the last descriptor is the page's.
Offer with_page(Offer offer, int page) {
  offer.fds.push_back(page);
  return offer;
}
int take_page(Offer& offer) {
  if (offer.fds.empty()) return -1;
  const int page = offer.fds.back();
  offer.fds.pop_back();
  return page;
}

// Rank 0's decision for all ranks: the table of ways, and the ring orders.
struct Rank0Settings {
  WayTable ways;
  RingOrders orders;
};

Rank0Settings settings_in(const std::string& bytes, int rank, int ranks, const RankNames& names) {
  const auto word = from_bytes<Rank0Settings>(bytes);
  if (!word || !word->ways.valid() || !word->orders.valid(ranks))
    throw RendezvousError(names.text(0) + " sent a table of algorithms or ring orders that " +
                          names.text(rank) +
                          " cannot read: install the same ringkern for all ranks");
  return *word;
}

std::string settings_of(const Device& device, const std::vector<std::string>& buses) {
  return to_bytes(Rank0Settings{device.ways, device.orders ? device.orders(buses) : RingOrders{}});
}

Fitting fitting_of(Device& device, const RankNames& names) {
  Fitting fitting{device.room};
  if (device.fit)
    fitting.terms = [&](const std::vector<DeviceRoom>& rooms) {
      device.fit(device, rooms, names);
      return device.terms;
    };
  return fitting;
}

// Chooses the memory of each pair of ranks if the transport has two kinds, and sets the segments of
// the neighbours.
void settle(const Place& place, Transport& transport, Control& control, const Look& look,
            Segments& segments) {
  if (const auto mapped = transport.mapped())
    transport.settle(mapped_by_both(control, *mapped, look), segments);
  segments.next = segments.all[size_t(place.next)];
  segments.prev = segments.all[size_t(place.prev)];
}

// Counts this rank in the store under each suffix above that applies. Called after the others'
// memory has been mapped.
void note_lacks(const Device& device, const Segments& segments, const Transport& transport,
                Store& store, const std::string& key) {
  if (segments.on_host != 0 || std::ranges::count(segments.all, nullptr) > 0)
    store.add(key + kApart, 1);
  if (!transport.carries_lines()) store.add(key + kTorn, 1);
  if (!device.terms.room.bus.empty() && !device.in_place) store.add(key + kStages, 1);
}

// Adapts rank 0's table to these counters: replaces protocols that a link cannot carry, and uses
// the tensors in place if all ranks can. With more than kMostOnHost ranks, two of which share no
// device memory, the algorithms stay: such a ring has no mesh.
void fit_ways(WayTable& ways, const Device& device, int ranks, Store& store,
              const std::string& key) {
  if (device.terms.room.bus.empty()) return;
  const auto some = [&](const char* what) { return store.add(key + what, 0) > 0; };
  const bool torn = some(kTorn);
  const bool apart = some(kApart);
  if (!torn && !apart && !some(kStages)) ways.take_tensors();
  if (torn) ways.leave_out_lines();
  if (apart && ranks <= kMostOnHost) ways.go_over_host(ranks);
}

// A store that calls `look` before each operation; an exception of `look` ends the rendezvous.
// After an exception it no longer calls `look`: this rank then reports the reason over the same
// store.
class WatchedStore final : public Store {
 public:
  WatchedStore(Store& store, std::function<void()> look) : store_(store), look_(std::move(look)) {}

  void set(const std::string& key, const std::string& value) override {
    look();
    store_.set(key, value);
  }
  std::string get(const std::string& key, Milliseconds timeout) override {
    look();
    return store_.get(key, timeout);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    look();
    return store_.add(key, amount);
  }

 private:
  void look() {
    if (const auto once = std::exchange(look_, nullptr)) {
      once();
      look_ = once;
    }
  }

  Store& store_;
  std::function<void()> look_;
};

}  // namespace

bool Communicator::connected(const Device& device) {
  std::lock_guard lock(state_);
  return rings_.contains(device.name);
}

std::shared_ptr<EnqueuedCalls> Communicator::enqueued_on(const Device& device) {
  std::lock_guard lock(state_);
  const auto found = rings_.find(device.name);
  return found == rings_.end() ? nullptr : found->second.enqueued;
}

uint64_t Communicator::last_seq_on(const Device& device) {
  std::lock_guard lock(state_);
  const auto found = rings_.find(device.name);
  return found == rings_.end() ? 0 : found->second.control->last_seq();
}

void Communicator::check_enqueued() {
  std::vector<std::pair<std::shared_ptr<EnqueuedCalls>, uint64_t>> all;
  {
    std::lock_guard lock(state_);
    for (const auto& [name, ring] : rings_)
      if (ring.enqueued) all.emplace_back(ring.enqueued, ring.control->last_seq());
  }
  for (const auto& [enqueued, seq] : all)
    if (const auto error = enqueued->error_of(seq)) std::rethrow_exception(error);
}

WayTable Communicator::ways_on(const Device& device) {
  std::lock_guard lock(state_);
  const auto found = rings_.find(device.name);
  return found == rings_.end() ? device.ways : found->second.ways;
}

SharedMemory Communicator::memory_on(const Device& device) {
  std::lock_guard lock(state_);
  const auto found = rings_.find(device.name);
  if (found == rings_.end() || found->second.transport == nullptr) return {};
  return found->second.transport->memory();
}

Geometry Communicator::geometry_on(const Device& device) {
  std::lock_guard lock(state_);
  const auto found = rings_.find(device.name);
  return found == rings_.end() ? device.terms.geometry : found->second.geometry;
}

Communicator::Ring& Communicator::ring_on(const Device& device) {
  {
    std::lock_guard lock(state_);
    if (auto found = rings_.find(device.name); found != rings_.end()) return found->second;
  }
  Ring* ring;
  {
    Device fitted = device;
    Ring fresh = connect(fitted);
    fresh.geometry = fitted.terms.geometry;
    std::lock_guard lock(state_);
    if (poisoned_) end_waits(fresh, *poisoned_);  // the others do not know yet
    ring = &rings_.emplace(device.name, std::move(fresh)).first->second;
  }
  ring->watch->meet(ring->neighbours);
  return *ring;
}

Communicator::Ring Communicator::connect(Device& device) {
  Ring ring;
  ring.ways = device.ways;
  Segments segments;
  segments.names = names_;
  std::string key;
  const Place place{rank_, ranks_, (rank_ + 1) % ranks_, (rank_ + ranks_ - 1) % ranks_, names_};
  const auto offer = [&] {
    ring.control = std::make_shared<Control>(rank_, ranks_, name_, names_);
    ring.transport = device.make_transport();
    ring.transport->call_ranks(names_);
    segments.mine = ring.transport->mine();
    return with_page(ring.transport->offer(), ring.control->fd());
  };
  // Everything that may fail is in `offer`, `map` or `probe`: join_ring() reports their exceptions
  // to all ranks.
  const auto equip = [&] {
    ring.executor = device.make_executor(segments);
    ring.enqueues = ring.executor->enqueues();
    Executor* const executor = ring.executor.get();
    if (ring.enqueues) ring.enqueued = std::make_shared<EnqueuedCalls>(*executor);
    Watched watched{name_, device.name, timeout_, ring.control.get(), nullptr, nullptr, key};
    watched.failed = [this, executor, enqueued = ring.enqueued,
                      after = device.after_fault](const Fault& why) {
      poison(why);
      if (enqueued) enqueued->fail(why);
      executor->abort();
      if (after) after(why, why.event == Event::abort && why.reporter == names_.number(rank_));
    };
    watched.if_alone = device.after_fault != nullptr;
    if (ring.enqueues) watched.progress = [executor] { return executor->progress(); };
    ring.watch = std::make_unique<Watch>(std::move(watched));
  };
  const auto map = [&](const std::vector<Offer>& offers, const std::string& word) {
    const Rank0Settings of_rank_0 = settings_in(word, rank_, ranks_, names_);
    ring.ways = of_rank_0.ways;
    segments.orders = of_rank_0.orders;
    segments.all.resize(offers.size(), segments.mine);
    segments.calls.resize(offers.size(), nullptr);
    ring.transport->set_orders(segments.orders);
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      Offer theirs = offers[size_t(peer)];
      ring.control->map(peer, take_page(theirs));
      segments.calls[size_t(peer)] = ring.control->calls_of(peer);
      segments.all[size_t(peer)] = ring.transport->map(theirs, peer);
    }
  };
  Roster roster;
  {
    std::lock_guard lock(state_);
    roster = std::exchange(roster_, {});
  }
  if (ranks_ == 1) {
    ring.control = std::make_shared<Control>(rank_, ranks_, name_, names_);
    equip();
    return ring;
  }
  auto next_look = Clock::now() + kLookEvery;
  WatchedStore store(*store_, [&] {
    look_out();
    check_healthy();
    if (Clock::now() < next_look) return;
    next_look = Clock::now() + kLookEvery;
    if (const auto gone = roster.find_gone(*store_)) throw Lost(text_of(*gone), facts_of(*gone));
  });
  key = unique_prefix(store, name_ + "/" + device.terms.device, place);
  const auto word = [&](const auto& buses) { return settings_of(device, buses); };
  const auto probe = [&](const Id& session, const Look& look) {
    settle(place, *ring.transport, *ring.control, look, segments);
    note_lacks(device, segments, *ring.transport, *store_, key);
    equip();
    probe_links({segments, device.probe, *ring.transport, *ring.control, timeout_}, session, look);
  };
  ring.neighbours = join_ring(store, key, place, device.terms, roster.left_of(timeout_), word,
                              offer, map, probe, fitting_of(device, names_));
  fit_ways(ring.ways, device, ranks_, *store_, key);
  return ring;
}

// ---- Closing -----------------------------------------------------------------------------------

void Communicator::close(Milliseconds patience) {
  if (forked()) {
    // The worker's thread and the neighbours belong to the parent: touch neither.
    (void)worker_.release();
    for (auto& [name, ring] : rings_) {
      (void)ring.watch.release();
      (void)ring.executor.release();
      (void)ring.transport.release();
    }
    return;
  }
  if (in_callback()) throw_close_in_callback(name_);
  {
    std::lock_guard lock(state_);
    if (closed_) return;
    closed_ = true;
    usable_ = false;
  }
  std::unique_lock turn(turn_, std::defer_lock);  // a call of another thread
  if (patience == Milliseconds::max()) {
    turn.lock();
    worker_->drain();
  } else if (!turn.try_lock_for(patience) || !worker_->drain(patience)) {
    abort(names_.text(rank_) + " closed the communicator before its calls had finished");
    if (!turn.owns_lock()) turn.lock();
  }
  worker_->stop();
  std::map<std::string, Ring> rings;
  {
    std::lock_guard lock(state_);
    rings.swap(rings_);
  }
  roster_.depart(*store_, rank_);  // without effect after connect(), which takes the roster
  store_.reset();
  for (auto& [name, ring] : rings) dissolve(ring, patience);
}

// Waits for the enqueued calls: while one runs, the others' kernels may still write to this rank's
// memory, for example to return credits.
void Communicator::dissolve(Ring& ring, Milliseconds patience) const {
  ring.control->depart();
  if (!ring.executor->drain(patience)) {
    ring.executor->abort();
    ring.executor->drain(Milliseconds::max());
  }
  ring.watch.reset();
  if (ring.enqueued) ring.enqueued->close();
  ring.executor.reset();
  if (ring.transport == nullptr || !ring.transport->unmap()) return;
  if (!disconnect(ring.neighbours, ranks_, kDisconnectTimeout)) ring.transport->abandon();
}

}  // namespace ringkern
