// Messages between pairs of ranks on CUDA: launches over links that are made when they are first
// needed. On a CPU: cpu/courier.h.
//
// A message waits for the one before it in its direction on the host, and never in a stream. So what
// is launched begins at once. What waits for a peer in a stream would hold up all that is behind it
// in a hardware queue, among it what the peer waits for.
#pragma once

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/worker.h"
#include "torch/calls.h"
#include "torch/devices.h"
#include "torch/work.h"

namespace ringkern::torch_ext {

class DeviceMessenger {
 public:
  // `elsewhere`: runs the callbacks of futures.
  DeviceMessenger(std::shared_ptr<Store> store, std::string name, Seat seat, Milliseconds timeout,
                  RankNames names, RingWork::Elsewhere elsewhere)
      : store_(std::move(store)), name_(std::move(name)), seat_(seat), timeout_(timeout),
        names_(std::move(names)), elsewhere_(std::move(elsewhere)) {}

  void set_on_fault(OnFault policy) { on_fault_ = policy; }

  // A message goes at once where its direction is idle.
  c10::intrusive_ptr<RingWork> post(Call call, const Wish& wish, Milliseconds timeout,
                                    bool collective) {
    const c10::Device device = call.device;
    const c10::DeviceGuard device_guard(device);
    const c10::Stream user = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    std::vector<Transfer> transfers = std::exchange(call.transfers, {});
    // Empty ones are known to be empty at both ends.
    std::erase_if(transfers, [](const Transfer& t) { return t.buffer.numel() == 0; });
    std::vector<std::shared_ptr<Pair>> links;
    for (const Transfer& t : transfers) {
      links.push_back(pair_for(t, device));
      if (!links.back()->connected()) check_not_captured(user.native_handle());
    }
    copy_all(std::exchange(call.copies, {}));  // a rank's own part, before all others
    for (const Transfer& t : transfers) {
      call.held.push_back(t.buffer);
      for (const Copy& copy : t.copies) call.held.push_back(copy.to);
    }
    auto called = std::make_shared<c10::Event>(device.type());
    called->record(user);
    auto work = c10::make_intrusive<RingWork>(std::move(call), std::max(1, int(transfers.size())),
                                              elsewhere_);
    if (transfers.empty()) work->end_part(nullptr);
    std::vector<Message> messages;
    for (size_t i = 0; i < transfers.size(); ++i) {
      Task task = task_of(transfers[i], *links[i], wish);
      task.timeout = timeout;
      messages.push_back({links[i], task, transfers[i].copies, called, work, collective});
    }
    if (captured(user.native_handle())) capture(std::move(messages));
    else enqueue(std::move(messages));
    return work;
  }

  void abort(const std::string& reason) {
    for (const auto& pair : pairs()) pair->comm.abort(reason);
  }
  void close(Milliseconds patience) {
    const auto end = Clock::now() + patience;
    if (!later_.drain(patience)) {
      for (const auto& pair : pairs())
        pair->comm.abort(names_.text(seat_.rank) + " closed it before its calls had finished");
      later_.drain();
    }
    for (const auto& pair : pairs()) {
      const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
      pair->comm.close(std::max(left, Milliseconds(0)));
    }
  }
  void check_enqueued() {
    for (const auto& pair : pairs()) pair->comm.check_enqueued();
  }
  // Waits no longer than the calls do, which end at their deadlines.
  void wait_for_exchanges() {
    for (const auto& pair : pairs()) {
      std::unique_lock lock(mutex_);
      if (pair->ends_in_message) continue;
      Pause pause;
      while (!pair->waiting.empty() || !pair->idle()) pause.take(changed_, lock);
      lock.unlock();
      pair->stream.synchronize();
    }
  }

 private:
  using Ends = std::pair<int, int>;  // from, to
  using State = EnqueuedCalls::State;
  struct Pair;

  struct Message {
    std::shared_ptr<Pair> pair;
    Task task;
    Copies copies;  // that bring what has come to the user's tensor
    std::shared_ptr<c10::Event> called;
    c10::intrusive_ptr<RingWork> work;
    bool collective = false;  // a part of one
  };

  // A ring of two, of which one only sends. Each direction has its own, so that ranks that send to
  // each other first do not wait for each other.
  struct Pair {
    Pair(c10::Device d, const std::shared_ptr<Store>& store, const std::string& name, int place,
         Milliseconds timeout, OnFault policy, RankNames names)
        : where(d), device(pair_device_for(d, place, timeout, policy)), stream(make_stream(d)),
          comm(store, name, place, 2, timeout, std::move(names)) {}

    bool connected() { return comm.connected(device); }

    const c10::Device where;
    const Device device;
    const c10::Stream stream;
    // Guarded by the messenger's mutex:
    std::deque<Message> waiting;  // for the one before
    bool launching = false;       // by a thread, without the mutex
    std::shared_ptr<EnqueuedCalls>
        on;                       // where the last message is; null: it is known to have ended
    uint64_t seq = 0;             // and its number there
    std::optional<Message> rest;  // the last message, which is to be copied from its buffer
    bool ends_in_message = true;  // the last call is a message
    Communicator comm;            // ends before what it uses

    // Whether the device has done the last message, and nothing is left to be done for it.
    bool idle() {
      if (launching) return false;
      return !rest && (!on || on->state_of(seq) != State::under_way);
    }
  };

  // Of a thread that looks now and then what a device has done: as long as an eighth of the time
  // that it has waited already.
  class Pause {
   public:
    void take(std::condition_variable& changed, std::unique_lock<std::mutex>& lock) const {
      constexpr Clock::duration least = std::chrono::microseconds(5), most = Milliseconds(1);
      changed.wait_for(lock, std::clamp((Clock::now() - since_) / 8, least, most));
    }
    void begin() { since_ = Clock::now(); }

   private:
    Clock::time_point since_ = Clock::now();
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
    if (pairs_.empty()) later_.post([] {}, [] {});  // or throws: from then on it has a thread
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

  // Pairs meet without rank 0, so the protocol is a rule that all ranks have, and not a table.
  static Task task_of(const Transfer& transfer, const Pair& pair, const Wish& wish) {
    Task task;
    task.collective = Collective::send_recv;
    task.reduction.dtype = DType::u8;
    task.moved = moved_of(transfer.buffer.scalar_type());
    task.in = transfer.buffer.const_data_ptr();
    task.out = const_cast<void*>(task.in);
    task.count = int64_t(transfer.buffer.nbytes());
    task.protocol = wish.protocol.value_or(task.count < 32 << 10 ? Protocol::ll : Protocol::simple);
    task.stream = pair.stream.native_handle();
    return task;
  }

  void enqueue(std::vector<Message> messages) {
    std::vector<Message> now;
    {
      std::lock_guard lock(mutex_);
      for (Message& m : messages) {
        Pair& pair = *m.pair;
        pair.ends_in_message = !m.collective;
        if (pair.waiting.empty() && pair.idle()) {
          pair.launching = true;
          now.push_back(std::move(m));
        } else {
          pair.waiting.push_back(std::move(m));
          launch_later();
        }
      }
    }
    for (Message& m : now) launch(std::move(m));
  }

  // In a graph nothing waits on the host, and messages follow each other in the stream. They come
  // behind those that wait, as on the other rank.
  void capture(std::vector<Message> messages) {
    for (Message& m : messages) {
      {
        std::unique_lock lock(mutex_);
        Pause pause;
        while (!m.pair->waiting.empty() || m.pair->launching) pause.take(changed_, lock);
      }
      end(m, run(m, [called = m.called, pair = m.pair] { called->block(pair->stream); }));
    }
  }

  // With the lock: sees that a thread launches what waits.
  void launch_later() {
    if (!std::exchange(launches_later_, true)) later_.post([this] { launch_all(); }, [] {});
  }

  void launch_all() {
    std::unique_lock lock(mutex_);
    for (Pause pause;;) {
      std::vector<Message> rests, ready;
      bool some = false;
      for (const auto& [ends, pair] : pairs_) {
        if (pair->rest && pair->on->state_of(pair->seq) != State::under_way) {
          if (pair->on->state_of(pair->seq) == State::failed) pair->rest->copies.clear();
          pair->launching = true;
          rests.push_back(*std::exchange(pair->rest, {}));
        } else if (!pair->waiting.empty() && pair->idle()) {
          pair->launching = true;
          ready.push_back(std::move(pair->waiting.front()));
          pair->waiting.pop_front();
        }
        some = some || pair->rest || !pair->waiting.empty();
      }
      if (!rests.empty() || !ready.empty()) {
        lock.unlock();
        for (Message& m : rests) end(m, nullptr), note_end(*m.pair);
        for (Message& m : ready) launch(std::move(m));
        rests.clear(), ready.clear();
        lock.lock();
        pause.begin();
      } else if (some) {
        pause.take(changed_, lock);
      } else {
        launches_later_ = false;
        return;
      }
    }
  }

  // A link that is not there yet is made on its own thread: made here, in the order of the calls,
  // ranks that send to each other would wait in a circle.
  void launch(Message m) {
    if (m.pair->connected()) {
      const std::exception_ptr error = run(m, before_launch(m));
      return note_launch(std::move(m), error);
    }
    Pair& pair = *m.pair;
    const auto before = before_launch(m);
    auto done = [this, m](std::exception_ptr error) mutable { note_launch(std::move(m), error); };
    try {
      pair.comm.run_async(pair.device, m.task, std::move(done), before);
    } catch (...) {
      note_launch(std::move(m), std::current_exception());
    }
  }

  static std::exception_ptr run(const Message& m, const std::function<void()>& before) {
    try {
      m.pair->comm.run(m.pair->device, m.task, before);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  static std::function<void()> before_launch(const Message& m) {
    return [called = m.called, pair = m.pair, work = m.work] {
      called->block(pair->stream);
      pair->on = pair->comm.enqueued_on(pair->device);
      pair->seq = pair->comm.last_seq_on(pair->device);
      work->follow(pair->on, pair->seq);
    };
  }

  void note_launch(Message m, std::exception_ptr error) {
    Pair& pair = *m.pair;
    // Of a collective the ranks call alike, and its copies may wait in the stream.
    const bool rests = !error && !m.collective && !m.copies.empty();
    if (!rests) end(m, error);
    std::lock_guard lock(mutex_);
    pair.launching = false;
    if (error) pair.on = nullptr;
    if (rests) {
      pair.rest = std::move(m);
      launch_later();
    }
    changed_.notify_all();
  }
  void note_end(Pair& pair) {
    std::lock_guard lock(mutex_);
    pair.launching = false;
    changed_.notify_all();
  }

  static void end(const Message& m, std::exception_ptr error) {
    const c10::StreamGuard guard(m.pair->stream);
    if (!error) copy_all(m.copies);
    m.work->end_part(error);
  }

  static bool captured([[maybe_unused]] void* stream) {
#if RK_WITH_CUDA
    return cuda::capture_of(static_cast<cudaStream_t>(stream)) != 0;
#else
    return false;
#endif
  }

  const std::shared_ptr<Store> store_;
  const std::string name_;
  const Seat seat_;
  const Milliseconds timeout_;
  const RankNames names_;
  const RingWork::Elsewhere elsewhere_;
  OnFault on_fault_ = OnFault::by_device;
  std::mutex mutex_;
  std::condition_variable changed_;  // what pairs have, but for what a device does
  std::map<Ends, std::shared_ptr<Pair>> pairs_;
  bool launches_later_ = false;  // a thread does
  Worker later_;                 // launches what waits
};

}  // namespace ringkern::torch_ext
