#include "comm/communicator.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

#include "comm/parting.h"

namespace ringkern {
namespace {

// getpid() is a system call; a counter that only a forked child moves is not.
std::atomic<int> forks{0};

int watch_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

// Long enough for ranks that end together; a rank that ends long before its neighbours does not
// wait for them.
constexpr Milliseconds kPartingTimeout{2000};

// The communicator whose callback runs on this thread, which is then that communicator's own: what
// waits for the thread there would wait for itself.
thread_local const Communicator* calling_back = nullptr;

// A store that ends the rendezvous when `look` throws. Once: afterwards the other ranks are told
// why, over the same store.
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

Communicator::Communicator(std::shared_ptr<Store> store, std::string name, int rank, int ranks,
                           Milliseconds timeout)
    : store_(std::move(store)), name_(std::move(name)), rank_(rank), ranks_(ranks),
      timeout_(timeout), born_in_(int(getpid())), generation_(watch_forks()),
      worker_(std::make_unique<Worker>()) {
  if (ranks < 1 || ranks > kMaxRanks)
    throw UsageError("a communicator has 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                     std::to_string(ranks));
  if (rank < 0 || rank >= ranks)
    throw UsageError("rank " + std::to_string(rank) + " is not among the " +
                     std::to_string(ranks) + " ranks of the communicator");
  if (timeout.count() <= 0) throw UsageError("the timeout must be positive");
}

Communicator::~Communicator() { close(); }

bool Communicator::in_callback() const { return calling_back == this; }

bool Communicator::forked() const {
  return forks.load(std::memory_order_relaxed) != generation_;
}

void Communicator::check_callable() {
  if (forked())
    throw UsageError(forked_text("communicator '" + name_ + "'", born_in_, int(getpid())));
  {
    std::lock_guard lock(state_);
    if (closed_)
      throw UsageError("communicator '" + name_ +
                       "' is closed. Make a new one, or close it later.");
  }
  check_healthy();
}

bool Communicator::failed() {
  std::lock_guard lock(state_);
  return !poisoned_.empty();
}

void Communicator::check_healthy() {
  std::lock_guard lock(state_);
  if (!poisoned_.empty())
    throw AbortedError("communicator '" + name_ + "' became unusable " + ago(poisoned_at_) + ": " +
                       poisoned_);
}

void Communicator::run(const Device& device, const Task& task,
                       const std::function<void()>& before) {
  check_callable();
  if (calling_back == this)
    throw UsageError("a synchronous call in the callback of an asynchronous one would wait for "
                     "itself. Use async_op=True there, or call after wait().");
  std::lock_guard turn(turn_);
  check_callable();  // it may have been closed while this call waited for its turn
  worker_->drain();  // asynchronous calls came first
  execute(device, task, before);
}

bool Communicator::run_now(const Device& device, const Task& task) {
  if (!usable_.load(std::memory_order_acquire) || forked()) return false;
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn || worker_->busy() || last_device_ != &device || !usable_) return false;
  attempt([&] { last_executor_->run(task); });
  return true;
}

void Communicator::run_async(const Device& device, const Task& task,
                             std::function<void(std::exception_ptr)> done,
                             std::function<void()> before) {
  check_callable();
  std::unique_lock turn(turn_, std::defer_lock);
  // In a callback, whoever has the turn waits for the callback to end: nothing runs beside it.
  if (calling_back != this) {
    turn.lock();
    check_callable();
  }
  // `run` and `tell` are one after the other.
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
        done = nullptr;  // what it holds may be the last to hold this communicator
        calling_back = nullptr;
      });
}

template <class F>
void Communicator::attempt(const F& run) {
  try {
    run();
  } catch (const AbortedError& e) {
    const std::string text = e.what(), reason = poison(text);
    if (text.find(reason) != std::string::npos) throw;
    throw AbortedError(text + " The reason: " + reason);  // abort() on this rank; a ring knows none
  } catch (const std::exception& e) {
    poison(e.what());
    throw;
  }
}

void Communicator::execute(const Device& device, const Task& task,
                           const std::function<void()>& before) {
  check_healthy();  // what came before may have failed
  attempt([&] {
    Ring& ring = ring_on(device);
    check_healthy();  // abort() may have come before the ring was there
    last_device_ = &device;
    last_executor_ = ring.executor.get();
    if (before) before();
    ring.executor->run(task);
  });
}

bool Communicator::connected(const Device& device) {
  std::lock_guard lock(state_);
  return rings_.contains(device.name);
}

Communicator::Ring& Communicator::ring_on(const Device& device) {
  {
    std::lock_guard lock(state_);
    if (auto found = rings_.find(device.name); found != rings_.end()) return found->second;
  }
  Ring ring = connect(device);
  std::lock_guard lock(state_);
  if (!poisoned_.empty()) ring.executor->abort();  // the neighbours do not know yet
  return rings_.emplace(device.name, std::move(ring)).first->second;
}

Communicator::Ring Communicator::connect(const Device& device) {
  Ring ring;
  Segments segments;
  const Place place{rank_, ranks_, (rank_ + 1) % ranks_, (rank_ + ranks_ - 1) % ranks_};
  const auto offer = [&] {
    ring.transport = device.make_transport();
    segments.mine = ring.transport->mine();
    return ring.transport->offer();
  };
  const auto map = [&](const std::vector<Offer>& offers) {
    segments.all.resize(offers.size(), segments.mine);
    for (int peer = 0; peer < ranks_; ++peer)
      if (peer != rank_)
        segments.all[size_t(peer)] = ring.transport->map(offers[size_t(peer)], peer);
    segments.next = segments.all[size_t(place.next)];
    segments.prev = segments.all[size_t(place.prev)];
    // Here, because it may fail, and a failure up to here is every rank's.
    ring.executor = device.make_executor(segments);
  };
  if (ranks_ == 1) {
    ring.executor = device.make_executor(segments);
    return ring;
  }
  WatchedStore store(*store_, [this] { check_healthy(); });
  const std::string prefix = unique_prefix(store, name_ + "/" + device.terms.device, place);
  ring.neighbours = join_ring(store, prefix, place, device.terms, timeout_, offer, map);
  return ring;
}

std::string Communicator::poison(const std::string& reason) {
  std::lock_guard lock(state_);
  if (poisoned_.empty()) {  // the first reason is the cause of the others
    poisoned_ = reason;
    poisoned_at_ = Clock::now();
    usable_ = false;
  }
  return poisoned_;
}

void Communicator::abort(const std::string& reason) {
  if (forked()) return;
  poison("aborted: " + reason);
  std::lock_guard lock(state_);
  for (auto& [name, ring] : rings_) ring.executor->abort();
}

void Communicator::close(Milliseconds patience) {
  if (forked()) {
    // The worker's thread and the neighbours belong to the parent: touch neither.
    (void)worker_.release();
    for (auto& [name, ring] : rings_) {
      (void)ring.executor.release();
      (void)ring.transport.release();
    }
    return;
  }
  if (calling_back == this)
    throw UsageError("close() in the callback of an asynchronous call would wait for itself. Close "
                     "communicator '" + name_ + "' elsewhere.");
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
    abort("rank " + std::to_string(rank_) + " closed it before its calls had finished");
    if (!turn.owns_lock()) turn.lock();
  }
  worker_->stop();
  std::map<std::string, Ring> rings;
  {
    std::lock_guard lock(state_);
    rings.swap(rings_);
  }
  for (auto& [name, ring] : rings) dissolve(ring, patience);
}

// What was enqueued on a device may still run; then the others' kernels may still write to this
// rank's memory, as when they return credits.
void Communicator::dissolve(Ring& ring, Milliseconds patience) const {
  if (!ring.executor->drain(patience)) {
    ring.executor->abort();
    ring.executor->drain(Milliseconds::max());
  }
  ring.executor.reset();
  if (ring.transport == nullptr || !ring.transport->unmap()) return;
  if (!part_from(ring.neighbours, ranks_, kPartingTimeout)) ring.transport->abandon();
}

}  // namespace ringkern
