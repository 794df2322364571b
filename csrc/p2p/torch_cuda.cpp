#include "p2p/torch_cuda.h"

namespace ringkern::torch_ext {

DeviceP2p::DeviceP2p(std::shared_ptr<Store> store, std::string name, Seat seat,
                     Milliseconds timeout, RankNames names, CallWork::Elsewhere elsewhere)
    : store_(std::move(store)), name_(std::move(name)), seat_(seat), timeout_(timeout),
      names_(std::move(names)), elsewhere_(std::move(elsewhere)) {}

c10::intrusive_ptr<CallWork> DeviceP2p::post(Call call, const WayRequest& request,
                                             Milliseconds timeout, bool collective) {
  const c10::Device device = call.device;
  const c10::DeviceGuard device_guard(device);
  const c10::Stream user = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  std::vector<Transfer> transfers = std::exchange(call.transfers, {});
  // Empty transfers need no message: both ends know that they are empty.
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
  auto work = c10::make_intrusive<CallWork>(std::move(call), std::max(1, int(transfers.size())),
                                            elsewhere_);
  if (transfers.empty()) work->end_part(nullptr);
  std::vector<Message> messages;
  for (size_t i = 0; i < transfers.size(); ++i) {
    Task task = task_of(transfers[i], request);
    task.timeout = timeout;
    const Transfer& t = transfers[i];
    const int ahead = t.sends ? t.peer - seat_.rank : seat_.rank - t.peer;
    const int distance = (ahead + seat_.ranks) % seat_.ranks;
    messages.push_back({links[i], task, t.copies, called, work, collective, distance});
  }
  const bool captured = is_captured(user.native_handle());
  {
    std::lock_guard lock(mutex_);
    for (const Message& m : messages) m.pair->ends_in_message = !collective;
    if (holds_ && !captured) {
      held_.insert(held_.end(), messages.begin(), messages.end());
      return work;
    }
  }
  launch(std::move(messages), captured);
  return work;
}

void DeviceP2p::hold() {
  release();  // of a group that an error has left open
  std::lock_guard lock(mutex_);
  holds_ = true;
}

void DeviceP2p::release() {
  std::vector<Message> messages;
  {
    std::lock_guard lock(mutex_);
    holds_ = false;
    messages.swap(held_);
  }
  launch(std::move(messages), /*captured=*/false);
}

void DeviceP2p::close(Milliseconds patience) {
  release();
  const auto end = Clock::now() + patience;
  while (under_way() && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
  if (under_way())
    abort(names_.text(seat_.rank) + " closed the group before its messages had finished");
  // A launcher knows only its last launch, which an abort may end before the previous one.
  for (const LanePtr& lane : lanes()) lane->stream.synchronize();
  for (const auto& pair : pairs()) {
    const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
    pair->comm.close(std::max(left, Milliseconds(0)));
  }
}

void DeviceP2p::wait_for_exchanges() {
  for (const auto& pair : pairs()) {
    std::unique_lock lock(mutex_);
    if (pair->ends_in_message) continue;
    launched_.wait(lock, [&] { return pair->to_launch == 0; });
    const auto last = pair->last;
    lock.unlock();
    if (last) last->synchronize();
  }
}

std::vector<std::shared_ptr<DeviceP2p::Pair>> DeviceP2p::pairs() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Pair>> all;
  for (const auto& [ends, pair] : pairs_) all.push_back(pair);
  return all;
}

std::shared_ptr<DeviceP2p::Pair> DeviceP2p::pair_for(const Transfer& transfer, c10::Device device) {
  const Ends ends =
      transfer.sends ? Ends{seat_.rank, transfer.peer} : Ends{transfer.peer, seat_.rank};
  std::lock_guard lock(mutex_);
  auto& pair = pairs_[ends];
  if (!pair) {
    const std::string name =
        name_ + "/" + std::to_string(ends.first) + ">" + std::to_string(ends.second);
    const RankNames both{{names_.number(ends.first), names_.number(ends.second)}};
    pair = std::make_shared<Pair>(device, store_, name, transfer.sends ? 0 : 1, timeout_, on_fault_,
                                  both);
  }
  if (pair->where != device)
    throw py::value_error("tensor is on " + device.str() + ", and rank " +
                          std::to_string(transfer.peer) + " exchanges tensors on " +
                          pair->where.str() + " with this rank; use one device for a pair");
  return pair;
}

Task DeviceP2p::task_of(const Transfer& transfer, const WayRequest& request) {
  Task task;
  task.collective = Collective::send_recv;
  task.reduction.dtype = DType::u8;
  task.moved = moved_of(transfer.buffer.scalar_type());
  task.in = transfer.buffer.const_data_ptr();
  task.out = const_cast<void*>(task.in);
  task.count = int64_t(transfer.buffer.nbytes());
  task.protocol =
      request.protocol.value_or(task.count < 32 << 10 ? Protocol::ll : Protocol::simple);
  return task;
}

void DeviceP2p::launch(std::vector<Message> messages, bool captured) {
  std::ranges::stable_sort(messages, {}, &Message::distance);
  for (const Message& m : messages) {
    std::lock_guard lock(mutex_);
    ++m.pair->to_launch;
  }
  std::vector<Message> ready;
  for (Message& m : messages) {
    const bool again = std::ranges::any_of(ready, [&](auto& r) { return r.pair == m.pair; });
    if (ready.size() == size_t(LaunchBatch::kMost) || (again && captured))
      launch_together(std::exchange(ready, {}), captured);
    if (m.pair->connected()) ready.push_back(std::move(m));
    else connect_and_launch(std::move(m));
  }
  if (!ready.empty()) launch_together(std::move(ready), captured);
}

void DeviceP2p::launch_together(std::vector<Message> messages, bool captured) {
  std::lock_guard in_order(launching_);
  Pair& first = *messages[0].pair;
  if (captured && !first.in_graphs) first.in_graphs = own_stream(first.where);
  const LanePtr lane = captured ? std::make_shared<Lane>(first.in_graphs) : idle_lane(first.where);
  LaunchBatch batch(lane->stream.native_handle());
  batch.beside = blocks_beside(*lane);
  for (const Message& m : messages) m.called->block(lane->stream);
  std::vector<std::exception_ptr> errors(messages.size());
  std::vector<Numbered> calls(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    Message& m = messages[i];
    m.task.batch = &batch;
    m.task.stream = lane->stream.native_handle();
    errors[i] = error_in(
        [&] { m.pair->comm.run(m.pair->device, m.task, [&] { calls[i] = number_of(m); }); });
  }
  const std::exception_ptr failed = error_in([&] { batch.launch(); });
  for (size_t i = 0; i < messages.size(); ++i) {
    if (failed && !errors[i]) {
      errors[i] = failed;
      messages[i].pair->comm.abort("a message to or from it could not be launched");
    }
    if (!errors[i] && !captured) note_call(*lane, calls[i], batch.blocks);
    end(messages[i], lane->stream, errors[i]);
  }
}

void DeviceP2p::connect_and_launch(Message m) {
  const LanePtr lane = idle_lane(m.pair->where);
  const auto batch = std::make_shared<LaunchBatch>(lane->stream.native_handle());
  batch->at_once = true;
  batch->beside = blocks_beside(*lane);
  m.task.batch = batch.get();
  m.task.stream = lane->stream.native_handle();
  const auto call = std::make_shared<Numbered>();
  const auto before = [m, lane, call] {
    m.called->block(lane->stream);
    *call = number_of(m);
  };
  const auto done = [this, m, lane, batch, call](std::exception_ptr error) {
    if (!error) note_call(*lane, *call, batch->blocks);
    end(m, lane->stream, error);
  };
  const auto error =
      error_in([&] { m.pair->comm.run_async(m.pair->device, m.task, done, before); });
  if (error) end(m, lane->stream, error);
}

DeviceP2p::Numbered DeviceP2p::number_of(const Message& m) {
  const Numbered call{m.pair->comm.enqueued_on(m.pair->device),
                      m.pair->comm.last_seq_on(m.pair->device)};
  m.work->follow(call.first, call.second);
  return call;
}

void DeviceP2p::end(const Message& m, const c10::Stream& stream, std::exception_ptr error) {
  const c10::StreamGuard guard(stream);
  if (!error) copy_all(m.copies);
  m.work->end_part(error);
  std::shared_ptr<c10::Event> last;
  if (m.collective) {
    last = std::make_shared<c10::Event>(stream.device_type());
    last->record(stream);
  }
  std::lock_guard lock(mutex_);
  if (last) m.pair->last = std::move(last);
  --m.pair->to_launch;
  launched_.notify_all();
}

std::vector<DeviceP2p::LanePtr> DeviceP2p::lanes() {
  std::lock_guard lock(mutex_);
  return lanes_;
}

DeviceP2p::LanePtr DeviceP2p::idle_lane(c10::Device device) {
  std::lock_guard lock(mutex_);
  for (const LanePtr& lane : lanes_)
    if (lane->stream.device() == device && lane.use_count() == 1 && lane->idle()) return lane;
  return lanes_.emplace_back(std::make_shared<Lane>(own_stream(device)));
}

int DeviceP2p::blocks_beside(const Lane& mine) {
  std::lock_guard lock(mutex_);
  int blocks = 0;
  for (const LanePtr& lane : lanes_)
    if (lane.get() != &mine && lane->stream.device() == mine.stream.device() && !lane->idle())
      blocks += lane->blocks;
  return blocks;
}

void DeviceP2p::note_call(Lane& lane, const Numbered& call, int blocks) {
  std::lock_guard lock(mutex_);
  lane.calls.push_back(call);
  lane.blocks = blocks;
}

bool DeviceP2p::under_way() {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(lanes_, [](const LanePtr& lane) { return !lane->idle(); }) ||
         std::ranges::any_of(pairs_, [](auto& each) { return each.second->to_launch > 0; });
}

}  // namespace ringkern::torch_ext
