// Runs the transfers of a call: on a CPU by the p2p engine, on CUDA as launches.
#include "p2p/torch_p2p.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "comm/worker.h"
#include "p2p/engine.h"
#include "p2p/torch_cuda.h"
#include "torch/callers.h"

namespace ringkern::torch_ext {
namespace {

class OneHostP2p final : public P2pRunner {
 public:
  OneHostP2p(std::shared_ptr<Store> store, std::string name, Seat seat, Milliseconds timeout,
             std::vector<int> numbers)
      : engine_(std::make_unique<cpu::P2pEngine>(store, name + "/cpu", seat.rank, seat.ranks,
                                                 timeout, RankNames{numbers})),
        on_devices_(store, name, seat, timeout, RankNames{numbers}, elsewhere()) {}

  // On CUDA transfers are matched in order, and not by tags.
  WorkPtr post(Call call, uint64_t tag, const WayRequest& request, Milliseconds timeout) override {
    if (!call.device.is_cpu())
      return on_devices_.post(std::move(call), request, timeout, (tag & kCollectiveTag) != 0);
    const std::vector<Transfer> transfers = call.transfers;
    auto work = c10::make_intrusive<CallWork>(std::move(call), std::max(1, int(transfers.size())),
                                              elsewhere());
    if (transfers.empty()) work->end_part(nullptr);
    std::vector<cpu::Message> messages;
    for (const Transfer& t : transfers) {
      cpu::Message m;
      m.sends = t.sends;
      m.peer = t.peer;
      m.tag = tag;
      m.bytes = int64_t(t.buffer.nbytes());
      m.dtype = moved_of(t.buffer.scalar_type());
      m.protocol = protocol_of(request, m.bytes);
      m.data = const_cast<void*>(t.buffer.const_data_ptr());  // only read in a send
      m.timeout = timeout;
      m.done = [this, work, sends = t.sends](std::exception_ptr error, int source) {
        if (!sends) work->set_source(source);
        work->end_part(error);
        if (const auto after = after_fault(on_fault_, c10::DeviceType::CPU); error && after)
          after(fault_of(error, -1), aborted_);
      };
      messages.push_back(std::move(m));
    }
    engine_->post(std::move(messages));
    return work;
  }

  void abort(const std::string& reason) override {
    aborted_ = true;
    engine_->abort(reason);
    on_devices_.abort(reason);
  }
  void close(Milliseconds patience) override {
    aborted_ = true;  // this rank ends the remaining transfers
    const auto end = Clock::now() + patience;
    engine_->close(patience);
    on_devices_.close(left_until(end));
    tellers_.drain(left_until(end));
  }
  void set_on_fault(OnFault policy) override {
    on_fault_.set(policy);
    on_devices_.set_on_fault(policy);
  }
  void hold() override { on_devices_.hold(); }
  void release() override { on_devices_.release(); }
  void check_enqueued() override { on_devices_.check_enqueued(); }
  void wait_for_exchanges() override { on_devices_.wait_for_exchanges(); }

 private:
  // A rule that all ranks have, and not rank 0's table: pairs meet without rank 0.
  static Protocol protocol_of(const WayRequest& request, int64_t bytes) {
    if (request.protocol) return *request.protocol;
    return bytes < 512 ? Protocol::ll : bytes < 2048 ? Protocol::ll128 : Protocol::simple;
  }

  // Runs callbacks on another thread: one may wait for the next message, which the calling thread
  // would have to move.
  CallWork::Elsewhere elsewhere() {
    return [this](std::function<void()> tell) { tellers_.post([] {}, std::move(tell)); };
  }
  static Milliseconds left_until(Clock::time_point end) {
    const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
    return std::max(left, Milliseconds(0));
  }

  FaultPolicy on_fault_;
  std::atomic<bool> aborted_{false};  // by this rank, or closed
  Worker tellers_;
  const std::unique_ptr<cpu::P2pEngine> engine_;
  DeviceP2p on_devices_;
};

}  // namespace

std::unique_ptr<P2pRunner> make_p2p(std::shared_ptr<Store> store, std::string name, Seat seat,
                                    Milliseconds timeout, std::vector<int> numbers) {
  return std::make_unique<OneHostP2p>(std::move(store), std::move(name), seat, timeout,
                                      std::move(numbers));
}

}  // namespace ringkern::torch_ext
