// Runs the transfers of a call: on a CPU by the courier, on CUDA as launches over links between
// pairs of ranks that are made when they are first needed.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cpu/courier.h"
#include "torch/calls.h"
#include "torch/devices.h"
#include "torch/work.h"

namespace ringkern::torch_ext {

class Messenger {
 public:
  // `name`, as a communicator's: the same on all ranks.
  Messenger(std::shared_ptr<Store> store, std::string name, Seat seat, Milliseconds timeout)
      : store_(std::move(store)), name_(std::move(name)), seat_(seat), timeout_(timeout),
        courier_(std::make_unique<cpu::Courier>(store_, name_ + "/cpu", seat.rank, seat.ranks,
                                                timeout)) {}

  // CPU: returns at once; the work is complete when all have arrived. CUDA: when all are enqueued.
  // `tag`: what the two ends of each transfer have alike, on a CPU; on CUDA they are in order.
  c10::intrusive_ptr<RingWork> post(Call call, uint64_t tag, const Thresholds& thresholds,
                                    const std::string& protocol, Milliseconds timeout) {
    if (!call.device.is_cpu()) return enqueue(std::move(call), thresholds, protocol);
    const std::vector<Transfer> transfers = call.transfers;
    auto work = c10::make_intrusive<RingWork>(std::move(call), std::max(1, int(transfers.size())));
    if (transfers.empty()) work->end_part(nullptr);
    std::vector<cpu::Message> messages;
    for (const Transfer& t : transfers) {
      cpu::Message m;
      m.sends = t.sends;
      m.peer = t.peer;
      m.tag = tag;
      m.bytes = int64_t(t.buffer.nbytes());
      m.protocol = thresholds.choose(protocol, at::kCPU, DType::u8, m.bytes);
      m.data = const_cast<void*>(t.buffer.const_data_ptr());  // of what is sent, only read
      m.timeout = timeout;
      m.done = [work, any = t.peer == cpu::kAnySource](std::exception_ptr error, int source) {
        if (any) work->set_source(source);
        work->end_part(error);
      };
      messages.push_back(std::move(m));
    }
    courier_->post(std::move(messages));
    return work;
  }

  void abort(const std::string& reason) {
    courier_->abort(reason);
    std::lock_guard lock(mutex_);
    for (auto& [ends, pair] : pairs_) pair->comm.abort(reason);
  }
  void close(Milliseconds patience) {
    courier_->close(patience);
    std::lock_guard lock(mutex_);
    for (auto& [ends, pair] : pairs_) pair->comm.close(patience);
  }

 private:
  using Ends = std::pair<int, int>;  // from, to

  // A ring of two, of which one only sends. Each direction has its own, so that ranks that send to
  // each other first do not wait for each other.
  struct Pair {
    Pair(Device d, const std::shared_ptr<Store>& store, const std::string& name, int place,
         Milliseconds timeout, c10::Stream s)
        : device(std::move(d)), comm(store, name, place, 2, timeout), stream(s) {}

    const Device device;  // outlives the communicator that uses it
    Communicator comm;
    const c10::Stream stream;  // its launches are in order whatever the user's streams are
  };

  Pair& pair_for(const Transfer& transfer, c10::Device device) {
    const Ends ends = transfer.sends ? Ends{seat_.rank, transfer.peer}
                                     : Ends{transfer.peer, seat_.rank};
    std::lock_guard lock(mutex_);
    auto& pair = pairs_[ends];
    if (!pair) {
      const int place = transfer.sends ? 0 : 1;
      const c10::impl::VirtualGuardImpl impl(device.type());
      pair = std::make_unique<Pair>(
          pair_device_for(device, place, timeout_), store_,
          name_ + "/" + std::to_string(ends.first) + ">" + std::to_string(ends.second), place,
          timeout_, impl.getStreamFromGlobalPool(device));
    }
    return *pair;
  }

  c10::intrusive_ptr<RingWork> enqueue(Call call, const Thresholds& thresholds,
                                       const std::string& protocol) {
    const c10::Device device = call.device;
    // Links that do not exist yet are made one after the other, by both ends: in one order on all
    // ranks, or ranks would wait for each other in a circle.
    std::vector<Transfer> transfers = call.transfers;
    const auto ends = [&](const Transfer& t) {
      return t.sends ? Ends{seat_.rank, t.peer} : Ends{t.peer, seat_.rank};
    };
    std::stable_sort(transfers.begin(), transfers.end(),
                     [&](const auto& a, const auto& b) { return ends(a) < ends(b); });
    auto work = c10::make_intrusive<RingWork>(std::move(call), 1);
    const c10::impl::VirtualGuardImpl impl(device.type());
    const c10::DeviceGuard device_guard(device);
    const c10::Stream joint = impl.getStreamFromGlobalPool(device);
    c10::Event called(device.type());
    called.record(impl.getStream(device));
    called.block(joint);
    for (const Transfer& transfer : transfers) {
      Pair& pair = pair_for(transfer, device);
      called.block(pair.stream);
      Task task;
      task.collective = Collective::send_recv;
      task.reduction.dtype = DType::u8;
      task.in = transfer.buffer.const_data_ptr();
      task.out = const_cast<void*>(task.in);
      task.count = int64_t(transfer.buffer.nbytes());
      task.protocol = thresholds.choose(protocol, device.type(), DType::u8, task.count);
      task.stream = pair.stream.native_handle();
      impl.recordDataPtrOnStream(transfer.buffer.storage().data_ptr(), pair.stream);
      pair.comm.run(pair.device, task);
      c10::Event sent(device.type());
      sent.record(pair.stream);
      sent.block(joint);
    }
    const c10::StreamGuard stream_guard(joint);
    work->end_part(nullptr);
    return work;
  }

  const std::shared_ptr<Store> store_;
  const std::string name_;
  const Seat seat_;
  const Milliseconds timeout_;
  const std::unique_ptr<cpu::Courier> courier_;
  std::mutex mutex_;
  std::map<Ends, std::unique_ptr<Pair>> pairs_;  // on CUDA
};

}  // namespace ringkern::torch_ext
