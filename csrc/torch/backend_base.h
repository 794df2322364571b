// The base of the backend: the steps common to all calls, and the state of the group, whose ranks
// may change (torch/reconfigure.cpp). The calls themselves are in torch/backend.cpp.
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
#include "torch/collectives.h"
#include "torch/devices.h"
#include "torch/open_backends.h"
#include "torch/record.h"
#include "torch/runner.h"
#include "torch/store.h"

namespace ringkern::torch_ext {

// The parts of a backend that serve its present ranks.
struct Members {
  std::shared_ptr<Runner> ring{};
  std::shared_ptr<P2pRunner> messenger{};  // destroyed first: it may use the ring
  std::vector<Process> processes{};        // by rank; those that this rank can see
};

// A rank's place among the ranks of a group.
struct Place {
  Seat seat{};
  std::vector<int64_t> global_ranks{};  // in the default group; empty if this is the default group
  StorePtr store{};                     // in which the ranks meet
  std::string renewal{};  // differs from that of the ranks before; empty for the first

  int64_t global_rank(int rank) const {
    return global_ranks.empty() ? rank : global_ranks[size_t(rank)];
  }
};

// The object of Python that makes the parts of a backend (ringkern/backend.py). Takes the GIL.
class Maker {
 public:
  explicit Maker(std::shared_ptr<py::object> object) : object_(std::move(object)) {}
  // Waits until all ranks have come. `known`: the processes of the ranks, where they are known.
  Members make(const Place& place, const std::vector<Process>& known, Milliseconds timeout) const;
  // Ends what Python has made over the ranks before. `kept`: those of them that go on.
  void end_others(const std::vector<int>& kept, Milliseconds timeout) const;

 private:
  const std::shared_ptr<py::object> object_;
};

class BackendBase : public c10d::Backend {
 public:
  // `request`: the way that is asked for every call. `members`: empty if the ranks are not known
  // yet.
  BackendBase(const Place& place, double timeout_s, const WayRequest& request, Maker maker,
              Members members);
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
  c10d::ErrorType getError() override;
  bool supportsShrinking() const override { return true; }

  // ---- Changes of the ranks (torch/reconfigure.cpp)

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }
  // Returns "RANK:ATTEMPTS:PROCESS": the first rank of this process in the default group, the
  // number of calls of reconfigure(), and a text that no other process has.
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  WorkPtr reconfigure(const c10d::ReconfigureOptions& o) override;
#endif
  const std::string& renewal() const { return place_.renewal; }

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

  // Throws UsageError if the ranks are not known yet.
  void check_members() const {
    if (ring_ == nullptr) throw_no_members();
  }
  Call begin(c10d::OpType type, const char* title, const Tensors& ins, Tensors outs);

  template <class Options>
  WorkPtr over_ring(Call call, const Options& o) {
    if (request_.tree) reduce_by_tree(call, seat());
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
    const Members now = members();
    if (now.ring == nullptr) return;
    now.ring->abort(reason);
    now.messenger->abort(reason);
  }
  // Returns a function that ends the calls that a signal interrupts.
  Abort aborter() {
    return [this](const std::string& reason) { abort_for(reason); };
  }

  WorkPtr noted(WorkPtr work);

  // Returns the stream of asynchronous calls. It waits for the work that the user has enqueued so
  // far, and runs beside the work that the user enqueues later.
  c10::Stream side_stream(c10::Device device);

  // Returns the parts, which another thread may need while the ranks change.
  Members members() const {
    std::lock_guard lock(changing_);
    return {ring_, messenger_};
  }
  [[noreturn]] static void throw_no_members();
  // Makes the parts for other ranks, once these have come. `before`: by rank, its present rank; -1:
  // it has none.
  Members meet(const Place& place, const std::vector<int>& before, Milliseconds timeout);
  // Makes the backend one of other ranks, with the parts for them.
  void become(const Place& place, Members members);
  // For ranks that do not go on with the others: ends their calls, and makes the tensors of this
  // process inaccessible to them. `kept`: those of the present ranks that go on.
  void part_from_others(const std::vector<int>& kept);

  const Seat& seat() const { return place_.seat; }
  // Return the ranks that are left without these, and their place.
  std::vector<int> ranks_without(const std::vector<int64_t>& excluded) const;
  Place place_without(const std::vector<int64_t>& excluded) const;
  static std::string new_process();

  Place place_;
  GroupRecord group_;
  std::atomic<Milliseconds> timeout_;
  const WayRequest request_;
  const Maker maker_;
  const Place first_;
  std::atomic<uint64_t> sequence_{0};   // of collectives
  std::atomic<uint64_t> exchanges_{0};  // of collectives between pairs
  uint64_t monitored_barriers_ = 0;
  const std::string process_ = new_process();  // no other process has this text
  std::vector<std::string> names_;             // such texts, by rank; empty: not known
  std::vector<Process> processes_;             // by rank
  uint64_t attempts_ = 0;                      // calls of reconfigure()
  mutable std::mutex changing_;                // guards changes of these two
  std::shared_ptr<Runner> ring_;
  std::shared_ptr<P2pRunner> messenger_;  // destroyed first: it may use the ring
  Members before_;    // of the ranks before: another thread may be about to return from a call
  std::mutex mutex_;  // guards what follows
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
  // The devices of calls, each with the stream of its asynchronous calls; null: no such call yet.
  std::unordered_map<c10::Device, std::shared_ptr<const c10::Stream>> cuda_;
};

}  // namespace ringkern::torch_ext
