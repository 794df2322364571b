// Runs the transfers of a call in a group that spans hosts. Transfers of a collective go directly
// to ranks of this host, and to others by the engine that joins all ranks. A user's messages all go
// by the engine: a receive from any rank does not know which way the message will come.
//
// On CPUs a message is a slot (hosts/torch_engine.h), which describes it and holds a small one. The
// data of a larger message follow by the other backend, under a number in the slot. They are
// received once the slot has shown that the two ends agree on their size.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fault/render.h"
#include "hosts/torch_communicator.h"
#include "hosts/torch_engine_work.h"
#include "p2p/torch_p2p.h"

namespace ringkern::torch_ext {
namespace {

class HostsP2p final : public P2pRunner {
 public:
  HostsP2p(HostsCommunicator& group, std::shared_ptr<Store> store, const std::string& name,
           Milliseconds timeout)
      : group_(group), hosts_(std::make_shared<Hosts>(group.hosts())),
        inside_(make_p2p(std::move(store), name + "/host " + std::to_string(hosts_->host()),
                         {hosts_->local(), int(hosts_->ranks_on(hosts_->host()).size())}, timeout,
                         hosts_->ranks_on(hosts_->host()))) {
    // Made now, while all ranks are here: not all of them need take part in a message.
    cpu_ = &group.flat(at::kCPU).backend();
    slots_ = &group.flat(at::kCPU).slots();
    sent_ = std::make_unique<std::atomic<uint32_t>[]>(size_t(hosts_->ranks()));
    group.on_told([this](const Fault& why) {
      if (why.cause == Cause::aborted) inside_->abort(text_of(why));
      under_way_.abort(why);
    });
#if RK_WITH_CUDA
    if (cuda::device_count() > 0) cuda_ = &group.flat(at::kCUDA).backend();
#endif
  }

  ~HostsP2p() override {
    if (::getpid() == born_in_) group_.on_told(nullptr);
  }

  WorkPtr post(Call call, uint64_t tag, const WayRequest& request, Milliseconds timeout) override {
    if (closed_)
      throw UsageError("the messages of " + hosts_->text_of_rank(hosts_->rank()) +
                       " are closed: make a new group, or destroy this one later");
    const bool collective = (tag & kCollectiveTag) != 0;
    const std::string me = "the messages of " + hosts_->text_of_rank(hosts_->rank());
    if (const auto why = ended(collective)) throw_unusable(me + " have ended: ", *why);
    if (const auto first = late_->heard()) throw_unusable(me + " have ended: ", *first);
    if (call.device.is_cpu() && collective)
      return post_both_ways(std::move(call), tag, request, timeout);
    if (call.device.is_cpu())
      return post_by_slots(std::move(call), engine_tag(tag), collective, timeout);
    return post_over_engine(std::move(call), engine_tag(tag));
  }

  void abort(const std::string& reason) override {
    inside_->abort(reason);
    under_way_.abort();
  }
  void close(Milliseconds patience) override {
    const bool forked = ::getpid() != born_in_;
    closed_ = true;  // the engines end soon
    inside_->close(patience);
    if (forked) return;  // the threads that move messages are in the parent
    under_way_.settle_within(patience);
    under_way_.abort();
  }
  // On CUDA nothing goes inside the host: the current stream waits for the engine's work.
  void wait_for_exchanges() override {}
  void set_on_fault(OnFault policy) override { inside_->set_on_fault(policy); }

 private:
  // Engines have tags of 31 bits. Collectives use some of them, in turn.
  static constexpr uint64_t kFirstTaken = 1 << 30, kTaken = 1 << 20;

  static int engine_tag(uint64_t tag) {
    if ((tag & kCollectiveTag) != 0) return int(kFirstTaken + tag % kTaken);
    if (tag >= kFirstTaken && tag < kFirstTaken + kTaken)
      throw py::value_error("tag is " + std::to_string(tag) + "; between hosts tags from " +
                            std::to_string(kFirstTaken) + " to " +
                            std::to_string(kFirstTaken + kTaken - 1) + " are taken: use another");
    return int(tag);
  }

  WorkPtr post_both_ways(Call call, uint64_t tag, const WayRequest& request, Milliseconds timeout) {
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
    const WorkPtr whole = post_by_slots(std::move(call), engine_tag(tag), true, timeout);
    if (near.transfers.empty()) return whole;
    const WorkPtr inside = inside_->post(std::move(near), tag, request, timeout);
    return c10::make_intrusive<BothWays>(inside, whole, group_.listen());
  }

  // The results are those of the call as a whole. The group is told of a failure inside the host,
  // unless the group's own failure caused it.
  class BothWays final : public JointWork {
   public:
    BothWays(const WorkPtr& inside, WorkPtr whole, std::unique_ptr<StoreChannel::Listening> group)
        : JointWork({inside, whole}), whole_(std::move(whole)), group_(std::move(group)) {}
    std::vector<at::Tensor> result() override { return whole_->result(); }
    bool wait(std::chrono::milliseconds timeout) override {
      try {
        JointWork::wait(timeout);
      } catch (const ErrorInTorch& e) {
        const Error& error = e.error();
        if (error.facts.fault && error.facts.fault->cause == Cause::mismatch)
          group_->tell(*error.facts.fault, kMessageReasonComes);
        else if (const auto told = group_->hear(kMessageReasonComes))
          called_by_torch([&] { throw_fault(*told, "", error.what()); });
        throw;
      }
      return true;
    }

   private:
    const WorkPtr whole_;
    const std::unique_ptr<StoreChannel::Listening> group_;
  };

  // An engine may report a broken connection at once. This work reports it like that of another
  // message: when somebody waits for it.
  class Broken final : public c10d::Work {
   public:
    explicit Broken(std::exception_ptr error) { finish(std::move(error)); }
    void abort() override {}
  };
  template <class Begin>
  static WorkPtr begun(const Begin& begin) {
    try {
      return begin();
    } catch (const std::exception&) {
      return c10::make_intrusive<Broken>(std::current_exception());
    }
  }

  // The head of a slot.
  struct alignas(16) Header {
    uint64_t what;  // the call: an index of kMoved, and from bit 32 on the MessageKind
    int64_t bytes;
    uint32_t number;  // of the data that do not fit in the slot
  };
  static constexpr uint32_t kNumbers = 1 << 30;

  static uint64_t word_of(const Call& call, const Transfer& t) {
    MessageKind kind = MessageKind::message;
    switch (call.type) {
      case c10d::OpType::GATHER: kind = MessageKind::gather; break;
      case c10d::OpType::SCATTER: kind = MessageKind::scatter; break;
      case c10d::OpType::ALLTOALL:
      case c10d::OpType::ALLTOALL_BASE: kind = MessageKind::all_to_all; break;
      default: break;
    }
    return uint64_t(moved_of(t.buffer.scalar_type())) | uint64_t(kind) << 32;
  }
  Fault mismatch(int source, const Header& theirs, uint64_t what, int64_t bytes) const {
    Fault f = fault_of(Event::message_mismatch, hosts_->rank(), source);
    f.message.is_there = 1;
    f.message.peer = source;
    f.message.kind = uint32_t(what >> 32);
    f.message.dtype = int32_t(what & 0xff);
    f.message.bytes = bytes;
    f.message.their_kind = uint32_t(theirs.what >> 32);
    f.message.their_dtype = int32_t(theirs.what & 0xff);
    f.message.their_bytes = theirs.bytes;
    return hosts_->at_home(f);
  }

  // Returns the reason, if told, why the group or at least its collectives have ended.
  std::optional<Fault> ended(bool collective) const {
    auto why = group_.heard();
    if (why && !EngineWork::ends(*why, collective)) why.reset();
    return why;
  }

  WorkPtr post_by_slots(Call call, int tag, bool collective, Milliseconds timeout) {
    std::vector<EngineMessage> messages;
    bool progresses = false;  // data must be requested when their slot has come
    for (const Transfer& t : call.transfers) {
      if (t.sends) {
        send(messages, word_of(call, t), t, tag);
      } else {
        messages.push_back(receive(word_of(call, t), t, tag));
        progresses |= int64_t(t.buffer.nbytes()) > kSlotBytes;
      }
    }
    auto work =
        c10::make_intrusive<EngineWork>(std::move(call), std::move(messages), hosts_,
                                        WaitLimit{timeout, late_}, group_.listen(), collective);
    under_way_.add(work);
    if (const auto why = ended(collective)) work->abort_for(*why);  // it may have been told before
    if (progresses) work->settle_aside();
    return work;
  }

  void send(std::vector<EngineMessage>& messages, uint64_t what, const Transfer& t, int tag) {
    const auto bytes = int64_t(t.buffer.nbytes());
    const Header header{what, bytes, ++sent_[size_t(t.peer)] % kNumbers};
    const at::Tensor data = as_bytes(t.buffer);
    const at::Tensor slot = at::zeros({int64_t(sizeof header) + kSlotBytes}, at::kByte);
    std::memcpy(slot.mutable_data_ptr(), &header, sizeof header);
    const bool fits = bytes <= kSlotBytes;
    if (fits) slot.narrow(0, sizeof header, bytes).copy_(data);
    std::vector<at::Tensor> tensors{slot};
    messages.push_back({true, t.peer, begun([&] { return slots_->send(tensors, t.peer, tag); })});
    if (fits) return;
    tensors = {data};
    messages.push_back(
        {true, t.peer, begun([&] { return cpu_->send(tensors, t.peer, int(header.number)); })});
  }

  EngineMessage receive(uint64_t what, const Transfer& t, int tag) {
    const at::Tensor slot = at::empty({int64_t(sizeof(Header)) + kSlotBytes}, at::kByte);
    std::vector<at::Tensor> tensors{slot};
    EngineMessage m{false, t.peer, nullptr};
    m.work = begun([&] {
      return t.peer == cpu::kAnySource ? slots_->recvAnysource(tensors, tag)
                                       : slots_->recv(tensors, t.peer, tag);
    });
    m.rest = [this, slot, what, to = as_bytes(t.buffer)](int source) {
      return take(slot, what, to, source);
    };
    return m;
  }

  // Handles a slot that has come: copies its data to their place, or receives the data that follow.
  EngineMessage::Rest take(const at::Tensor& slot, uint64_t what, const at::Tensor& to,
                           int source) {
    Header header;
    std::memcpy(&header, slot.const_data_ptr(), sizeof header);
    EngineMessage::Rest rest;
    at::Tensor place = to;
    if (header.what != what || header.bytes != to.numel()) {
      rest.error = error_of(mismatch(source, header, what, to.numel()));
      // Receives the data all the same: the rank that sent them waits until somebody does.
      place = at::empty({std::max<int64_t>(header.bytes, 0)}, at::kByte);
    }
    if (header.bytes > kSlotBytes) {
      std::vector<at::Tensor> tensors{place};
      rest.work = cpu_->recv(tensors, source, int(header.number));
    } else if (!rest.error) {
      // In inference mode alone, copy_() takes an inference tensor, and the mode belongs to a
      // thread.
      std::memcpy(place.mutable_data_ptr(),
                  static_cast<const char*>(slot.const_data_ptr()) + sizeof header,
                  size_t(header.bytes));
    }
    return rest;
  }

  // On CUDA.
  WorkPtr post_over_engine(Call call, int tag) {
    c10d::Backend& engine = *cuda_;
    const std::vector<Transfer> transfers = call.transfers;
    const bool together = engine.supportsCoalescing();
    if (together) engine.startCoalescing();
    std::vector<EngineMessage> messages;
    for (const Transfer& t : transfers) {
      std::vector<at::Tensor> tensors{as_bytes(t.buffer)};
      messages.push_back({t.sends, t.peer, nullptr});
      WorkPtr& work = messages.back().work;
      if (t.sends) work = engine.send(tensors, t.peer, tag);
      else work = engine.recv(tensors, t.peer, tag);
    }
    if (together) messages = {{true, -1, engine.endCoalescing()}};
    auto work = c10::make_intrusive<EngineWork>(std::move(call), std::move(messages), hosts_);
    work->settle();  // the stream waits, not this thread
    return work;
  }

  HostsCommunicator& group_;
  const std::shared_ptr<const Hosts> hosts_;
  const pid_t born_in_ = ::getpid();
  const std::shared_ptr<StoreChannel> late_ = group_.channel("late");
  std::atomic<bool> closed_{false};
  c10d::Backend *cpu_ = nullptr, *slots_ = nullptr, *cuda_ = nullptr;  // the group's
  std::unique_ptr<std::atomic<uint32_t>[]> sent_;  // numbers of messages, to each rank
  const std::unique_ptr<P2pRunner> inside_;
  UnderWay under_way_;
};

}  // namespace

std::unique_ptr<P2pRunner> make_hosts_p2p(HostsCommunicator& group, std::shared_ptr<Store> store,
                                          const std::string& name, Milliseconds timeout) {
  return std::make_unique<HostsP2p>(group, std::move(store), name, timeout);
}

}  // namespace ringkern::torch_ext
