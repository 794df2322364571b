// Runs the transfers of a call: on a CPU by the courier, on CUDA as launches over links between
// pairs of ranks that are made when they are first needed.
#include "torch/messenger.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "comm/worker.h"
#include "cpu/courier.h"
#include "torch/calls.h"
#include "torch/devices.h"

namespace ringkern::torch_ext {
namespace {

class Messenger final : public Carrier {
 public:
  Messenger(std::shared_ptr<Store> store, std::string name, Seat seat, Milliseconds timeout,
            std::vector<int> numbers)
      : store_(std::move(store)), name_(std::move(name)), seat_(seat), timeout_(timeout),
        names_{std::move(numbers)},
        courier_(std::make_unique<cpu::Courier>(store_, name_ + "/cpu", seat.rank, seat.ranks,
                                                timeout, names_)) {}

  // On CUDA transfers are matched in order, and not by tags.
  WorkPtr post(Call call, uint64_t tag, const Wish& wish, Milliseconds timeout) override {
    if (!call.device.is_cpu())
      return enqueue(std::move(call), wish, timeout, (tag & kCollectiveTag) != 0);
    const std::vector<Transfer> transfers = call.transfers;
    // A callback may wait for the next message, which the courier's thread has to move.
    auto work = c10::make_intrusive<RingWork>(
        std::move(call), std::max(1, int(transfers.size())),
        [this](std::function<void()> tell) { tellers_.post([] {}, std::move(tell)); });
    if (transfers.empty()) work->end_part(nullptr);
    std::vector<cpu::Message> messages;
    for (const Transfer& t : transfers) {
      cpu::Message m;
      m.sends = t.sends;
      m.peer = t.peer;
      m.tag = tag;
      m.bytes = int64_t(t.buffer.nbytes());
      m.dtype = moved_of(t.buffer.scalar_type());
      m.protocol = protocol_of(wish, c10::DeviceType::CPU, m.bytes);
      m.data = const_cast<void*>(t.buffer.const_data_ptr());  // of what is sent, only read
      m.timeout = timeout;
      m.done = [this, work, sends = t.sends](std::exception_ptr error, int source) {
        if (!sends) work->set_source(source);
        work->end_part(error);
        if (const auto after = after_fault(on_fault_, c10::DeviceType::CPU); error && after)
          after(fault_of(error, -1), aborted_);
      };
      messages.push_back(std::move(m));
    }
    courier_->post(std::move(messages));
    return work;
  }

  void abort(const std::string& reason) override {
    aborted_ = true;
    courier_->abort(reason);
    for (const auto& pair : pairs()) pair->comm.abort(reason);
  }
  void close(Milliseconds patience) override {
    aborted_ = true;  // what is left is ended by this rank
    const auto end = Clock::now() + patience;
    courier_->close(patience);
    tellers_.drain(patience);
    for (const auto& pair : pairs()) {
      const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
      pair->comm.close(std::max(left, Milliseconds(0)));
    }
  }
  void set_on_fault(OnFault policy) override { on_fault_ = policy; }
  void check_enqueued() override {
    for (const auto& pair : pairs()) pair->comm.check_enqueued();
  }
  void wait_for_exchanges() override {
    for (const auto& pair : pairs()) pair->wait_for_exchanges();
  }

 private:
  using Ends = std::pair<int, int>;  // from, to

  // A ring of two, of which one only sends. Each direction has its own, so that ranks that send to
  // each other first do not wait for each other.
  struct Pair {
    Pair(c10::Device d, const std::shared_ptr<Store>& store, const std::string& name, int place,
         Milliseconds timeout, OnFault policy, RankNames names)
        : where(d), device(pair_device_for(d, place, timeout, policy)), own(own_stream(d)),
          stream(*own), comm(store, name, place, 2, timeout, std::move(names)) {}

    const c10::Device where;
    const Device device;
    const std::shared_ptr<const c10::Stream> own;
    const c10::Stream stream;  // its launches are in order whatever the user's streams are
    std::mutex mutex;          // guards what follows
    std::condition_variable launched;
    int to_launch = 0;            // collectives; negative while one is launched but not yet counted
    bool ends_in_message = true;  // the last call is a message
    Communicator comm;            // ends before what it uses

    void note_call(bool collective) {
      std::lock_guard lock(mutex);
      ends_in_message = !collective;
      if (collective) ++to_launch;
    }
    void note_launch() {
      std::lock_guard lock(mutex);
      --to_launch;
      launched.notify_all();
    }
    // Waits no longer than the calls do, which end at their deadlines.
    void wait_for_exchanges() {
      std::unique_lock lock(mutex);
      if (ends_in_message) return;
      launched.wait(lock, [this] { return to_launch <= 0; });
      lock.unlock();
      stream.synchronize();
    }
  };

  std::vector<std::shared_ptr<Pair>> pairs() {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Pair>> all;
    for (const auto& [ends, pair] : pairs_) all.push_back(pair);
    return all;
  }

  std::shared_ptr<Pair> pair_for(const Transfer& transfer, c10::Device device) {
    const Ends ends =
        transfer.sends ? Ends{seat_.rank, transfer.peer} : Ends{transfer.peer, seat_.rank};
    std::lock_guard lock(mutex_);
    auto& pair = pairs_[ends];
    if (!pair) {
      const std::string name =
          name_ + "/" + std::to_string(ends.first) + ">" + std::to_string(ends.second);
      const RankNames both{{names_.number(ends.first), names_.number(ends.second)}};
      pair = std::make_shared<Pair>(device, store_, name, transfer.sends ? 0 : 1, timeout_,
                                    on_fault_, both);
    }
    if (pair->where != device)
      throw py::value_error("tensor is on " + device.str() + ", and rank " +
                            std::to_string(transfer.peer) + " exchanges tensors on " +
                            pair->where.str() + " with this rank; use one device for a pair");
    return pair;
  }

  // A message goes at once if it can. A link that is not there yet is made on its own thread: made
  // here, in the order of the calls, ranks that send to each other would wait in a circle.
  c10::intrusive_ptr<RingWork> enqueue(Call call, const Wish& wish, Milliseconds timeout,
                                       bool collective) {
    const c10::Device device = call.device;
    const c10::DeviceGuard device_guard(device);
    const c10::impl::VirtualGuardImpl impl(device.type());
    std::vector<Transfer> transfers = std::exchange(call.transfers, {});
    // Empty ones are known to be empty at both ends.
    std::erase_if(transfers, [](const Transfer& t) { return t.buffer.numel() == 0; });
    std::vector<std::shared_ptr<Pair>> links;
    for (const Transfer& t : transfers) {
      links.push_back(pair_for(t, device));
      if (!links.back()->comm.connected(links.back()->device))
        check_not_captured(current_stream(device));
    }
    copy_all(std::exchange(call.copies, {}));  // a rank's own part, before all others
    for (const Transfer& t : transfers) {
      call.held.push_back(t.buffer);
      for (const Copy& copy : t.copies) call.held.push_back(copy.to);
    }
    auto called = std::make_shared<c10::Event>(device.type());
    called->record(impl.getStream(device));
    auto work = c10::make_intrusive<RingWork>(std::move(call), std::max(1, int(transfers.size())));
    if (transfers.empty()) work->end_part(nullptr);
    for (size_t i = 0; i < transfers.size(); ++i) {
      const std::shared_ptr<Pair>& pair = links[i];
      Task task = task_of(transfers[i], *pair, wish);
      task.timeout = timeout;
      const auto before = [called, pair, work] {
        called->block(pair->stream);
        work->follow(pair->comm.enqueued_on(pair->device), pair->comm.last_seq_on(pair->device));
      };
      const auto done = [work, pair, collective,
                         copies = transfers[i].copies](std::exception_ptr error) {
        const c10::StreamGuard guard(pair->stream);
        if (!error) copy_all(copies);
        work->end_part(error);
        if (collective) pair->note_launch();
      };
      if (pair->comm.connected(pair->device)) {
        std::exception_ptr error;
        try {
          pair->comm.run(pair->device, task, before);
        } catch (...) {
          error = std::current_exception();
        }
        done(error);
      } else {
        pair->comm.run_async(pair->device, task, done, before);
      }
      pair->note_call(collective);  // not before: what throws is never launched
    }
    return work;
  }

  // Pairs meet without rank 0, so this is a rule that all ranks have, and not a table.
  static Protocol protocol_of(const Wish& wish, c10::DeviceType device, int64_t bytes) {
    if (wish.protocol) return *wish.protocol;
    if (device != c10::DeviceType::CPU) return bytes < 32 << 10 ? Protocol::ll : Protocol::simple;
    return bytes < 512 ? Protocol::ll : bytes < 2048 ? Protocol::ll128 : Protocol::simple;
  }

  static Task task_of(const Transfer& transfer, const Pair& pair, const Wish& wish) {
    Task task;
    task.collective = Collective::send_recv;
    task.reduction.dtype = DType::u8;
    task.moved = moved_of(transfer.buffer.scalar_type());
    task.in = transfer.buffer.const_data_ptr();
    task.out = const_cast<void*>(task.in);
    task.count = int64_t(transfer.buffer.nbytes());
    task.protocol = protocol_of(wish, pair.where.type(), task.count);
    task.stream = pair.stream.native_handle();
    return task;
  }

  const std::shared_ptr<Store> store_;
  const std::string name_;
  const Seat seat_;
  const Milliseconds timeout_;
  const RankNames names_;
  OnFault on_fault_ = OnFault::by_device;
  std::atomic<bool> aborted_{false};  // by this rank, or closed
  Worker tellers_;
  const std::unique_ptr<cpu::Courier> courier_;
  std::mutex mutex_;
  std::map<Ends, std::shared_ptr<Pair>> pairs_;  // on CUDA
};

}  // namespace

std::unique_ptr<Carrier> make_messenger(std::shared_ptr<Store> store, std::string name, Seat seat,
                                        Milliseconds timeout, std::vector<int> numbers) {
  return std::make_unique<Messenger>(std::move(store), std::move(name), seat, timeout,
                                     std::move(numbers));
}

}  // namespace ringkern::torch_ext
