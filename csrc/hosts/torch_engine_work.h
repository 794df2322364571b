// Messages by an engine as one work. An engine's own work may have no futures, and may notice its
// end only while somebody waits for it (as in Gloo), so a thread waits when this work is asked for
// it.
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
  // The result of `rest`, which runs when `work` is done: a work for the rest of the message, if
  // any; and an error with which the message ends nevertheless.
  struct Rest {
    WorkPtr work;
    std::exception_ptr error;
  };

  bool sends = true;
  int peer = 0;  // -1: several
  WorkPtr work;
  std::function<Rest(int source)> rest = nullptr;
};

// A reason may come this much later than the failure; a store answers within that time.
inline constexpr Milliseconds kMessageReasonComes{500};
// The further time for a failure that was told before this one.
inline constexpr Milliseconds kLateComes{200};

// The time that a message may take, and the channel on which ranks tell each other that one took
// longer: then Gloo has closed the connections of its rank, and other engines would take a later
// message for it.
struct WaitLimit {
  Milliseconds timeout{0};  // 0: the engine's
  std::shared_ptr<StoreChannel> late = nullptr;
};

class EngineWork final : public CallWork {
 public:
  // `group`: null: the work is not told of failures. A failure of a collective fails its group, and
  // the other way round. A user's messages fail one by one, unless the group is aborted.
  EngineWork(Call call, std::vector<EngineMessage> messages, std::shared_ptr<const Hosts> hosts,
             WaitLimit limit = {}, std::unique_ptr<StoreChannel::Listening> group = nullptr,
             bool collective = false);

  // Returns true if this failure of the group ends such a work.
  static bool ends(const Fault& why, bool collective) {
    return collective || why.cause == Cause::aborted;
  }

  // Waits for the messages; a second caller waits for the first.
  void settle();
  bool settled() const { return settled_; }
  // Lets another thread settle it, from now on.
  void settle_aside();
  void abort() override { abort(false); }
  // `goes_on`: other messages may follow these. Gloo stops reading a connection at data whose
  // receive has been destroyed, and writing at a send that has: both stay until a last abort.
  void abort(bool goes_on);
  void abort_for(const Fault& why) {
    if (ends(why, collective_)) abort(why.cause != Cause::aborted);
  }
  bool has_left();

  bool wait(std::chrono::milliseconds timeout) override;
  bool isCompleted() override;
  c10::intrusive_ptr<Future> getFuture() override;

 private:
  // Sets `work` to the one that is left to wait for.
  std::exception_ptr begin_rest(EngineMessage& m);
  void tell(std::exception_ptr error) const;
  // Returns the rest of the timeout of a wait that began at `since`: at least 1 ms, because 0 means
  // the engine's own timeout, which for a message of Gloo is that of connecting.
  Milliseconds left_of_timeout(Clock::time_point since) const;
  // Waits for the work of a message; after a failure the message has none.
  std::exception_ptr end_of(EngineMessage& m, Clock::time_point since);
  // Releases the engine's works, which keep its connections open: another rank would not notice
  // that this one has left. A caller may keep this work.
  void let_go();
  std::exception_ptr failure_of(EngineMessage& m, const std::string& said);
  Fault fault_in(const EngineMessage& m, Event event, const std::string& said) const;

  // Waits for the reason: a rank that has given up closes its connections, and tells the reason
  // elsewhere.
  std::optional<Fault> told() const;

  std::vector<EngineMessage> messages_;
  const std::shared_ptr<const Hosts> hosts_;
  WaitLimit limit_;
  const Clock::time_point posted_ = Clock::now();
  Clock::time_point moved_;  // when a message last ended; used by the thread that settles
  std::unique_ptr<StoreChannel::Listening> group_;  // until it has settled
  const bool collective_;
  std::once_flag once_;
  std::mutex aborting_;  // guards the works of messages, and goes_on_ and left_
  bool goes_on_ = false;
  std::vector<WorkPtr> left_;  // aborted, while other messages may follow
  std::atomic<bool> settled_{false}, aside_{false}, aborted_{false};
};

// Works that have not ended. They keep the tensors alive that they move, even if nobody else does.
class UnderWay {
 public:
  using Work = c10::intrusive_ptr<EngineWork>;

  void add(Work work);
  void abort() {
    for (const Work& work : all()) work->abort();
  }
  // Aborts the works that this failure of the group ends.
  void abort(const Fault& why) {
    for (const Work& work : all()) work->abort_for(why);
  }
  // Waits until all works have ended, at most for `patience`.
  void settle_within(Milliseconds patience);

 private:
  std::vector<Work> all();
  std::mutex mutex_;
  std::vector<Work> works_;
};

}  // namespace ringkern::torch_ext
