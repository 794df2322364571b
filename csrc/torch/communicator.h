// The communicator for torch: runs collectives on tensors, and returns Works.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/callers.h"
#include "torch/devices.h"
#include "torch/runner.h"
#include "torch/store.h"
#include "torch/tensors.h"
#include "torch/work.h"

namespace ringkern::torch_ext {

// The ring of one host.
class TorchCommunicator final : public Runner {
 public:
  // `numbers`: the numbers by which errors name the ranks; empty: the ranks' own.
  TorchCommunicator(std::shared_ptr<Store> store, std::string name, int rank, int ranks,
                    double timeout_s, std::vector<int> numbers = {});

  // Releases the GIL, with which Python frees this: callbacks of calls in flight need it to finish.
  ~TorchCommunicator() override;

  void set_roster(Roster roster) override { comm_->set_roster(std::move(roster)); }
  void set_on_fault(OnFault policy) override { on_fault_.set(policy); }
  void set_threads(int threads) override { threads_ = threads; }
  void set_orders(FindOrders find) override { find_orders_ = std::move(find); }
  void check_enqueued() override { comm_->check_enqueued(); }
  // Lets the work report failures of its calls on the device. The last of them was enqueued just
  // now.
  void follow(CallWork& work, c10::Device on) {
    const Device& device = device_on(on);
    work.follow(comm_->enqueued_on(device), comm_->last_seq_on(device));
  }
  // Sets the lists of a kind of device; before the first call on it.
  void set_table(const std::string& device, const WayTables::Lists& lists) override {
    tables_.set(device, lists);
  }

  // All-reduces a dense CPU tensor from `in` to `out`, once the ring is connected. Takes a tenth of
  // the time of submit(), because it keeps the GIL until a wait is long. Does nothing and returns
  // false for other tensors, and before the ring is connected. Called with the GIL.
  bool all_reduce_now(const at::Tensor& out, const at::Tensor& in, Op op,
                      const WayRequest& request) override {
    const at::TensorImpl& t = *out.unsafeGetTensorImpl();
    if (cpu_ == nullptr || !is_ordinary(t)) return false;
    if (!in.is_same(out) && !is_ordinary(*in.unsafeGetTensorImpl())) return false;
    const auto dtype = dtype_of(c10::typeMetaToScalarType(t.dtype()));
    if (!dtype || !accepts(op, kind_of(*dtype))) return false;
    Task task;
    task.reduction = Reduction::of(op, *dtype, ranks());
    task.count = t.numel();
    task.out = out.mutable_data_ptr();
    task.in = in.const_data_ptr();
    apply_request(task, request, c10::DeviceType::CPU);
    // A small call ends within microseconds; to release the GIL would take a good part of them.
    Rest rest{*this};
    task.rests = [](void* with) { static_cast<Rest*>(with)->begin(); };
    task.with = &rest;
    if (task.count * size_of(*dtype) > kKeepsGil) std::exchange(task.rests, nullptr)(task.with);
    bool done = false;
    try {
      done = comm_->run_now(*cpu_, task).has_value();
    } catch (...) {
      bump_version(out);  // the call may have written a part of it
      rest.rethrow();
      throw;
    }
    if (done) bump_version(out);
    rest.rethrow();
    return done;
  }

  at::Tensor sum_of(const at::Tensor& x, const WayRequest& request, RowNorm* norm) override;
  WayTables::Lists table(const std::string& device) override;
  std::pair<std::string, std::vector<std::string>> shared_memory() override;
  void shut_out(const std::vector<int>& members, Milliseconds patience) override {
    comm_->shut_out(members, patience);
  }
  WorkPtr submit(Call call, const CallOptions& options) override;

  // Connects the ranks on a device, as the first call on it would.
  void connect_on(c10::Device on);
  // See Communicator. `propose` is called without the GIL.
  std::vector<std::string> devices() { return comm_->devices(); }
  Regroup::Round gather(const std::vector<int>& excluded, double patience_s,
                        const Regroup::Propose& propose);
  bool conclude(const Regroup::Round& round, bool joined, double patience_s);
  std::shared_ptr<PageStore> meeting_of(const Regroup::Round& round) {
    return comm_->meeting_of(round);
  }

  // Runs a task on memory that the caller keeps, as submit() does, without the GIL.
  void run(c10::Device on, Task task, const WayRequest& request, Milliseconds timeout);
  // Call the functions of the Communicator with the same names.
  void check_open() { comm_->check_open(); }
  void check_callable() { comm_->check_callable(); }
  void give_up(const Fault& why) { comm_->give_up(why); }
  std::optional<Fault> trouble() override { return comm_->trouble(); }

  // Sets a function that the destructor calls first, with the GIL.
  void on_end(void (*tell)(const TorchCommunicator*)) { on_end_ = tell; }

  Callers& callers() override { return callers_; }
  int rank() const override { return comm_->rank(); }
  int ranks() const override { return comm_->ranks(); }
  Geometry geometry_on(c10::Device device) { return comm_->geometry_on(device_on(device)); }
  double timeout_s() const override { return seconds(comm_->timeout()); }
  bool failed() override { return comm_->failed(); }
  void abort(const std::string& reason) override { comm_->abort(reason); }
  void close(double patience_s) override { callers_.close(*comm_, patience_s); }

 private:
  // The state of a quick call after its first long wait has begun: the released GIL, and the
  // handling of signals.
  struct Rest {
    TorchCommunicator& communicator;
    std::optional<Callers::Scope> no_gil{};
    std::optional<Signals> signals{};

    void begin() {
      no_gil.emplace(communicator.callers_);
      signals.emplace(&communicator.callers_, communicator.aborter());
    }
    void rethrow() const {
      if (signals) signals->rethrow();
    }
  };

  uint64_t start(const Device& device, Task& task);
  WorkPtr submit_uninterrupted(Call call, const CallOptions& options);

  // Returns true for a contiguous CPU tensor with no dispatch keys but those of a plain one.
  static bool is_ordinary(const at::TensorImpl& t) {
    static constexpr c10::DispatchKeySet all(
        {c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradCPU,
         c10::DispatchKey::AutocastCPU});
    return (t.key_set() | all) == all && t.is_cpu() && t.is_contiguous();
  }

  // Returns the ring's Device for a torch device; makes it when first called for it.
  const Device& device_on(c10::Device device);

  void (*on_end_)(const TorchCommunicator*) = nullptr;
  Callers callers_;
  std::atomic<const Device*> cpu_{nullptr};  // set after the first call on it
  WayTables tables_;
  FindOrders find_orders_;
  FaultPolicy on_fault_;
  int threads_ = 1;
  std::mutex devices_mutex_;
  std::unordered_map<c10::Device, Device> devices_;  // outlives the communicator that uses them
  std::unique_ptr<Communicator> comm_;
};

}  // namespace ringkern::torch_ext
