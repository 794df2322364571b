// Messages by an engine as one work. An engine's own may know nothing of futures, and notice that
// it is done only where somebody waits for it (Gloo's), so here somebody does when it is asked for.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "comm/hosts.h"
#include "cpu/courier.h"
#include "torch/engine.h"

namespace ringkern::torch_ext {

struct EngineMessage {
  bool sends = true;
  int peer = 0;  // -1: several
  WorkPtr work;
};

class EngineWork final : public RingWork {
 public:
  EngineWork(Call call, std::vector<EngineMessage> messages, std::shared_ptr<const Hosts> hosts)
      : RingWork(std::move(call), 1), messages_(std::move(messages)), hosts_(std::move(hosts)) {}

  // Waits for the messages, one after the other; whoever comes second waits for the first.
  void settle() {
    std::call_once(once_, [this] {
      std::exception_ptr error;
      for (EngineMessage& m : messages_)
        if (auto failure = failure_of(m); failure && !error) error = failure;
      settled_ = true;
      end_part(error);
    });
  }
  bool settled() const { return settled_; }
  // Somebody else settles it, from now on.
  void settle_aside() {
    if (aside_.exchange(true)) return;
    std::thread([self = c10::intrusive_ptr<EngineWork>::reclaim_copy(this)] {
      self->settle();
    }).detach();
  }
  void abort() override {
    aborted_ = true;
    for (const EngineMessage& m : messages_) m.work->abort();
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout == kNoTimeout) settle();
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
  std::exception_ptr failure_of(EngineMessage& m) {
    std::string said = "it was aborted";
    try {
      if (m.work->wait()) {
        if (!m.sends) set_source(m.peer == cpu::kAnySource ? m.work->sourceRank() : m.peer);
        return nullptr;
      }
    } catch (const std::exception& e) {
      said = what_of(e);
    }
    const std::string who = m.peer < 0 ? "any rank" : hosts_->text_of_rank(m.peer);
    const std::string text =
        hosts_->text_of_rank(hosts_->rank()) +
        (m.sends ? " waited to send a message to " : " waited for a message from ") + who +
        ". The engine between the hosts says: " + printable(said, kEngineSays);
    const Facts about{m.peer};
    if (aborted_) return std::make_exception_ptr(AbortedError(text, about));
    if (said.find("imed out") != std::string::npos)
      return std::make_exception_ptr(TimeoutError(text, about));
    return std::make_exception_ptr(PeerLostError(text, about));
  }

  std::vector<EngineMessage> messages_;
  const std::shared_ptr<const Hosts> hosts_;
  std::once_flag once_;
  std::atomic<bool> settled_{false}, aside_{false}, aborted_{false};
};

// Works that have not come to their end, so that what they move stays where it is though nobody
// else holds them.
class UnderWay {
 public:
  using Work = c10::intrusive_ptr<EngineWork>;

  void add(Work work) {
    std::lock_guard lock(mutex_);
    std::erase_if(works_, [](const Work& w) { return w->settled(); });
    for (const Work& w : works_)
      if (w.use_count() == 1) w->settle_aside();  // whoever posted it waits no more
    works_.push_back(std::move(work));
  }
  void abort() {
    for (const Work& work : all()) work->abort();
  }
  // Whether all have come to their end by then.
  bool settle_within(Milliseconds patience) {
    const std::vector<Work> works = all();
    for (const Work& work : works)
      if (!work->settled()) work->settle_aside();
    const auto end = Clock::now() + patience;
    const auto done = [&] {
      return std::all_of(works.begin(), works.end(), [](const Work& w) { return w->settled(); });
    };
    while (!done() && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
    return done();
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
