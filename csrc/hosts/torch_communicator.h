// A rank's membership in a group that spans several hosts: the ring inside its host, the engines
// between hosts, the order of calls, and the failures of both.
#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hosts/hosts.h"
#include "hosts/stages.h"
#include "hosts/store_channel.h"
#include "hosts/torch_engine.h"
#include "torch/communicator.h"

namespace ringkern::torch_ext {

class HostsCommunicator final : public Runner {
 public:
  // rail_bytes, stage_bytes and tree of an InterHostCost.
  using InterHostCosts = std::map<std::string, std::tuple<int64_t, int64_t, bool>>;

  // `make_engine(device, ranks, watched)`: a Python function that makes a backend over these ranks
  // of the group. `watched(prefix, store)`: a store that stops waiting if a rank is gone.
  // `inter_host_costs`: by kind of device; a missing entry has the defaults of InterHostCost.
  HostsCommunicator(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                    Hosts hosts, double timeout_s, py::object make_engine,
                    const InterHostCosts& inter_host_costs);

  // See the destructor of TorchCommunicator.
  ~HostsCommunicator() override;

  void set_roster(Roster roster) override {
    inner_->set_roster(roster.of(hosts_.ranks_on(hosts_.host())));
    roster_ = std::move(roster);
  }
  void set_on_fault(OnFault policy) override { inner_->set_on_fault(policy); }
  void set_threads(int threads) override { inner_->set_threads(threads); }
  void set_orders(FindOrders find) override { inner_->set_orders(std::move(find)); }
  void check_enqueued() override { inner_->check_enqueued(); }
  void set_table(const std::string& device, const WayTables::Lists& lists) override {
    inner_->set_table(device, lists);
  }
  // The table of the ring inside the host.
  WayTables::Lists table(const std::string& device) override { return inner_->table(device); }
  std::pair<std::string, std::vector<std::string>> shared_memory() override {
    return inner_->shared_memory();
  }
  void shut_out(const std::vector<int>& members, Milliseconds patience) override;
  at::Tensor sum_of(const at::Tensor& x, const WayRequest& request, RowNorm*) override {
    const at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
    all_reduce(out, c10d::ReduceOp::SUM, request, false);
    return out;
  }
  WorkPtr submit(Call call, const CallOptions& options) override;

  // Returns the engine over all ranks of the group; all of them must call this together.
  InterHostEngine& flat(c10::Device device);
  const Hosts& hosts() const { return hosts_; }
  // Listens to the failures that the ranks of the group tell each other.
  std::unique_ptr<StoreChannel::Listening> listen() const {
    return std::make_unique<StoreChannel::Listening>(channel_);
  }
  // Returns another channel between the same ranks, which does not affect the group.
  std::shared_ptr<StoreChannel> channel(const std::string& name) const {
    return std::make_shared<StoreChannel>(connector(store_), prefix_ + "/" + name, hosts_);
  }
  // Returns the first failure of the group that was told, if it has come here.
  std::optional<Fault> heard() const { return channel_.heard(); }
  // Calls this when such a failure comes, on a separate thread. Null: not any more; returns when no
  // call is running.
  void on_told(std::function<void(const Fault&)> call) {
    std::lock_guard lock(told_);
    on_told_ = std::move(call);
  }
  Callers& callers() override { return callers_; }
  int rank() const override { return hosts_.rank(); }
  int ranks() const override { return hosts_.ranks(); }
  double timeout_s() const override { return seconds(timeout_); }
  bool failed() override {
    std::lock_guard lock(state_);
    return failure_.has_value();
  }
  std::optional<Fault> trouble() override {
    std::lock_guard lock(state_);
    return failure_;
  }
  void abort(const std::string& reason) override;
  void close(double patience_s) override;
  // Returns how many calls this rank has completed and begun. Waits for the one in progress. Throws
  // UsageError if it is closed.
  std::pair<uint64_t, uint64_t> calls();

 private:
  // The end of a wait between hosts. `own`: this rank has found the fault, and asks the others
  // before it tells it; otherwise another rank has told it.
  struct Ended {
    Fault fault;
    bool own = false;
  };
  // The call that this rank is in.
  struct Now {
    c10::Device device = at::kCPU;
    Milliseconds timeout{0};
    CallAt call;  // none: the group is being made
    Clock::time_point since = Clock::now();
  };

  static constexpr Milliseconds kStoreAnswers{1000}, kCallsCome{600};
  // A wait that lasts this long may be for a rank that makes another call.
  static constexpr Milliseconds kLookAround{300};
  // Ranks that have waited for some seconds look for a status query once a second.
  static constexpr Milliseconds kStatusQuery{1500};
  // A wait between hosts ends after the waits inside a host, which know the missing rank.
  static constexpr Milliseconds kLater{500};

  std::unique_ptr<TorchCommunicator> inner_over(const c10::intrusive_ptr<c10d::Store>& store,
                                                double timeout_s) const;
  // Returns a function that makes a separate connection: a call on the other one may last as long
  // as the network is cut.
  static std::function<std::shared_ptr<Store>()> connector(
      const c10::intrusive_ptr<c10d::Store>& store) {
    return [store] { return std::make_shared<C10dStore>(store->clone()); };
  }
  std::string prefix_in(const c10::intrusive_ptr<c10d::Store>& store) const;

  WorkPtr submit_uninterrupted(Call call, const CallOptions& options);
  void run_tasks(const std::vector<Prepared>& tasks, const WayRequest& request,
                 Milliseconds timeout);
  void run_task(const Prepared& task, const WayRequest& request, Milliseconds timeout);
  InterHostEngine& flat_engine(c10::Device device);
  InterHostEngine& engine(c10::Device device, bool over_all);
  std::unique_ptr<InterHostEngine> make_engine_over(const std::vector<int>& ranks,
                                                    c10::Device device);
  void meet(const std::string& name, const std::vector<int>& ranks);
  // Waits for a work of an engine, and for anything else that ends the wait.
  void await(const WorkPtr& work);
  InterHostCost inter_host_cost_on(c10::Device device) const;
  static CallWords words_between_hosts(const Task& task, const WayRequest& request);
  std::optional<Fault> trouble_inside();
  std::optional<Fault> trouble_in_call();
  bool is_late(const std::optional<Fault>& inside) const;
  std::optional<Fault> told();
  void throw_if_over(Clock::time_point start);
  // Returns a function that looks, at most ten times a second, and throws Ended if one of these
  // ranks is gone before its first call.
  std::function<void()> look_for_gone(const std::vector<int>& ranks);
  void look_around_if_due(Clock::time_point start, Clock::time_point& due,
                          const std::function<bool()>& enough);
  using Query = std::vector<std::optional<CallsAt>>;
  std::optional<Fault> difference(const Query& roll) const;

  void check_callable();
  void check_healthy();
  bool in_callback() const;
  void end_in_callback();
  bool forked() const { return ::getpid() != born_in_; }
  Fault reason_of(std::exception_ptr error);
  Fault lost(const Fault& broken);
  Fault late();
  Fault differs(int rank, const CallAt& mine, const CallAt& theirs) const;
  Fault in_calls(const Fault& why);
  std::vector<int> absent(const Query& roll) const;
  std::string hosts_text(const std::vector<int>& which) const;
  // Returns a fault that this rank finds in its current call; `about`: another rank.
  Fault fault(Event event, int about = -1) const;
  Fault settle(const Fault& mine);
  // Reports an exception of a call as the first failure of this group.
  [[noreturn]] void fail(std::exception_ptr error);
  void leave_engines();

  const Hosts hosts_;
  const std::string name_;
  const Milliseconds timeout_;
  const InterHostCosts inter_host_costs_;
  const std::shared_ptr<py::object> make_engine_;
  const pid_t born_in_ = ::getpid();
  const std::unique_ptr<TorchCommunicator> inner_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string prefix_;  // in it
  std::mutex told_;           // guards what follows
  std::function<void(const Fault&)> on_told_;
  StoreChannel channel_;
  Roster roster_;
  Callers callers_;

  std::timed_mutex turn_;  // one call at a time
  Now now_;                // of the thread that has the turn
  uint64_t seq_ = 0;       // the last call that has begun
  uint64_t completed_ = 0;
  std::map<std::pair<c10::DeviceType, bool>, std::unique_ptr<InterHostEngine>> engines_;
  std::atomic<int> posted_{0};  // asynchronous calls that have not run
  std::unique_ptr<Worker> worker_;
  std::mutex state_;  // guards what follows
  std::optional<Fault> failure_;
  Clock::time_point failed_at_;
  bool closed_ = false;
};

}  // namespace ringkern::torch_ext
