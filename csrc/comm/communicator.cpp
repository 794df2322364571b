#include "comm/communicator.h"

#include <pthread.h>
#include <unistd.h>

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

std::string ago(Clock::time_point then) {
  const auto s = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - then).count();
  return s < 1 ? "just now" : std::to_string(s) + " s ago";
}

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

bool Communicator::forked() const {
  return forks.load(std::memory_order_relaxed) != generation_;
}

void Communicator::check_callable() {
  if (forked())
    throw UsageError("communicator '" + name_ + "' was made in process " +
                     std::to_string(born_in_) + " and is used in process " +
                     std::to_string(getpid()) +
                     ", which was forked from it. Start ranks with spawn, or initialise "
                     "torch.distributed in the child.");
  {
    std::lock_guard lock(state_);
    if (closed_)
      throw UsageError("communicator '" + name_ + "' is closed. Make a new one, or close it later.");
  }
  check_healthy();
}

void Communicator::check_healthy() {
  std::lock_guard lock(state_);
  if (!poisoned_.empty())
    throw AbortedError("communicator '" + name_ + "' became unusable " + ago(poisoned_at_) + ": " +
                       poisoned_);
}

void Communicator::run(const Device& device, const Task& task) {
  check_callable();
  std::lock_guard turn(turn_);
  worker_->drain();  // asynchronous calls came first
  execute(device, task);
}

void Communicator::run_async(const Device& device, const Task& task,
                             std::function<void(std::exception_ptr)> done) {
  check_callable();
  std::lock_guard turn(turn_);
  worker_->post([this, &device, task, done = std::move(done)] {
    std::exception_ptr error;
    try {
      execute(device, task);
    } catch (...) {
      error = std::current_exception();
    }
    done(error);
  });
}

void Communicator::execute(const Device& device, const Task& task) {
  check_healthy();  // what came before may have failed
  try {
    ring_on(device).executor->run(task);
  } catch (const std::exception& e) {
    poison(e.what());
    throw;
  }
}

Communicator::Ring& Communicator::ring_on(const Device& device) {
  {
    std::lock_guard lock(state_);
    if (auto found = rings_.find(device.name); found != rings_.end()) return found->second;
  }
  Ring ring = connect(device);
  std::lock_guard lock(state_);
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
  const auto map = [&](const Offer& next, const Offer& prev) {
    segments.next = ring.transport->map(next, place.next);
    segments.prev = ring.transport->map(prev, place.prev);
    // Here, because it may fail, and a failure up to here is every rank's.
    ring.executor = device.make_executor(segments);
  };
  if (ranks_ == 1) {
    ring.executor = device.make_executor(segments);
    return ring;
  }
  const std::string prefix = unique_prefix(*store_, name_ + "/" + device.terms.device, ranks_);
  ring.neighbours = join_ring(*store_, prefix, place, device.terms, timeout_, offer, map);
  return ring;
}

void Communicator::poison(const std::string& reason) {
  std::lock_guard lock(state_);
  if (!poisoned_.empty()) return;  // the first reason is the cause of the others
  poisoned_ = reason;
  poisoned_at_ = Clock::now();
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
  {
    std::lock_guard lock(state_);
    if (closed_) return;
    closed_ = true;
  }
  if (patience == Milliseconds::max()) {
    worker_->drain();
  } else if (!worker_->drain(patience)) {
    abort("rank " + std::to_string(rank_) + " closed it before its calls had finished");
  }
  worker_->stop();
  std::lock_guard turn(turn_);  // a call of another thread
  std::map<std::string, Ring> rings;
  {
    std::lock_guard lock(state_);
    rings.swap(rings_);
  }
}

}  // namespace ringkern
