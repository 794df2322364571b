// Messages between pairs of ranks on CUDA: launches over links that are made on first use.
// p2p/engine.h has messages on a CPU.
//
// A message waits on the device for the previous one in its direction, and never in a stream
// (cuda/messages.cu), so that all launches begin at once. In a stream, a message that waits for a
// peer would hold up all work behind it in a hardware queue, possibly the work that the peer waits
// for.
#pragma once

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/callers.h"
#include "torch/checks.h"
#include "torch/devices.h"
#include "torch/work.h"

#if !RK_WITH_CUDA
namespace ringkern {
struct LaunchBatch {  // of nothing: there is no device
  static constexpr int kMost = 1;
  explicit LaunchBatch(void*) {}
  void launch() {}
  int beside = 0, blocks = 0;
  bool at_once = false;
};
}  // namespace ringkern
#endif

namespace ringkern::torch_ext {

class DeviceP2p {
 public:
  // `elsewhere`: runs the callbacks of futures.
  DeviceP2p(std::shared_ptr<Store> store, std::string name, Seat seat, Milliseconds timeout,
            RankNames names, CallWork::Elsewhere elsewhere);

  void set_on_fault(OnFault policy) { on_fault_.set(policy); }

  c10::intrusive_ptr<CallWork> post(Call call, const WayRequest& request, Milliseconds timeout,
                                    bool collective);
  // Messages that are posted between the two are launched together.
  void hold();
  void release();

  void abort(const std::string& reason) {
    for (const auto& pair : pairs()) pair->comm.abort(reason);
  }
  // A launch ends when all of its messages have ended. If one waits for ever, all must be aborted.
  void close(Milliseconds patience);
  void check_enqueued() {
    for (const auto& pair : pairs()) pair->comm.check_enqueued();
  }
  // Waits for the calls, which end at their deadlines.
  void wait_for_exchanges();

 private:
  using Ends = std::pair<int, int>;  // from, to
  using StreamPtr = std::shared_ptr<const c10::Stream>;
  struct Pair;

  struct Message {
    std::shared_ptr<Pair> pair;
    Task task;
    Copies copies;  // to the user's tensor, from the receive buffer
    std::shared_ptr<c10::Event> called;
    c10::intrusive_ptr<CallWork> work;
    bool collective = false;  // a part of one
    int distance = 0;         // from the sender to the receiver, in rank order
  };

  // A ring of two, in which only one rank sends. Each direction has its own ring, so that ranks
  // that send to each other first do not wait for each other.
  struct Pair {
    Pair(c10::Device d, const std::shared_ptr<Store>& store, const std::string& name, int place,
         Milliseconds timeout, const FaultPolicy& policy, RankNames names)
        : where(d), device(pair_device_for(d, place, timeout, policy)),
          comm(store, name, place, 2, timeout, std::move(names)) {}

    bool connected() { return comm.connected(device); }

    const c10::Device where;
    const Device device;
    // The stream in graphs. Messages follow each other in it, because a graph can be replayed.
    StreamPtr in_graphs;  // taken when the first message is captured
    // Guarded by DeviceP2p::mutex_:
    int to_launch = 0;
    std::shared_ptr<c10::Event> last;  // the end of the last message of a collective
    bool ends_in_message = true;       // the last call is a message
    Communicator comm;                 // destroyed before the objects that it uses
  };

  using Numbered = std::pair<std::shared_ptr<EnqueuedCalls>, uint64_t>;  // a call

  // A stream that ringkern owns, and the calls on it.
  struct Lane {
    explicit Lane(StreamPtr its) : own(std::move(its)), stream(*own) {}

    const StreamPtr own;
    const c10::Stream stream;
    std::vector<Numbered> calls;
    int blocks = 0;  // of the last launch

    bool idle() {
      std::erase_if(calls, [](const auto& call) {
        return call.first->state_of(call.second) != EnqueuedCalls::State::under_way;
      });
      return calls.empty();
    }
  };
  using LanePtr = std::shared_ptr<Lane>;

  std::vector<std::shared_ptr<Pair>> pairs();

  std::shared_ptr<Pair> pair_for(const Transfer& transfer, c10::Device device);

  // A rule instead of rank 0's table chooses the protocol: pairs meet without rank 0.
  static Task task_of(const Transfer& transfer, const WayRequest& request);

  // Launches the messages that have a link together. A missing link is made on a separate thread:
  // made here, in the order of the calls, ranks that send to each other would wait in a circle. The
  // order is the same on all ranks, because there may not be room for the blocks of all at once.
  void launch(std::vector<Message> messages, bool captured);

  void launch_together(std::vector<Message> messages, bool captured);

  void connect_and_launch(Message m);

  // Called when the message's call has its turn.
  static Numbered number_of(const Message& m);

  void end(const Message& m, const c10::Stream& stream, std::exception_ptr error);

  // ---- The streams

  std::vector<LanePtr> lanes();
  LanePtr idle_lane(c10::Device device);
  int blocks_beside(const Lane& mine);
  void note_call(Lane& lane, const Numbered& call, int blocks);
  bool under_way();

  template <class F>
  static std::exception_ptr error_in(F&& f) {
    try {
      f();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  const std::shared_ptr<Store> store_;
  const std::string name_;
  const Seat seat_;
  const Milliseconds timeout_;
  const RankNames names_;
  const CallWork::Elsewhere elsewhere_;
  FaultPolicy on_fault_;
  std::mutex launching_;  // keeps the launches of a pair in the order of its calls
  std::mutex mutex_;      // guards what follows
  std::condition_variable launched_;
  bool holds_ = false;
  std::vector<Message> held_;
  std::vector<LanePtr> lanes_;
  std::map<Ends, std::shared_ptr<Pair>> pairs_;
};

}  // namespace ringkern::torch_ext
