// "ringkern" as a torch.distributed backend. It turns c10d's calls into calls of
// torch/collectives.h and p2p/torch_collectives.h, and runs them over the ring or between pairs of
// ranks.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hosts/torch_communicator.h"
#include "p2p/torch_collectives.h"
#include "p2p/torch_p2p.h"
#include "torch/backend_base.h"
#include "torch/bindings.h"
#include "torch/monitored_barrier.h"
#include "torch/sparse_sum.h"

namespace ringkern::torch_ext {
namespace {

class RingBackend final : public BackendBase {
 public:
  using BackendBase::BackendBase;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    Call call = begin(c10d::OpType::BROADCAST, "ringkern:broadcast", tensors, {t});
    add_broadcast(call, t, check_root(o.rootRank, o.rootTensor, seat()), seat());
    return over_ring(std::move(call), o);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    if (t.defined() && t.is_sparse()) return allreduce_sparse(tensors, o);
    Call call = begin(c10d::OpType::ALLREDUCE, "ringkern:all_reduce", tensors, {t});
    add_all_reduce(call, t, op_of(o.reduceOp), seat(), "tensor");
    return over_ring(std::move(call), o);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& o) override {
    check_some(tensors.size(), "tensors");
    Call call = begin(c10d::OpType::ALLREDUCE_COALESCED, "ringkern:all_reduce", tensors, tensors);
    const OpCall op = op_of(o.reduceOp);
    for (size_t i = 0; i < tensors.size(); ++i)
      add_all_reduce(call, tensors[i], op, seat(), nth("tensors", i));
    return over_ring(std::move(call), o);
  }
  // Returns a work that is done.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& o) override;

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& o) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    Call call = begin(c10d::OpType::REDUCE, "ringkern:reduce", tensors, {t});
    const int root = check_root(o.rootRank, o.rootTensor, seat());
    check_target(t, "tensor");
    add_reduce(call, t, t, op_of(o.reduceOp), root, seat(), "tensor");
    return over_ring(std::move(call), o);
  }

  WorkPtr allgather(std::vector<Tensors>& outs, Tensors& ins,
                    const c10d::AllgatherOptions& o) override {
    const at::Tensor& in = only_one(ins, "tensor");
    check_length(outs.size(), "the list of tensor_list", 1, "that of this rank");
    Call call = begin(c10d::OpType::ALLGATHER, "ringkern:all_gather", ins, outs.front());
    add_all_gather(call, outs.front(), in, seat(), "tensor_list");
    return over_ring(std::move(call), o);
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& o) override {
    Tensors ins{in};
    Call call = begin(c10d::OpType::_ALLGATHER_BASE, "ringkern:all_gather", ins, {out});
    add_all_gather(call, out, in, seat());
    return over_ring(std::move(call), o);
  }
  // `outs[r][i]`: the value that rank r gave for tensor i.
  WorkPtr allgather_coalesced(std::vector<Tensors>& outs, Tensors& ins,
                              const c10d::AllgatherOptions& o) override {
    check_some(ins.size(), "input_tensor_list");
    check_length(outs.size(), "output_tensor_lists", size_t(seat().ranks));
    for (size_t r = 0; r < outs.size(); ++r)
      check_length(outs[r].size(), nth("output_tensor_lists", r), ins.size(),
                   "one for each of input_tensor_list");
    Call call =
        begin(c10d::OpType::ALLGATHER_COALESCED, "ringkern:all_gather", ins, flattened(outs));
    for (size_t i = 0; i < ins.size(); ++i) {
      Tensors of_all;
      for (const Tensors& of_rank : outs) of_all.push_back(of_rank[i]);
      add_all_gather(call, of_all, ins[i], seat(), "output_tensor_lists");
    }
    return over_ring(std::move(call), o);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::AllgatherOptions& o) override {
    check_some(ins.size(), "input_tensors");
    check_length(outs.size(), "output_tensors", ins.size(), "one for each of input_tensors");
    Call call = begin(c10d::OpType::ALLGATHER_COALESCED, "ringkern:all_gather", ins, outs);
    for (size_t i = 0; i < ins.size(); ++i) add_all_gather(call, outs[i], ins[i], seat());
    return over_ring(std::move(call), o);
  }

  WorkPtr reduce_scatter(Tensors& outs, std::vector<Tensors>& ins,
                         const c10d::ReduceScatterOptions& o) override {
    const at::Tensor& out = only_one(outs, "output");
    check_length(ins.size(), "the list of input_list", 1, "that of this rank");
    Call call = begin(c10d::OpType::REDUCE_SCATTER, "ringkern:reduce_scatter", ins.front(), outs);
    add_reduce_scatter(call, out, ins.front(), op_of(o.reduceOp), seat(), "input_list");
    return over_ring(std::move(call), o);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& o) override {
    Tensors ins{in};
    Call call = begin(c10d::OpType::_REDUCE_SCATTER_BASE, "ringkern:reduce_scatter", ins, {out});
    add_reduce_scatter(call, out, in, op_of(o.reduceOp), seat());
    return over_ring(std::move(call), o);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::ReduceScatterOptions& o) override {
    check_some(ins.size(), "input_tensors");
    check_length(outs.size(), "output_tensors", ins.size(), "one for each of input_tensors");
    Call call = begin(kReduceScatterTensorCoalesced, "ringkern:reduce_scatter", ins, outs);
    const OpCall op = op_of(o.reduceOp);
    for (size_t i = 0; i < ins.size(); ++i) add_reduce_scatter(call, outs[i], ins[i], op, seat());
    return over_ring(std::move(call), o);
  }

  WorkPtr gather(std::vector<Tensors>& outs, Tensors& ins, const c10d::GatherOptions& o) override {
    const at::Tensor& in = only_one(ins, "tensor");
    Call call = begin(c10d::OpType::GATHER, "ringkern:gather", ins, flattened(outs));
    add_gather(call, outs, in, check_root(o.rootRank, 0, seat()), seat());
    return between_pairs(std::move(call), o);
  }
  WorkPtr scatter(Tensors& outs, std::vector<Tensors>& ins,
                  const c10d::ScatterOptions& o) override {
    const at::Tensor& out = only_one(outs, "tensor");
    const Tensors given = flattened(ins);
    Call call = begin(c10d::OpType::SCATTER, "ringkern:scatter", given, outs);
    add_scatter(call, out, ins, check_root(o.rootRank, 0, seat()), seat());
    return between_pairs(std::move(call), o);
  }
  WorkPtr alltoall(Tensors& outs, Tensors& ins, const c10d::AllToAllOptions& o) override {
    Call call = begin(c10d::OpType::ALLTOALL, "ringkern:all_to_all", ins, outs);
    add_all_to_all(call, outs, ins, seat());
    return between_pairs(std::move(call), o);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes,
                        std::vector<int64_t>& in_sizes, const c10d::AllToAllOptions& o) override {
    Tensors ins{in};
    Call call = begin(c10d::OpType::ALLTOALL_BASE, "ringkern:all_to_all", ins, {out});
    add_all_to_all(call, out, in, out_sizes, in_sizes, seat());
    return between_pairs(std::move(call), o);
  }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    check_dense(t, "tensor");
    check_peer(peer, "dst", tag, seat());
    Call call = begin(c10d::OpType::SEND, "ringkern:send", tensors, {t});
    add_send(call, t, peer);
    return deliver(std::move(call), tag);
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    const at::Tensor& t = only_one(tensors, "tensor");
    check_target(t, "tensor");
    check_peer(peer, "src", tag, seat());
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
    wait_for_devices(o);
    const at::Tensor token = at::zeros({1}, at::kByte);
    Call call = begin(c10d::OpType::BARRIER, "ringkern:barrier", {}, {});
    call.device = at::kCPU;
    add_all_reduce(call, token, {Op::max}, seat(), "tensor");
    return over_ring(std::move(call), o);  // the user gives no tensor
  }
  void monitoredBarrier(const c10d::BarrierOptions& o, bool wait_all_ranks) override {
    const bool unset = o.timeout == c10d::kUnsetTimeout;  // 0 is a timeout
    called_by_torch([&] {
      check_members();
      C10dStore store(place_.store);
      monitored_barrier(store, seat(), monitored_barriers_++, unset ? timeout_.load() : o.timeout,
                        wait_all_ranks);
    });
  }

  // Makes the backend of the ranks that are left, for torch.distributed.shrink_group: all of them
  // call it, and the excluded ones do not. This one is unusable then. Calls that have not ended
  // when all have come are aborted, whatever the flags.
  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                     const c10::intrusive_ptr<Options>& options) override;
};

WorkPtr RingBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& o) {
  const at::Tensor& t = only_one(tensors, "tensor");
  if (op_of(o.reduceOp).op != Op::sum)
    throw py::value_error("tensor is sparse; sparse tensors are summed: give ReduceOp.SUM");
  if (request_.tree)
    throw py::value_error(
        "tensor is sparse; deterministic='world_invariant', an option of this group, adds dense "
        "tensors: use to_dense()");
  Call call = begin(c10d::OpType::_ALLREDUCE_SPARSE, "ringkern:sparse_all_reduce", tensors, {t});
  const Record record(group(), call, ++sequence_, o.asyncOp);
  sum_sparse(t, seat().rank, seat().ranks, [&](const at::Tensor& in) {
    std::vector<int64_t> sizes = in.sizes().vec();
    sizes.insert(sizes.begin(), seat().ranks);
    const at::Tensor out = at::empty(sizes, in.options());
    Call gather;
    add_all_gather(gather, out, in, seat());
    called_by_torch(
        [&] { ring_->submit(std::move(gather), {.request = request_, .timeout = timeout_of(o)}); });
    return out;
  });
  auto work = c10::make_intrusive<CallWork>(std::move(call), 1);
  work->end_part(nullptr);
  return noted(work);
}

c10::intrusive_ptr<c10d::Backend> RingBackend::shrink(const std::vector<int64_t>& ranks_to_exclude,
                                                      int /*flags*/,
                                                      const c10::intrusive_ptr<Options>& options) {
  const Place place = called_by_torch([&] {
    check_members();
    return place_without(ranks_to_exclude);
  });
  const Milliseconds timeout = options ? options->timeout : timeout_.load();
  const std::vector<int> kept = ranks_without(ranks_to_exclude);
  Members members = meet(place, kept, timeout);
  called_by_torch([&] { part_from_others(kept); });
  place_.renewal += "/shrunk";
  maker_.end_others(kept, timeout);
  return c10::make_intrusive<RingBackend>(place, seconds(timeout), request_, maker_,
                                          std::move(members));
}

// Makes the parts of a backend over this ring, which is not connected yet.
Members make_members(std::shared_ptr<Runner> ring, const StorePtr& store, const Roster& roster,
                     OnFault policy) {
  const auto timeout = milliseconds(ring->timeout_s());
  Members made;
  if (auto* over_hosts = dynamic_cast<HostsCommunicator*>(ring.get()))
    made.messenger =
        make_hosts_p2p(*over_hosts, std::make_shared<C10dStore>(store), "backend/pairs", timeout);
  else
    made.messenger = make_p2p(std::make_shared<C10dStore>(store), "backend/pairs",
                              Seat{ring->rank(), ring->ranks()}, timeout);
  made.messenger->set_on_fault(policy);
  made.ring = std::move(ring);
  made.processes = roster.processes;
  return made;
}

}  // namespace

void bind_backend(py::module_& m) {
  py::class_<Members>(m, "Members");
  m.def(
      "make_members",
      [](std::shared_ptr<Runner> ring, const StorePtr& store, const RosterParts& roster,
         const std::string& on_fault) {
        return make_members(std::move(ring), store, roster_of(roster), on_fault_of(on_fault));
      },
      py::arg("ring"), py::arg("store"), py::arg("roster"), py::arg("on_fault"));
  m.def(
      "make_backend",
      [](c10::intrusive_ptr<c10d::Store> store, int rank, int size,
         const std::vector<int64_t>& global_ranks, double timeout_s, const std::string& algorithm,
         const std::string& protocol, bool in_rank_order, bool wide, bool tree, py::object maker,
         bool waits) -> c10::intrusive_ptr<c10d::Backend> {
        const Place place{{rank, size}, global_ranks, std::move(store)};
        const auto request = WayRequest::of(algorithm, protocol, in_rank_order, wide, tree);
        const Maker makes(kept(std::move(maker)));
        Members members = waits ? Members{} : makes.make(place, {}, milliseconds(timeout_s));
        const WithoutGil no_gil;
        return c10::make_intrusive<RingBackend>(place, timeout_s, request, makes,
                                                std::move(members));
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("global_ranks"),
      py::arg("timeout_s"), py::arg("algorithm"), py::arg("protocol"), py::arg("in_rank_order"),
      py::arg("wide"), py::arg("tree"), py::arg("maker"), py::arg("waits") = false);
  m.def(
      "renewal_of",
      [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
        for (const c10::Device device : group->getDeviceTypes()) {
          const auto backend = group->getBackend(device.type());
          if (const auto* const mine = dynamic_cast<const BackendBase*>(backend.get()))
            return mine->renewal();
        }
        return std::string();
      },
      py::arg("group"));
  m.def(
      "close_backends",
      [](double patience_s) { OpenBackends::all().close(milliseconds(patience_s)); },
      py::arg("patience_s"));
}

}  // namespace ringkern::torch_ext
