// The base of the backend: the steps common to all calls, and the state of the group. The calls
// themselves are in torch/backend.cpp.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/checks.h"
#include "torch/devices.h"
#include "torch/open_backends.h"
#include "torch/record.h"
#include "torch/runner.h"
#include "torch/store.h"

namespace ringkern::torch_ext {

class BackendBase : public c10d::Backend {
 public:
  // `request`: the way that is asked for every call. `tables`: the lists for each kind of device,
  // from which a way is chosen where the request leaves it open. `global_ranks`: the group's ranks
  // in the default group; empty if this is the default group.
  BackendBase(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
              const std::vector<int64_t>& global_ranks, double timeout_s, const WayRequest& request,
              const std::map<std::string, WayTables::Lists>& tables, std::unique_ptr<Runner> ring,
              std::unique_ptr<P2pRunner> messenger);
  ~BackendBase() override {
    OpenBackends::all().remove(this);
    shutdown();
  }

  const std::string getBackendName() const override { return "ringkern"; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("ringkern", timeout_.load());
  }

  // endCoalescing() returns one work for all calls since startCoalescing().
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  void setSequenceNumberForGroup() override {}  // it starts at 0 on all ranks
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    if (timeout.count() <= 0) throw py::value_error("the timeout must be positive");
    timeout_ = timeout;
  }
  c10d::ErrorType getError() override {
    return ring_->failed() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
  }

  void abort() override { abort_for("the process group was aborted"); }
  void shutdown() override { close(kPatience); }
  // Lets the calls in flight finish, for at most `patience`, and closes the group.
  void close(Milliseconds patience);

 protected:
  // The patience of shutdown(). A call that has not finished by then waits for a rank that will not
  // come.
  static constexpr Milliseconds kPatience{2000};

  template <class Options>
  Milliseconds timeout_of(const Options& o) const {
    return o.timeout.count() > 0 ? o.timeout : timeout_.load();
  }
  // Returns true if there is a CUDA device. Asks CUDA itself, because torch's guard counts a device
  // where there is none, once a fake tensor has been made.
  static bool has_cuda();

  // Waits until CUDA has finished the work on the current and side streams of the devices that `o`
  // names and of every device that this group has made calls on. The latter are needed because
  // torch names the CPU if the group has it.
  void wait_for_devices(const c10d::BarrierOptions& o);

  Call begin(c10d::OpType type, const char* title, const Tensors& ins, Tensors outs);

  template <class Options>
  WorkPtr over_ring(Call call, const Options& o) {
    const Record record(group(), call, sequence_ + 1, o.asyncOp);
    std::optional<c10::Stream> stream;
    if (!call.device.is_cpu() && o.asyncOp) stream = side_stream(call.device);
    WorkPtr work = called_by_torch([&] {
      return interruptible(this, aborter(), [&] {
        return ring_->submit(std::move(call), {request_, o.asyncOp, timeout_of(o), stream});
      });
    });
    ++sequence_;  // not before: other ranks do not count a call that failed here
    if (o.asyncOp) abort_by(*work, aborter());
    return noted(std::move(work));
  }
  template <class Options>
  WorkPtr between_pairs(Call call, const Options& o) {
    const Record record(group(), call, ++sequence_, o.asyncOp);
    WorkPtr work = post(std::move(call), kCollectiveTag | exchanges_, timeout_of(o));
    ++exchanges_;  // not before, for the same reason
    return noted(std::move(work));
  }
  WorkPtr deliver(Call call, int tag) {
    const Record record(group(), call, sequence_, true);
    return noted(post(std::move(call), uint64_t(tag), timeout_));
  }
  WorkPtr post(Call call, uint64_t tag, Milliseconds timeout);

  // Returns the record of the group. Sets its name here, because the constructor does not know it.
  const GroupRecord& group() {
    if (at::hasCallbacks()) group_.name = getGroupUid(), group_.description = getGroupDesc();
    return group_;
  }

  void abort_for(const std::string& reason) {
    ring_->abort(reason);
    messenger_->abort(reason);
  }
  // Returns a function that ends the calls that a signal interrupts.
  Abort aborter() {
    return [this](const std::string& reason) { abort_for(reason); };
  }

  WorkPtr noted(WorkPtr work);

  // Returns the stream of asynchronous calls. It waits for the work that the user has enqueued so
  // far, and runs beside the work that the user enqueues later.
  c10::Stream side_stream(c10::Device device);

  const Seat seat_;
  GroupRecord group_;
  std::atomic<Milliseconds> timeout_;
  const WayRequest request_;
  const std::shared_ptr<Store> store_;
  std::atomic<uint64_t> sequence_{0};   // of collectives
  std::atomic<uint64_t> exchanges_{0};  // of collectives between pairs
  uint64_t monitored_barriers_ = 0;
  std::unique_ptr<Runner> ring_;
  std::unique_ptr<P2pRunner> messenger_;  // destroyed first: it may use the ring
  std::mutex mutex_;                      // guards what follows
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
  // The devices of calls, each with the stream of its asynchronous calls; null: no such call yet.
  std::unordered_map<c10::Device, std::shared_ptr<const c10::Stream>> cuda_;
};

}  // namespace ringkern::torch_ext
