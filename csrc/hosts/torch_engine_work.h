// Messages by an engine as one work. An engine's own may know nothing of futures, and notice that
// it is done only where somebody waits for it (Gloo's), so here somebody does when it is asked for.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fault/render.h"
#include "hosts/hosts.h"
#include "hosts/store_channel.h"
#include "hosts/torch_engine.h"
#include "p2p/engine.h"

namespace ringkern::torch_ext {

struct EngineMessage {
  // Follows when `work` is done: a work that brings the rest, if any; and an error in which the
  // message ends nevertheless.
  struct Rest {
    WorkPtr work;
    std::exception_ptr error;
  };

  bool sends = true;
  int peer = 0;  // -1: several
  WorkPtr work;
  std::function<Rest(int source)> rest = nullptr;
};

// The reason for a failure may come so much later than the failure; a store answers within that.
inline constexpr Milliseconds kReasonComes{500};
// After that, what had been told before it.
inline constexpr Milliseconds kLateComes{200};

// How long a message may take, and where the ranks tell each other that one took longer: Gloo has
// closed the connections of its rank then, and elsewhere a later message would be taken for it.
struct WaitLimit {
  Milliseconds timeout{0};  // 0: the engine's
  std::shared_ptr<StoreChannel> late = nullptr;
};

class EngineWork final : public RingWork {
 public:
  // `group`: null: nobody tells it of failures. Those of a collective are those of its group, and
  // the other way round. Of a user's messages each fails alone, unless the group is aborted.
  EngineWork(Call call, std::vector<EngineMessage> messages, std::shared_ptr<const Hosts> hosts,
             WaitLimit limit = {}, std::unique_ptr<StoreChannel::Listening> group = nullptr,
             bool collective = false)
      : RingWork(std::move(call), 1), messages_(std::move(messages)), hosts_(std::move(hosts)),
        limit_(std::move(limit)), group_(std::move(group)), collective_(collective) {
    limit_.timeout = std::min(limit_.timeout, cpu::kLongestTimeout);  // longer ones overflow
  }

  // True: this failure of the group ends such a work.
  static bool ends(const Fault& why, bool collective) {
    return collective || why.cause == Cause::aborted;
  }

  // Waits for the messages; whoever comes second waits for the first.
  void settle() {
    std::exception_ptr error;
    bool first = false;
    std::call_once(once_, [&] {
      const auto note = [&](std::exception_ptr failure) {
        if (failure && !error) error = failure;
      };
      moved_ = Clock::now();
      // All that begins is on its way before the rest of one is waited for.
      for (EngineMessage& m : messages_) note(begin_rest(m));
      // Data may be long on their way: they are late when nothing has come to its end for so long.
      for (EngineMessage& m : messages_)
        if (m.work) note(end_of(m, moved_));
      let_go();
      settled_ = true;
      group_.reset();  // somebody may keep this work
      first = true;
    });
    if (first) end_part(error);  // not inside: callbacks run there, and may wait for this work
  }
  bool settled() const { return settled_; }
  // Somebody else settles it, from now on.
  void settle_aside() {
    if (aside_.exchange(true)) return;
    std::thread([self = c10::intrusive_ptr<EngineWork>::reclaim_copy(this)] {
      self->settle();
    }).detach();
  }
  void abort() override { abort(false); }
  // `goes_on`: other messages may follow these. Gloo stops reading a connection at data whose
  // receive has been destroyed, and writing at a send that has: both stay until a last abort.
  void abort(bool goes_on) {
    std::lock_guard lock(aborting_);
    aborted_ = true;
    goes_on_ = goes_on;
    if (!goes_on) left_.clear();
    for (const EngineMessage& m : messages_)
      if (m.work) m.work->abort();
  }
  void abort_for(const Fault& why) {
    if (ends(why, collective_)) abort(why.cause != Cause::aborted);
  }
  bool has_left() {
    std::lock_guard lock(aborting_);
    return !left_.empty();
  }

  bool wait(std::chrono::milliseconds timeout) override {
    // In the engine's own wait nobody would hear of a signal.
    if (timeout == kNoTimeout && !Signals::come_here()) settle();
    else settle_aside();
    return RingWork::wait(timeout);
  }
  bool isCompleted() override {
    settle_aside();
    return RingWork::isCompleted();
  }
  c10::intrusive_ptr<Future> getFuture() override {
    settle_aside();
    return RingWork::getFuture();
  }

 private:
  // Leaves `work` at what there is to wait for.
  std::exception_ptr begin_rest(EngineMessage& m) {
    if (!m.rest) return nullptr;
    if (auto failure = end_of(m, posted_)) return failure;
    EngineMessage::Rest found;
    std::string failed;
    {
      std::lock_guard lock(aborting_);
      if (aborted_) failed = "it was aborted";
      else try {
          found = m.rest(m.peer == cpu::kAnySource ? m.work->sourceRank() : m.peer);
          m.work = found.work;
        } catch (const std::exception& e) {  // from here it would end the process
          failed = what_of(e);
        }
    }
    if (!failed.empty()) return failure_of(m, failed);
    m.rest = nullptr;
    if (found.error && group_ && collective_) tell(found.error);
    return found.error;
  }
  void tell(std::exception_ptr error) const {
    const Fault fault = fault_of(error, hosts_->rank());
    // Anything else is a wait of this rank, whose reason is another one's.
    if (fault.cause == Cause::mismatch) group_->tell(fault, kReasonComes);
  }
  // Returns what is left of the timeout of a wait that began then: at least 1 ms, since 0 is the
  // engine's own, which for a message of Gloo's is that of connecting.
  Milliseconds left_of_timeout(Clock::time_point since) const {
    if (limit_.timeout.count() == 0) return kNoTimeout;
    const auto waited = std::chrono::duration_cast<Milliseconds>(Clock::now() - since);
    return std::max(limit_.timeout - waited, Milliseconds(1));
  }
  // Waits for its work. After it has failed there is none.
  std::exception_ptr end_of(EngineMessage& m, Clock::time_point since) {
    std::string said = "it was aborted";
    try {
      if (m.work->wait(left_of_timeout(since))) {
        moved_ = Clock::now();
        if (!m.sends) set_source(m.peer == cpu::kAnySource ? m.work->sourceRank() : m.peer);
        return nullptr;
      }
    } catch (const std::exception& e) {
      said = what_of(e);
    }
    return failure_of(m, said);
  }
  // An engine's works keep its connections open, from which another rank would not see that this
  // one has left; and somebody may keep this work.
  void let_go() {
    std::lock_guard lock(aborting_);
    messages_.clear();
  }
  std::exception_ptr failure_of(EngineMessage& m, const std::string& said) {
    {
      std::lock_guard lock(aborting_);
      // Not the rest, which would be written to the user's tensor after the call has failed.
      if (goes_on_ && (m.sends || m.rest)) left_.push_back(m.work);
      m.work = nullptr;
    }
    const bool late = said.find("imed out") != std::string::npos;
    // First: other messages end by it, and ask after it.
    if (late && limit_.late) limit_.late->tell(fault_in(m, Event::engine_late, said), kReasonComes);
    const auto why = told();
    try {
      if (why) throw_fault(*why, "", text_of(fault_in(m, Event::engine_waits, said)));
      if (aborted_) throw_fault(fault_in(m, Event::engine_aborted, said));
      if (late) throw_fault(fault_in(m, Event::engine_late, said));
      if (const auto first = limit_.late ? limit_.late->hear(kLateComes) : std::nullopt)
        throw_unusable(text_of(fault_in(m, Event::engine_ended, said)) + " ", *first);
      throw_fault(fault_in(m, Event::engine_lost, said));
    } catch (...) {
      return std::current_exception();
    }
  }
  Fault fault_in(const EngineMessage& m, Event event, const std::string& said) const {
    Fault f = fault_of(event, hosts_->rank(), m.peer);
    f.message.is_there = 1;
    f.message.sends = m.sends;
    f.message.peer = m.peer;
    f.timeout_ns = std::chrono::nanoseconds(limit_.timeout).count();
    f.evidence = printable(said, kEngineSays);
    return hosts_->at_home(f);
  }

  // A rank that has given up closes its connections, and says why elsewhere.
  std::optional<Fault> told() const {
    if (!group_) return {};
    const bool known = aborted_ && !collective_;  // by then, if it was the group's
    auto why = known ? group_->heard() : group_->hear(kReasonComes);
    if (why && !ends(*why, collective_)) why.reset();
    return why;
  }

  std::vector<EngineMessage> messages_;
  const std::shared_ptr<const Hosts> hosts_;
  WaitLimit limit_;
  const Clock::time_point posted_ = Clock::now();
  Clock::time_point moved_;  // when one has last come to its end; of whoever settles it
  std::unique_ptr<StoreChannel::Listening> group_;  // until it has settled
  const bool collective_;
  std::once_flag once_;
  std::mutex aborting_;  // guards the works of messages, and:
  bool goes_on_ = false;
  std::vector<WorkPtr> left_;  // aborted, while other messages may follow
  std::atomic<bool> settled_{false}, aside_{false}, aborted_{false};
};

// Works that have not come to their end, so that what they move stays where it is though nobody
// else holds them.
class UnderWay {
 public:
  using Work = c10::intrusive_ptr<EngineWork>;

  void add(Work work) {
    std::lock_guard lock(mutex_);
    std::erase_if(works_, [](const Work& w) { return w->settled() && !w->has_left(); });
    for (const Work& w : works_)
      if (w.use_count() == 1) w->settle_aside();  // whoever posted it waits no more
    works_.push_back(std::move(work));
  }
  void abort() {
    for (const Work& work : all()) work->abort();
  }
  // Aborts those that such a failure of the group ends.
  void abort(const Fault& why) {
    for (const Work& work : all()) work->abort_for(why);
  }
  // Waits until all have come to their end, for so long at most.
  void settle_within(Milliseconds patience) {
    const std::vector<Work> works = all();
    for (const Work& work : works)
      if (!work->settled()) work->settle_aside();
    const auto end = Clock::now() + patience;
    const auto done = [&] {
      return std::all_of(works.begin(), works.end(), [](const Work& w) { return w->settled(); });
    };
    while (!done() && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
  }

 private:
  std::vector<Work> all() {
    std::lock_guard lock(mutex_);
    return works_;
  }
  std::mutex mutex_;
  std::vector<Work> works_;
};

}  // namespace ringkern::torch_ext
