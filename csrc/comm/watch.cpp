#include "comm/watch.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "comm/diagnosis.h"
#include "comm/event_queue.h"
#include "comm/process.h"
#include "fault/render.h"

namespace ringkern {
namespace {

constexpr Milliseconds kTick{200};
// The times after which a slow call is reported; the last one repeats.
constexpr Milliseconds kPatience[] = {Milliseconds(5000), Milliseconds(30000)};
constexpr Milliseconds kAgain{60000};
constexpr size_t kMostFailed = 8;

// Returns a pidfd of the process behind a socket, even if others hold copies of the socket. Empty
// if the system has no pidfd, or hides the process.
Fd process_behind(const Fd& socket) try {
  const auto pid = peer_pid(socket);
  return Fd(pid > 0 ? int(::syscall(SYS_pidfd_open, pid, 0)) : -1);
} catch (const std::system_error&) {
  return {};  // the socket suffices; all ranks have agreed, so one must not fail now
}

// A neighbour whose end has not been noticed yet.
struct Line {
  int peer;
  const Fd* socket;
  Fd process;
};

// The thread's state for a ring.
struct Entry {
  Watched ring;
  std::vector<Line> lines;
  bool told = false;                           // the ring knows that it has failed
  std::optional<Clock::time_point> gave_up{};  // when the watch saw that its device gave up
  uint64_t slow_seq = 0;                       // the call that takes long
  int64_t slow_since = 0;                      // when the watch first saw it, in ns of coarse_now()
  size_t warnings = 0;                         // about this call
};

RingRecord record_of(const Watched& ring) {
  RingRecord r{ring.name,
               ring.device,
               ring.control->rank,
               ring.control->ranks,
               ring.timeout.count(),
               ring.control->failure(),
               ring.control->last_calls(ring.control->rank),
               ring.key};
  // Keeps the calls that all ranks still show: a rank that is a call behind shows an older one,
  // too, which a comparison of records would miss on the others.
  uint64_t from = 0;
  for (int rank = 0; rank < r.ranks; ++rank)
    if (const auto calls = ring.control->last_calls(rank); !calls.empty())
      from = std::max(from, calls.front().seq);
  std::erase_if(r.calls, [&](const CallRecord& call) { return call.seq < from; });
  return r;
}

class Watchman {
 public:
  // Returns the process's watchman. A forked child, which lacks its parent's thread, has its own.
  static Watchman& here() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { current() = nullptr; });
    (void)registered;
    Watchman* man = current();
    if (man != nullptr) return *man;
    auto* const fresh = new Watchman;  // never destroyed: its thread may outlive statics
    if (current().compare_exchange_strong(man, fresh)) return *fresh;
    delete fresh;
    return *man;
  }

  uint64_t add(Watched ring) {
    std::lock_guard lifecycle(lifecycle_);
    if (needs_watch(ring) && !thread_.joinable()) start();
    std::lock_guard lock(mutex_);
    const uint64_t number = ++last_number_;
    entries_.emplace(number, Entry{std::move(ring), {}});
    ++changes_;
    return number;
  }

  void meet(uint64_t number, const Neighbours& neighbours) {
    std::vector<Line> lines;
    for (const Neighbour* peer : {&neighbours.next, &neighbours.prev})
      if (peer->socket) lines.push_back({peer->rank, &peer->socket, process_behind(peer->socket)});
    {
      std::lock_guard lock(mutex_);
      entries_.at(number).lines = std::move(lines);
      ++changes_;
    }
    ring_bell(bell_);
  }

  void remove(uint64_t number) {
    std::lock_guard lifecycle(lifecycle_);
    {
      std::lock_guard lock(mutex_);
      const auto found = entries_.find(number);
      if (found->second.ring.control->failed()) {
        if (failed_.size() == kMostFailed) failed_.pop_front();
        failed_.push_back(record_of(found->second.ring));
      }
      entries_.erase(found);
      ++changes_;
      if (!thread_.joinable() || any_to_watch()) return;
      leave_ = true;
    }
    ring_bell(bell_);
    thread_.join();
    bell_ = Fd();
  }

  std::vector<RingRecord> records() {
    std::lock_guard lock(mutex_);
    std::vector<RingRecord> all(failed_.begin(), failed_.end());
    for (const auto& [number, entry] : entries_) all.push_back(record_of(entry.ring));
    return all;
  }

 private:
  static std::atomic<Watchman*>& current() {
    static std::atomic<Watchman*> current{nullptr};
    return current;
  }

  void start() {
    bell_ = make_bell();
    leave_ = false;
    thread_ = std::thread([this] { work(); });
  }
  bool any_to_watch() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const auto& e) { return needs_watch(e.second.ring); });
  }
  static bool needs_watch(const Watched& ring) {
    return ring.control->ranks > 1 || ring.progress != nullptr || ring.if_alone;
  }

  void work() {
    ::pthread_setname_np(::pthread_self(), "ringkern-watch");
    auto next_tick = Clock::now();
    for (;;) {
      std::vector<pollfd> watched{{bell_.get(), POLLIN, 0}};
      uint64_t changes;
      {
        std::lock_guard lock(mutex_);
        if (leave_) return;
        changes = changes_;
        for (const auto& [number, entry] : entries_)
          for (const Line& line : entry.lines) {
            watched.push_back({line.socket->get(), POLLRDHUP, 0});
            watched.push_back({line.process.get(), POLLIN, 0});  // ignored where it is none
          }
      }
      const auto left = std::chrono::ceil<Milliseconds>(next_tick - Clock::now());
      (void)::poll(watched.data(), watched.size(), int(std::max<long>(0, left.count())));
      if (watched[0].revents != 0) silence_bell(bell_);
      std::lock_guard lock(mutex_);
      if (changes == changes_) hear(watched);
      if (Clock::now() < next_tick) continue;
      for (auto& [number, entry] : entries_) tick(entry);
      next_tick = Clock::now() + kTick;
    }
  }

  // Handles the ends of neighbours. `watched` has the order in which work() filled it.
  void hear(const std::vector<pollfd>& watched) {
    size_t i = 1;
    for (auto& [number, entry] : entries_) {
      std::vector<Line> ended;
      std::erase_if(entry.lines, [&](Line& line) {
        const bool has_ended = (watched[i].revents | watched[i + 1].revents) != 0;
        i += 2;
        if (has_ended) ended.push_back(std::move(line));
        return has_ended;
      });
      for (const Line& line : ended) {
        Control& control = *entry.ring.control;
        // The cause of an end may show some ms late; this rank's wait goes on meanwhile.
        if (!control.departed_after(line.peer) && !control.failed())
          control.fail(peer_lost(control, line.peer,
                                 how_it_ended(line.process.get(), control.pid_of(line.peer))));
        look(entry);
      }
    }
  }

  void tick(Entry& entry) {
    entry.ring.control->beat();
    if (entry.told) return;
    if (entry.ring.progress) follow(entry);
    look(entry);
    if (!entry.told) warn_if_slow(entry);
  }

  // Records the calls that a device has completed, and the reason if it has stopped.
  void follow(Entry& entry) {
    Control& control = *entry.ring.control;
    const Executor::Progress progress = entry.ring.progress();
    control.end_through(progress.done, coarse_now());
    if (!progress.failed) return;
    if (!entry.gave_up) entry.gave_up = Clock::now();
    if (progress.failed->cause == Cause::aborted && Clock::now() - *entry.gave_up < kReasonComes)
      return;
    control.fail(timed_out(control, *progress.failed));
  }

  void look(Entry& entry) {
    Control& control = *entry.ring.control;
    if (entry.told) return;
    if (!control.failed()) {
      auto found = find_mismatch(control);
      if (!found) found = find_departed(control);
      if (!found) return;
      control.fail(*found);
    }
    entry.told = true;
    if (const auto failure = control.failure()) entry.ring.failed(*failure);
  }

  void warn_if_slow(Entry& entry) {
    const Control& control = *entry.ring.control;
    const auto call = control.open_call(control.rank);
    if (!call) return;
    // Do not measure from the call's own start, which is the time of the watch's last tick: if the
    // process was stopped and continues, that was before the stop.
    if (call->seq != entry.slow_seq)
      entry.slow_seq = call->seq, entry.warnings = 0, entry.slow_since = coarse_now();
    const auto waited = std::chrono::duration_cast<Milliseconds>(
        std::chrono::nanoseconds(coarse_now() - entry.slow_since));
    const size_t steps = std::size(kPatience);
    const Milliseconds patience =
        entry.warnings < steps ? kPatience[entry.warnings]
                               : kPatience[steps - 1] + kAgain * int(entry.warnings - steps + 1);
    if (waited < patience) return;
    const auto late = late_rank(control, call->seq);
    if (!late) return;  // all ranks are in the call
    ++entry.warnings;
    EventQueue::all().post(EventKind::warning,
                           text_of(late_in(control, *call, *late, waited, entry.ring.timeout)));
  }

  std::mutex lifecycle_;  // guards the thread; locked before mutex_
  std::thread thread_;
  Fd bell_;  // rung on a change

  std::mutex mutex_;  // guards what follows
  std::map<uint64_t, Entry> entries_;
  std::deque<RingRecord> failed_;  // the last ones that are no longer watched
  uint64_t last_number_ = 0, changes_ = 0;
  bool leave_ = false;  // the thread must end
};

}  // namespace

Watch::Watch(Watched ring) : number_(Watchman::here().add(std::move(ring))) {}
Watch::~Watch() { Watchman::here().remove(number_); }
void Watch::meet(const Neighbours& neighbours) { Watchman::here().meet(number_, neighbours); }

std::vector<RingRecord> recorded_calls() { return Watchman::here().records(); }

}  // namespace ringkern
