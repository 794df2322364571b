// The base of the backend: the way of every call, and the state of the group. The calls themselves
// are in torch/backend.cpp.
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
  // `request`: of every call; `tables`: for what it leaves open, of each kind of device.
  // `global_ranks`: of the group, in the default one; none: this is the default one.
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

  // Calls between the two are made at once, and waited for as one.
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
  // Finishes what was called, but waits no longer than `patience`.
  void close(Milliseconds patience);

 protected:
  // A call that has not finished by then, when the group is destroyed, waits for a rank that will
  // not come.
  static constexpr Milliseconds kPatience{2000};

  template <class Options>
  Milliseconds timeout_of(const Options& o) const {
    return o.timeout.count() > 0 ? o.timeout : timeout_.load();
  }
  // Asks CUDA: torch's guard counts a device where there is none, once a fake tensor was made.
  static bool has_cuda();

  // Waits until CUDA has done what is enqueued on the current and side streams of every device of
  // this group's calls, since torch names the CPU if the group has it, and of the devices named.
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
    ++sequence_;  // not before: the other ranks count no call that this one could not make
    if (o.asyncOp) abort_by(*work, aborter());
    return noted(std::move(work));
  }
  template <class Options>
  WorkPtr between_pairs(Call call, const Options& o) {
    const Record record(group(), call, ++sequence_, o.asyncOp);
    WorkPtr work = post(std::move(call), kCollectiveTag | exchanges_, timeout_of(o));
    ++exchanges_;  // not before, either
    return noted(std::move(work));
  }
  WorkPtr deliver(Call call, int tag) {
    const Record record(group(), call, sequence_, true);
    return noted(post(std::move(call), uint64_t(tag), timeout_));
  }
  WorkPtr post(Call call, uint64_t tag, Milliseconds timeout);

  // Its name is known after the constructor has run.
  const GroupRecord& group() {
    if (at::hasCallbacks()) group_.name = getGroupUid(), group_.description = getGroupDesc();
    return group_;
  }

  void abort_for(const std::string& reason) {
    ring_->abort(reason);
    messenger_->abort(reason);
  }
  // Ends the calls that a signal interrupts.
  Abort aborter() {
    return [this](const std::string& reason) { abort_for(reason); };
  }

  WorkPtr noted(WorkPtr work);

  // Asynchronous calls run beside what the user enqueues, after what has been enqueued.
  c10::Stream side_stream(c10::Device device);

  const Seat seat_;
  GroupRecord group_;
  std::atomic<Milliseconds> timeout_;
  const WayRequest request_;
  const std::shared_ptr<Store> store_;
  std::atomic<uint64_t> sequence_{0};   // of collectives
  std::atomic<uint64_t> exchanges_{0};  // of those between pairs
  uint64_t monitored_barriers_ = 0;
  std::unique_ptr<Runner> ring_;
  std::unique_ptr<P2pRunner> messenger_;  // ends first: it may use what the ring has
  std::mutex mutex_;                      // guards what follows
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
  // Devices of calls, and the streams of asynchronous ones.
  std::unordered_map<c10::Device, std::shared_ptr<const c10::Stream>> cuda_;
};

}  // namespace ringkern::torch_ext
