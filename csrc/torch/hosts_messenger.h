// Runs the transfers of a call in a group that spans hosts. Those of a collective go to a rank of
// this host as they always do, and to others by the engine that joins all ranks; a user's messages
// all go by the engine: who takes one from any rank does not know which way it will come.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch/engine_work.h"
#include "torch/hosts_failures.h"
#include "torch/messenger.h"

namespace ringkern::torch_ext {

class HostsMessenger final : public Carrier {
 public:
  // `group` outlives it.
  HostsMessenger(HostsCommunicator& group, std::shared_ptr<Store> store, const std::string& name,
                 Milliseconds timeout)
      : hosts_(std::make_shared<Hosts>(group.hosts())),
        inside_(std::move(store), name + "/host " + std::to_string(hosts_->host()),
                {hosts_->local(), int(hosts_->ranks_on(hosts_->host()).size())}, timeout) {
    // Now, while all ranks are here: they need not all take part in a message.
    cpu_ = &group.flat(at::kCPU).backend();
#if RK_WITH_CUDA
    if (cuda::device_count() > 0) cuda_ = &group.flat(at::kCUDA).backend();
#endif
  }

  WorkPtr post(Call call, uint64_t tag, const Wish& wish, Milliseconds timeout) override {
    if (closed_)
      throw UsageError("the messages of " + hosts_->text_of_rank(hosts_->rank()) +
                       " are closed: make a new group, or destroy this one later");
    const bool collective = (tag & kCollectiveTag) != 0;
    if (call.device.is_cpu() && collective)
      return post_both_ways(std::move(call), tag, wish, timeout);
    return post_over_engine(std::move(call), engine_tag(tag));
  }

  void abort(const std::string& reason) override {
    inside_.abort(reason);
    under_way_.abort();
  }
  void close(Milliseconds patience) override {
    const bool forked = ::getpid() != born_in_;
    closed_ = true;  // the engines end soon
    inside_.close(patience);
    if (forked) return;  // who moves what is under way is in the parent
    if (!under_way_.settle_within(patience)) under_way_.abort();
  }
  // On CUDA nothing goes inside: the current stream waits for what the engine has.
  void wait_for_exchanges() override {}

 private:
  // Engines have tags of 31 bits, of which collectives take some, in turn.
  static constexpr uint64_t kFirstTaken = 1 << 30, kTaken = 1 << 20;

  static int engine_tag(uint64_t tag) {
    if ((tag & kCollectiveTag) != 0) return int(kFirstTaken + tag % kTaken);
    if (tag >= kFirstTaken && tag < kFirstTaken + kTaken)
      throw py::value_error("tag is " + std::to_string(tag) + "; between hosts tags from " +
                            std::to_string(kFirstTaken) + " to " +
                            std::to_string(kFirstTaken + kTaken - 1) + " are taken: use another");
    return int(tag);
  }

  WorkPtr post_both_ways(Call call, uint64_t tag, const Wish& wish, Milliseconds timeout) {
    Call near;
    near.type = call.type;
    near.device = call.device;
    std::erase_if(call.transfers, [&](const Transfer& t) {
      const bool here = hosts_->host_of(t.peer) == hosts_->host();
      if (here) {
        near.transfers.push_back(t);
        near.transfers.back().peer = hosts_->local_of(t.peer);
      }
      return here;
    });
    if (near.transfers.empty()) return post_over_engine(std::move(call), engine_tag(tag));
    const WorkPtr inside = inside_.post(std::move(near), tag, wish, timeout);
    const WorkPtr whole = post_over_engine(std::move(call), engine_tag(tag));
    return c10::make_intrusive<BothWays>(std::vector<WorkPtr>{inside, whole}, whole);
  }

  // The results are those of the call as a whole.
  class BothWays final : public JointWork {
   public:
    BothWays(std::vector<WorkPtr> works, WorkPtr whole)
        : JointWork(std::move(works)), whole_(std::move(whole)) {}
    std::vector<at::Tensor> result() override { return whole_->result(); }

   private:
    const WorkPtr whole_;
  };

  WorkPtr post_over_engine(Call call, int tag) {
    c10d::Backend& engine = *(call.device.is_cpu() ? cpu_ : cuda_);
    const std::vector<Transfer> transfers = call.transfers;
    const bool together = !call.device.is_cpu() && engine.supportsCoalescing();
    if (together) engine.startCoalescing();
    std::vector<EngineMessage> messages;
    for (const Transfer& t : transfers) {
      std::vector<at::Tensor> tensors{as_bytes(t.buffer)};
      messages.push_back({t.sends, t.peer, nullptr});
      WorkPtr& work = messages.back().work;
      if (t.sends) work = engine.send(tensors, t.peer, tag);
      else if (t.peer == cpu::kAnySource) work = engine.recvAnysource(tensors, tag);
      else work = engine.recv(tensors, t.peer, tag);
    }
    if (together) messages = {{true, -1, engine.endCoalescing()}};
    const bool on_cpu = call.device.is_cpu();
    auto work = c10::make_intrusive<EngineWork>(std::move(call), std::move(messages), hosts_);
    if (!on_cpu) work->settle();  // the stream waits, and not this thread
    else under_way_.add(work);
    return work;
  }

  const std::shared_ptr<const Hosts> hosts_;
  const pid_t born_in_ = ::getpid();
  std::atomic<bool> closed_{false};
  c10d::Backend *cpu_ = nullptr, *cuda_ = nullptr;  // the group's
  Messenger inside_;
  UnderWay under_way_;
};

}  // namespace ringkern::torch_ext
