// "ringkern" as a torch.distributed backend: c10d's calls become calls of torch/collectives.h and
// torch/exchanges.h, and are run over the ring or between pairs of ranks.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/communicator.h"
#include "torch/exchanges.h"
#include "torch/messenger.h"
#include "torch/monitored_barrier.h"
#include "torch/record.h"
#include "torch/sparse_sum.h"

namespace ringkern::torch_ext {

// The backends of this process, to be closed before the interpreter ends.
class OpenBackends {
 public:
  using Close = std::function<void(Milliseconds patience)>;

  // Never destroyed: torch may keep a backend for longer than statics live.
  static OpenBackends& all() {
    static auto* all = new OpenBackends;
    return *all;
  }
  void add(const void* backend, Close close) {
    std::lock_guard lock(mutex_);
    backends_.emplace(backend, std::move(close));
  }
  void remove(const void* backend) {
    std::lock_guard lock(mutex_);
    backends_.erase(backend);
  }
  void close(Milliseconds patience) {
    const WithoutGil no_gil;
    std::lock_guard lock(mutex_);
    for (const auto& [backend, close] : backends_) close(patience);
  }

 private:
  std::mutex mutex_;
  std::map<const void*, Close> backends_;
};

class RingBackend final : public c10d::Backend {
 public:
  // `name`: of the ring, in errors and records. `wish`: of every call; `tables`: for what it leaves
  // open, of each kind of device. `global_ranks`: of the group, in the default one; none: this is
  // the default one.
  RingBackend(c10::intrusive_ptr<c10d::Store> store, const std::string& name, int rank, int size,
              const std::vector<int64_t>& global_ranks, double timeout_s, const Wish& wish,
              const std::map<std::string, WayTables::Lists>& tables)
      : Backend(rank, size), seat_{rank, size},
        group_(group_record(rank, size, global_ranks)), timeout_(milliseconds(timeout_s)),
        wish_(wish), store_(std::make_shared<C10dStore>(store)),
        ring_(std::make_unique<TorchCommunicator>(store, name, rank, size, timeout_s)),
        messenger_(std::make_unique<Messenger>(store_, "backend/pairs", seat_, timeout_)) {
    for (const auto& [device, lists] : tables) ring_->set_table(device, lists);
    init();
    OpenBackends::all().add(this, [this](Milliseconds patience) { close(patience); });
  }
  ~RingBackend() override {
    OpenBackends::all().remove(this);
    shutdown();
  }

  const std::string getBackendName() const override { return "ringkern"; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("ringkern", timeout_.load());
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    Call call = begin(c10d::OpType::BROADCAST, "ringkern:broadcast", tensors, {t});
    add_broadcast(call, t, check_root(o.rootRank, o.rootTensor, seat_), seat_);
    return over_ring(std::move(call), o);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    if (t.defined() && t.is_sparse()) return allreduce_sparse(tensors, o);
    Call call = begin(c10d::OpType::ALLREDUCE, "ringkern:all_reduce", tensors, {t});
    add_all_reduce(call, t, op_of(o.reduceOp), seat_, "tensor");
    return over_ring(std::move(call), o);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& o) override {
    check_some(tensors.size(), "tensors");
    Call call = begin(c10d::OpType::ALLREDUCE_COALESCED, "ringkern:all_reduce", tensors, tensors);
    const OpCall op = op_of(o.reduceOp);
    for (size_t i = 0; i < tensors.size(); ++i)
      add_all_reduce(call, tensors[i], op, seat_, nth("tensors", i));
    return over_ring(std::move(call), o);
  }
  // Done when it returns.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& o) override;

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    Call call = begin(c10d::OpType::REDUCE, "ringkern:reduce", tensors, {t});
    const int root = check_root(o.rootRank, o.rootTensor, seat_);
    check_target(t, "tensor");
    add_reduce(call, t, t, op_of(o.reduceOp), root, seat_, "tensor");
    return over_ring(std::move(call), o);
  }

  WorkPtr allgather(std::vector<Tensors>& outs, Tensors& ins,
                    const c10d::AllgatherOptions& o) override {
    const at::Tensor& in = only_one(ins, "tensor");
    check_length(outs.size(), "the list of tensor_list", 1, "that of this rank");
    Call call = begin(c10d::OpType::ALLGATHER, "ringkern:all_gather", ins, outs.front());
    add_all_gather(call, outs.front(), in, seat_, "tensor_list");
    return over_ring(std::move(call), o);
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& o) override {
    Tensors ins{in};
    Call call = begin(c10d::OpType::_ALLGATHER_BASE, "ringkern:all_gather", ins, {out});
    add_all_gather(call, out, in, seat_);
    return over_ring(std::move(call), o);
  }
  // `outs`: of each rank, what it gave for each tensor.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outs, Tensors& ins,
                              const c10d::AllgatherOptions& o) override {
    check_some(ins.size(), "input_tensor_list");
    check_length(outs.size(), "output_tensor_lists", size_t(seat_.ranks));
    for (size_t r = 0; r < outs.size(); ++r)
      check_length(outs[r].size(), nth("output_tensor_lists", r), ins.size(),
                   "one for each of input_tensor_list");
    Call call = begin(c10d::OpType::ALLGATHER_COALESCED, "ringkern:all_gather", ins,
                      flattened(outs));
    for (size_t i = 0; i < ins.size(); ++i) {
      Tensors of_all;
      for (const Tensors& of_rank : outs) of_all.push_back(of_rank[i]);
      add_all_gather(call, of_all, ins[i], seat_, "output_tensor_lists");
    }
    return over_ring(std::move(call), o);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::AllgatherOptions& o) override {
    check_some(ins.size(), "input_tensors");
    check_length(outs.size(), "output_tensors", ins.size(), "one for each of input_tensors");
    Call call = begin(c10d::OpType::ALLGATHER_COALESCED, "ringkern:all_gather", ins, outs);
    for (size_t i = 0; i < ins.size(); ++i) add_all_gather(call, outs[i], ins[i], seat_);
    return over_ring(std::move(call), o);
  }

  WorkPtr reduce_scatter(Tensors& outs, std::vector<Tensors>& ins,
                         const c10d::ReduceScatterOptions& o) override {
    const at::Tensor& out = only_one(outs, "output");
    check_length(ins.size(), "the list of input_list", 1, "that of this rank");
    Call call = begin(c10d::OpType::REDUCE_SCATTER, "ringkern:reduce_scatter", ins.front(), outs);
    add_reduce_scatter(call, out, ins.front(), op_of(o.reduceOp), seat_, "input_list");
    return over_ring(std::move(call), o);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& o) override {
    Tensors ins{in};
    Call call = begin(c10d::OpType::_REDUCE_SCATTER_BASE, "ringkern:reduce_scatter", ins, {out});
    add_reduce_scatter(call, out, in, op_of(o.reduceOp), seat_);
    return over_ring(std::move(call), o);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::ReduceScatterOptions& o) override {
    check_some(ins.size(), "input_tensors");
    check_length(outs.size(), "output_tensors", ins.size(), "one for each of input_tensors");
    Call call = begin(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "ringkern:reduce_scatter", ins,
                      outs);
    const OpCall op = op_of(o.reduceOp);
    for (size_t i = 0; i < ins.size(); ++i)
      add_reduce_scatter(call, outs[i], ins[i], op, seat_);
    return over_ring(std::move(call), o);
  }

  WorkPtr gather(std::vector<Tensors>& outs, Tensors& ins, const c10d::GatherOptions& o) override {
    const at::Tensor& in = only_one(ins, "tensor");
    Call call = begin(c10d::OpType::GATHER, "ringkern:gather", ins, flattened(outs));
    add_gather(call, outs, in, check_root(o.rootRank, 0, seat_), seat_);
    return between_pairs(std::move(call), o);
  }
  WorkPtr scatter(Tensors& outs, std::vector<Tensors>& ins,
                  const c10d::ScatterOptions& o) override {
    const at::Tensor& out = only_one(outs, "tensor");
    const Tensors given = flattened(ins);
    Call call = begin(c10d::OpType::SCATTER, "ringkern:scatter", given, outs);
    add_scatter(call, out, ins, check_root(o.rootRank, 0, seat_), seat_);
    return between_pairs(std::move(call), o);
  }
  WorkPtr alltoall(Tensors& outs, Tensors& ins, const c10d::AllToAllOptions& o) override {
    Call call = begin(c10d::OpType::ALLTOALL, "ringkern:all_to_all", ins, outs);
    add_all_to_all(call, outs, ins, seat_);
    return between_pairs(std::move(call), o);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes,
                        std::vector<int64_t>& in_sizes, const c10d::AllToAllOptions& o) override {
    Tensors ins{in};
    Call call = begin(c10d::OpType::ALLTOALL_BASE, "ringkern:all_to_all", ins, {out});
    add_all_to_all(call, out, in, out_sizes, in_sizes, seat_);
    return between_pairs(std::move(call), o);
  }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    check_dense(t, "tensor");
    check_peer(peer, "dst", tag);
    Call call = begin(c10d::OpType::SEND, "ringkern:send", tensors, {t});
    add_send(call, t, peer);
    return deliver(std::move(call), tag);
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    check_target(t, "tensor");
    check_peer(peer, "src", tag);
    Call call = begin(c10d::OpType::RECV, "ringkern:recv", tensors, {t});
    add_receive(call, t, peer);
    return deliver(std::move(call), tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    check_target(t, "tensor");
    if (!t.device().is_cpu())
      throw py::value_error("tensor is on " + t.device().str() +
                            ": from any source only CPU tensors are received; give src");
    check_tag(tag);
    Call call = begin(c10d::OpType::RECVANYSOURCE, "ringkern:recvAnySource", tensors, {t});
    add_receive(call, t, cpu::kAnySource);
    return deliver(std::move(call), tag);
  }

  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    wait_for_device(o);
    const at::Tensor token = at::zeros({1}, at::kByte);
    Call call = begin(c10d::OpType::BARRIER, "ringkern:barrier", {}, {});
    call.device = at::kCPU;
    add_all_reduce(call, token, {Op::max}, seat_, "tensor");
    return over_ring(std::move(call), o);  // the user gives no tensor
  }
  void monitoredBarrier(const c10d::BarrierOptions& o, bool wait_all_ranks) override {
    const bool unset = o.timeout == c10d::kUnsetTimeout;  // 0 is a timeout
    monitored_barrier(*store_, seat_, monitored_barriers_++, unset ? timeout_.load() : o.timeout,
                      wait_all_ranks);
  }

  // Calls between the two are made at once, and waited for as one.
  void startCoalescing() override {
    std::lock_guard lock(mutex_);
    coalescing_ = true;
  }
  WorkPtr endCoalescing() override {
    std::lock_guard lock(mutex_);
    coalescing_ = false;
    return c10::make_intrusive<JointWork>(std::exchange(coalesced_, {}));
  }

  void setSequenceNumberForGroup() override {}  // it starts at 0 on all ranks
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    if (timeout.count() <= 0) throw py::value_error("the timeout must be positive");
    timeout_ = timeout;
  }
  c10d::ErrorType getError() override {
    return ring_->failed() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
  }

  void abort() override {
    ring_->abort("the process group was aborted");
    messenger_->abort("the process group was aborted");
  }
  void shutdown() override { close(kPatience); }
  // Finishes what was called, but waits no longer than `patience`.
  void close(Milliseconds patience) {
    const WithoutGil no_gil;
    messenger_->close(patience);
    ring_->close(double(patience.count()) / 1000);
  }

 private:
  // What has not finished by then, when the group is destroyed, waits for who will not come.
  static constexpr Milliseconds kPatience{2000};

  template <class Options>
  Milliseconds timeout_of(const Options& o) const {
    return o.timeout.count() > 0 ? o.timeout : timeout_.load();
  }
  static void check_some(size_t length, const std::string& list) {
    if (length == 0) throw py::value_error(list + " is empty; give one tensor or more");
  }
  static void check_tag(int tag) {
    if (tag < 0)
      throw py::value_error("tag is " + std::to_string(tag) + "; a tag is 0 or more");
  }
  void check_peer(int peer, const char* role, int tag) const {
    check_tag(tag);
    if (peer < 0 || peer >= seat_.ranks)
      throw py::value_error(std::string(role) + " is rank " + std::to_string(peer) +
                            ", which is not among the " + std::to_string(seat_.ranks) +
                            " ranks of the group");
    if (peer == seat_.rank)
      throw py::value_error(std::string(role) + " is rank " + std::to_string(peer) +
                            ", this rank: a rank cannot send to itself");
  }
  static Tensors flattened(const std::vector<Tensors>& lists) {
    Tensors all;
    for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

  static bool has_devices(c10::DeviceType type) {
    return c10::impl::hasDeviceGuardImpl(type) &&
           c10::impl::VirtualGuardImpl(type).deviceCount() > 0;
  }

  // CUDA: what the user has enqueued comes before the barrier, and what this group has; then the
  // host is what waits.
  void wait_for_device(const c10d::BarrierOptions& o) {
    auto device = o.device ? o.device : getBoundDeviceId();
    // Wrappers give them where there is no CUDA, too, and Gloo takes no notice.
    if (!o.device_ids.empty() && has_devices(c10::kCUDA))
      device = c10::Device(c10::kCUDA, c10::DeviceIndex(o.device_ids[0]));
    if (!device || device->is_cpu()) return;
    const c10::impl::VirtualGuardImpl guard(device->type());
    guard.getStream(device->has_index() ? *device : guard.getDevice()).synchronize();
    messenger_->synchronize();
    std::lock_guard lock(mutex_);
    for (const auto& [on, stream] : side_streams_) stream.synchronize();
  }

  static Call begin(c10d::OpType type, const char* title, const Tensors& ins, Tensors outs) {
    Call call;
    call.type = type;
    call.title = title;
    if (at::hasCallbacks()) call.inputs = ins;
    for (const at::Tensor& t : outs.empty() ? ins : outs)
      if (t.defined()) call.device = t.device();
    call.outputs = std::move(outs);
    return call;
  }

  template <class Options>
  WorkPtr over_ring(Call call, const Options& o) {
    const Record record(group(), call, ++sequence_, o.asyncOp);
    std::optional<c10::Stream> stream;
    if (!call.device.is_cpu() && o.asyncOp) stream = side_stream(call.device);
    return noted(ring_->launch(std::move(call), wish_, o.asyncOp, timeout_of(o), stream));
  }
  template <class Options>
  WorkPtr between_pairs(Call call, const Options& o) {
    const Record record(group(), call, ++sequence_, o.asyncOp);
    WorkPtr work = post(std::move(call), kCollectiveTag | exchanges_, timeout_of(o));
    ++exchanges_;  // not before: the other ranks count no call that this one could not make
    return noted(std::move(work));
  }
  WorkPtr deliver(Call call, int tag) {
    const Record record(group(), call, sequence_, true);
    return noted(post(std::move(call), uint64_t(tag), timeout_));
  }
  WorkPtr post(Call call, uint64_t tag, Milliseconds timeout) {
    return messenger_->post(std::move(call), tag, wish_, timeout);
  }
  static constexpr uint64_t kCollectiveTag = uint64_t(1) << 63;  // no user's

  // Its name is known after the constructor has run.
  const GroupRecord& group() {
    if (at::hasCallbacks()) group_.name = getGroupUid(), group_.description = getGroupDesc();
    return group_;
  }

  WorkPtr noted(WorkPtr work) {
    std::lock_guard lock(mutex_);
    if (coalescing_) coalesced_.push_back(work);
    return work;
  }

  // Asynchronous calls run beside what the user enqueues, after what has been enqueued.
  c10::Stream side_stream(c10::Device device) {
    const c10::impl::VirtualGuardImpl impl(device.type());
    c10::Event called(device.type());
    called.record(impl.getStream(device));
    std::lock_guard lock(mutex_);
    auto found = side_streams_.find(device);
    if (found == side_streams_.end())
      found = side_streams_.emplace(device, make_stream(device)).first;
    called.block(found->second);
    return found->second;
  }

  const Seat seat_;
  GroupRecord group_;
  std::atomic<Milliseconds> timeout_;
  const Wish wish_;
  const std::shared_ptr<Store> store_;
  std::atomic<uint64_t> sequence_{0};   // of collectives
  std::atomic<uint64_t> exchanges_{0};  // of those between pairs
  uint64_t monitored_barriers_ = 0;
  std::unique_ptr<TorchCommunicator> ring_;
  std::unique_ptr<Messenger> messenger_;
  std::mutex mutex_;  // guards what follows
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
  std::unordered_map<c10::Device, c10::Stream> side_streams_;
};

inline WorkPtr RingBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& o) {
  const at::Tensor& t = only_one(tensors, "tensor");
  if (op_of(o.reduceOp).op != Op::sum)
    throw py::value_error("tensor is sparse; sparse tensors are summed: give ReduceOp.SUM");
  Call call = begin(c10d::OpType::_ALLREDUCE_SPARSE, "ringkern:sparse_all_reduce", tensors, {t});
  const Record record(group(), call, ++sequence_, o.asyncOp);
  sum_sparse(t, seat_.rank, seat_.ranks, [&](const at::Tensor& in) {
    std::vector<int64_t> sizes = in.sizes().vec();
    sizes.insert(sizes.begin(), seat_.ranks);
    const at::Tensor out = at::empty(sizes, in.options());
    Call gather;
    add_all_gather(gather, out, in, seat_);
    ring_->launch(std::move(gather), wish_, /*async_op=*/false, timeout_of(o), {});
    return out;
  });
  auto work = c10::make_intrusive<RingWork>(std::move(call), 1);
  work->end_part(nullptr);
  return noted(work);
}

}  // namespace ringkern::torch_ext
