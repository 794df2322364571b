#include "p2p/engine.h"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "p2p/connector.h"
#include "p2p/match_queue.h"

namespace ringkern::cpu {

class P2pEngine::Body {
 public:
  Body(std::shared_ptr<Store> store, const std::string& name, int rank, int ranks,
       Milliseconds timeout, RankNames names);

  void post(std::vector<Message> messages);
  void abort(const std::string& reason) { poison(aborted_by(names_.number(rank_), reason)); }
  void close(Milliseconds patience);
  bool in_callback() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  // Input of the engine's thread from other threads.
  struct Updates {
    std::vector<Message> posted;
    std::vector<int> met;
    std::vector<std::pair<int, std::exception_ptr>> lost;
  };

  PeerCalls peer_calls();
  void check(const Message& message) const;
  void tell_thread();  // with the lock held
  void poison(const Fault& why);
  bool take_updates();
  void finish(Message&& message, std::exception_ptr error, int source);
  void work();
  Verdict work_until_something_fails();

  const std::string name_;
  const int rank_, ranks_;
  const Milliseconds timeout_;
  const RankNames names_;

  std::mutex closing_;  // one close() at a time
  std::mutex mutex_;    // guards what follows
  std::condition_variable finished_;
  Updates updates_;
  size_t unfinished_ = 0;
  std::optional<Fault> poisoned_;  // why this engine is unusable
  Clock::time_point poisoned_at_;
  bool closed_ = false;
  bool running_ = false;  // the receive buffer exists

  std::atomic<bool> fresh_{false};     // there are updates
  std::atomic<bool> stopping_{false};  // nothing is left to do
  std::unique_ptr<ReceiveBuffer> buffer_;
  std::unique_ptr<MatchQueue> queue_;
  std::unique_ptr<Connector> connector_;
  std::thread thread_;
};

P2pEngine::Body::Body(std::shared_ptr<Store> store, const std::string& name, int rank, int ranks,
                      Milliseconds timeout, RankNames names)
    : name_(name), rank_(rank), ranks_(ranks), timeout_(timeout), names_(std::move(names)) {
  if (ranks < 1 || ranks > kMaxRanks)
    throw UsageError("messages are exchanged by 1 to " + std::to_string(kMaxRanks) +
                     " ranks, not " + std::to_string(ranks));
  if (rank < 0 || rank >= ranks)
    throw UsageError(rank_text(rank) + " is not among the " + std::to_string(ranks) +
                     " ranks: give 0 to " + std::to_string(ranks - 1));
  if (timeout.count() <= 0)
    throw UsageError("the timeout must be positive, not " + std::to_string(timeout.count()) +
                     " ms");
  if (ranks == 1) return;  // nobody to meet
  buffer_ = std::make_unique<ReceiveBuffer>(rank, ranks, message_geometry(), names_);
  queue_ = std::make_unique<MatchQueue>(
      *buffer_, rank, ranks, timeout,
      MatchQueue::Calls{[this](int peer) { connector_->connect_to_peer(peer); },
                        [this](Message&& message, std::exception_ptr error, int source) {
                          finish(std::move(message), error, source);
                        }});
  running_ = true;
  Terms terms;
  terms.geometry = buffer_->geometry();
  terms.segment_bytes = buffer_->bytes();
  connector_ = std::make_unique<Connector>(std::move(store), name + "/messages", rank, ranks, terms,
                                           peer_calls(), names_);
  thread_ = std::thread([this] { work(); });
}

PeerCalls P2pEngine::Body::peer_calls() {
  PeerCalls calls;
  calls.make_offer = [this](int peer) {
    buffer_->open(peer);
    return Offer{"", {buffer_->fd()}};
  };
  calls.map = [this](int peer, const Offer& offer) {
    buffer_->map(peer, offer.fd());
    std::lock_guard lock(mutex_);
    updates_.met.push_back(peer);
    tell_thread();
  };
  calls.lost = [this](int peer, std::exception_ptr why) {
    std::lock_guard lock(mutex_);
    updates_.lost.emplace_back(peer, why);
    tell_thread();
  };
  calls.told = [this](int, const Fault& why) { poison(why); };
  return calls;
}

// ---- calls of other threads ---------------------------------------------------------------------

void P2pEngine::Body::check(const Message& m) const {
  const std::string what =
      names_.text(rank_) + (m.sends ? " cannot send to " : " cannot receive from ");
  if (m.peer == rank_) throw UsageError(what + "itself");
  const bool anyone = !m.sends && m.peer == kAnySource && ranks_ > 1;
  if (!anyone && (m.peer < 0 || m.peer >= ranks_))
    throw UsageError(what + names_.text(m.peer) + ": there are " + std::to_string(ranks_) +
                     " ranks");
  if (m.bytes < 0) throw UsageError("a message cannot have " + std::to_string(m.bytes) + " bytes");
  if (m.bytes > 0 && m.data == nullptr)
    throw UsageError("a message of " + std::to_string(m.bytes) + " bytes needs data");
  if (int(m.protocol) >= kProtocols)
    throw UsageError("unknown protocol number " + std::to_string(int(m.protocol)) + ": give 0 to " +
                     std::to_string(kProtocols - 1));
  if (m.timeout.count() < 0)
    throw UsageError("the timeout of a message must not be negative, and is " +
                     std::to_string(m.timeout.count()) + " ms");
}

void P2pEngine::Body::post(std::vector<Message> messages) {
  for (const Message& m : messages) check(m);
  std::lock_guard lock(mutex_);
  if (closed_)
    throw UsageError("the messages of group '" + name_ +
                     "' are closed: make a new group, or destroy this one later");
  if (poisoned_)
    throw_unusable("the messages of group '" + name_ + "' became unusable " + ago(poisoned_at_) +
                       ": ",
                   *poisoned_);
  if (messages.empty()) return;
  unfinished_ += messages.size();
  for (Message& m : messages) updates_.posted.push_back(std::move(m));
  tell_thread();
}

void P2pEngine::Body::tell_thread() {
  fresh_.store(true, std::memory_order_release);
  publish_barrier();
  if (running_) notify_if_asleep(buffer_->bell());
}

void P2pEngine::Body::poison(const Fault& why) {
  std::lock_guard lock(mutex_);
  if (poisoned_) return;  // the first reason caused the others
  poisoned_ = why;
  poisoned_at_ = Clock::now();
  if (running_) abort_waits(buffer_->bell());
}

void P2pEngine::Body::close(Milliseconds patience) {
  if (in_callback())
    throw UsageError("the messages of group '" + name_ +
                     "' cannot be closed in a callback of "
                     "one of them, which would wait for itself");
  std::lock_guard once(closing_);
  std::unique_lock lock(mutex_);
  closed_ = true;
  const auto idle = [this] { return unfinished_ == 0; };
  if (patience != Milliseconds::max() && !finished_.wait_for(lock, patience, idle)) {
    lock.unlock();
    poison(fault_of(Event::messages_closed, names_.number(rank_)));
    lock.lock();
  }
  finished_.wait(lock, idle);
  if (!running_) return;
  stopping_ = true;
  tell_thread();
  lock.unlock();
  thread_.join();
  connector_.reset();
  lock.lock();
  running_ = false;
  queue_.reset();
  buffer_.reset();
}

// ---- the engine's thread ------------------------------------------------------------------------

bool P2pEngine::Body::take_updates() {
  if (!fresh_.exchange(false, std::memory_order_acquire)) return false;
  Updates updates;
  {
    std::lock_guard lock(mutex_);
    std::swap(updates, updates_);
  }
  for (const int peer : updates.met) queue_->met(peer);
  for (const auto& [peer, why] : updates.lost) queue_->lost(peer, why);
  for (Message& message : updates.posted) queue_->add(std::move(message));
  return true;
}

void P2pEngine::Body::finish(Message&& message, std::exception_ptr error, int source) {
  // Poisons first: the callback must find the engine unusable.
  if (error) poison(*queue_->failure());
  if (message.done) message.done(error, source);
  message.done = nullptr;  // releases what it holds before anyone learns that it is done
  std::lock_guard lock(mutex_);
  if (--unfinished_ == 0) finished_.notify_all();
}

void P2pEngine::Body::work() {
  if (work_until_something_fails() == Verdict::ok) return;
  // Ensures that there is a reason: without one, the engine would count as usable.
  poison(queue_->failed() ? *queue_->failure() : fault_of(Event::unsaid, -1));
  Fault first;
  {
    std::lock_guard lock(mutex_);
    first = *poisoned_;
  }
  connector_->tell_all(first);
  take_updates();  // nothing is posted any more
  queue_->abort(first);
}

Verdict P2pEngine::Body::work_until_something_fails() {
  Bell& bell = buffer_->bell();
  int processors = 0;
  for (const uint64_t word : my_processors()) processors += std::popcount(word);
  const int pauses = pauses_for(ranks_, processors);
  WaitHistory history;
  while (!stopping_) {
    const auto until = std::min(queue_->deadline(), Clock::now() + std::chrono::hours(1));
    Wait wait(bell, pauses, until - Clock::now(), history);
    wait.until([&] {
      const bool updates = take_updates();
      // Looks before the step: a rank that gave up has also left, and its reason is the one that
      // counts.
      return aborted(bell) || queue_->step() || updates;
    });
    if (aborted(bell)) return Verdict::aborted;
    if (Clock::now() >= queue_->deadline()) queue_->expire(Clock::now());
    if (queue_->failed()) return Verdict::aborted;
  }
  return aborted(bell) ? Verdict::aborted : Verdict::ok;
}

// ---- the rest of an engine in a forked child ---------------------------------------------------

P2pEngine::P2pEngine(std::shared_ptr<Store> store, std::string name, int rank, int ranks,
                     Milliseconds timeout, RankNames names)
    : born_in_(int(::getpid())), name_(std::move(name)),
      body_(std::make_unique<Body>(std::move(store), name_, rank, ranks, timeout,
                                   std::move(names))) {}

P2pEngine::~P2pEngine() { close(); }

bool P2pEngine::forked() const { return int(::getpid()) != born_in_; }

void P2pEngine::post(std::vector<Message> messages) {
  if (forked()) throw UsageError(forked_text("group '" + name_ + "'", born_in_, int(::getpid())));
  body_->post(std::move(messages));
}

void P2pEngine::abort(const std::string& reason) {
  if (!forked()) body_->abort(reason);
}

void P2pEngine::close(Milliseconds patience) {
  // Threads, callbacks and locks belong to the parent.
  if (forked()) (void)body_.release();
  else body_->close(patience);
}

bool P2pEngine::in_callback() const { return !forked() && body_->in_callback(); }

}  // namespace ringkern::cpu
