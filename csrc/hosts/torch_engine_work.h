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
  // the other way round. A user's messages fail one by one, unless the group is aborted.
  EngineWork(Call call, std::vector<EngineMessage> messages, std::shared_ptr<const Hosts> hosts,
             WaitLimit limit = {}, std::unique_ptr<StoreChannel::Listening> group = nullptr,
             bool collective = false);

  // True: this failure of the group ends such a work.
  static bool ends(const Fault& why, bool collective) {
    return collective || why.cause == Cause::aborted;
  }

  // Waits for the messages; whoever comes second waits for the first.
  void settle();
  bool settled() const { return settled_; }
  // Somebody else settles it, from now on.
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
  // Leaves `work` at what there is to wait for.
  std::exception_ptr begin_rest(EngineMessage& m);
  void tell(std::exception_ptr error) const;
  // Returns what is left of the timeout of a wait that began then: at least 1 ms, since 0 is the
  // engine's own, which for a message of Gloo's is that of connecting.
  Milliseconds left_of_timeout(Clock::time_point since) const;
  // Waits for its work. After it has failed there is none.
  std::exception_ptr end_of(EngineMessage& m, Clock::time_point since);
  // An engine's works keep its connections open, from which another rank would not see that this
  // one has left; and somebody may keep this work.
  void let_go();
  std::exception_ptr failure_of(EngineMessage& m, const std::string& said);
  Fault fault_in(const EngineMessage& m, Event event, const std::string& said) const;

  // A rank that has given up closes its connections, and says why elsewhere.
  std::optional<Fault> told() const;

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

  void add(Work work);
  void abort() {
    for (const Work& work : all()) work->abort();
  }
  // Aborts those that such a failure of the group ends.
  void abort(const Fault& why) {
    for (const Work& work : all()) work->abort_for(why);
  }
  // Waits until all have come to their end, for so long at most.
  void settle_within(Milliseconds patience);

 private:
  std::vector<Work> all();
  std::mutex mutex_;
  std::vector<Work> works_;
};

}  // namespace ringkern::torch_ext
