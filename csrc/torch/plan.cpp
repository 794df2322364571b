// The plan and the schedule for Python: the steps of a collective, without running it.

#include <string>
#include <tuple>
#include <vector>

#include "core/direct.h"
#include "core/trace.h"
#include "core/tree.h"
#include "cpu/executor.h"
#include "cpu/mesh.h"
#include "cuda/mesh.h"
#include "torch/bindings.h"
#include "torch/choice.h"
#include "torch/plan.h"
#if RK_WITH_CUDA
#include "cuda/executor.h"
#include "cuda/shape.h"
#endif

namespace ringkern::torch_ext {
namespace {

struct PyPlan {
  Plan plan;

  using ChunkRow = std::tuple<int64_t, int64_t, int64_t>;
  using TraceRow = std::tuple<std::string, int64_t, int64_t, int64_t, int>;

  static PyPlan make(const std::string& collective, const std::string& protocol, int ranks,
                     int64_t count, int element_bytes, int workers, int channels, int slots,
                     int64_t slot_bytes, const std::vector<std::vector<int>>& orders, int root) {
    if (ranks < 1 || ranks > kMaxRanks) throw py::value_error("ranks must be 1 to 1024");
    if (root < 0 || root >= ranks) throw py::value_error("root must be one of the ranks");
    if (count < 0) throw py::value_error("count must not be negative");
    if (element_bytes < 1 || element_bytes > 8)
      throw py::value_error("element_bytes must be 1 to 8");
    const auto proto = parse<Protocol>(protocol, kProtocols, "protocol");
    Geometry g = cpu::default_geometry();
    g.channels = channels;
    g.slots = slots;
    if (slot_bytes > 0) g.slot_bytes[int(proto)] = slot_bytes;
    if (!g.valid())
      throw py::value_error(
          "channels must be 1 to 64, slots 2 to 64, and slot_bytes a multiple of "
          "16 and of the protocol's line");
    PyPlan p{Plan::make(parse<Collective>(collective, kCollectives, "collective"), proto, ranks,
                        count, element_bytes, workers, g, channels, root)};
    p.plan.orders = orders_of(orders, p.plan);
    return p;
  }

  static RingOrders orders_of(const std::vector<std::vector<int>>& lists, const Plan& plan) {
    RingOrders orders;
    for (const std::vector<int>& order : lists)
      if (int(order.size()) != plan.ranks || !orders.add(order.data(), plan.ranks))
        throw py::value_error(
            "orders must be at most 8, and each must have every rank, of at most "
            "16, once");
    if (plan.collective == Collective::send_recv && orders.count > 1)
      throw py::value_error("a message goes to the next rank, so send_recv takes one order");
    return orders;
  }

  ChunkRow chunk_of(int channel, int64_t loop, int owner) const {
    if (channel < 0 || channel >= plan.channels || loop < 0 || loop >= plan.loops || owner < 0 ||
        owner >= plan.ranks)
      throw py::index_error("no such chunk");
    const Chunk c = plan.chunk_of(channel, loop, owner);
    return {c.in, c.out, c.count};
  }

  int next(int rank, int channel) const {
    check_place(rank, channel);
    return plan.next(channel, rank);
  }
  int prev(int rank, int channel) const {
    check_place(rank, channel);
    return plan.prev(channel, rank);
  }
  int position(int rank, int channel) const {
    check_place(rank, channel);
    return plan.position(channel, rank);
  }
  int rank_at(int position, int channel) const {
    check_place(position, channel);
    return plan.rank_at(channel, position);
  }

  std::vector<std::pair<int64_t, int64_t>> slices(int64_t count) const {
    if (count < 0 || count > plan.chunk) throw py::value_error("a chunk is not so long");
    std::vector<std::pair<int64_t, int64_t>> rows;
    for (int i = 0; i < plan.slices(count); ++i)
      rows.emplace_back(plan.slice(count, i).first, plan.slice(count, i).count);
    return rows;
  }

  std::vector<TraceRow> trace(int rank, int channel) const {
    check_place(rank, channel);
    std::vector<TraceRow> rows;
    for (const TraceEntry& e : ringkern::trace(plan, rank, channel))
      rows.emplace_back(name_of(e.verb), e.chunk.in, e.chunk.out, e.chunk.count, e.slices);
    return rows;
  }

 private:
  void check_place(int rank, int channel) const {
    if (rank < 0 || rank >= plan.ranks || channel < 0 || channel >= plan.channels)
      throw py::index_error("no such rank or channel");
  }
};

// The tree over shards. A node is (first shard, number of shards).
struct PyShardTree {
  ShardTree tree;

  using Node = std::pair<int, int>;
  // The open nodes after a row of nodes, and the sums that each of them completes.
  struct Added {
    OpenNodes open;
    std::vector<int> sums;

    explicit Added(ShardTree tree) : open(tree) {}
    void take(const ShardNode& node) { sums.push_back(open.take(node)); }
  };

  static PyShardTree make(int shards) {
    if (shards < 1 || shards > ShardTree::kMostShards)
      throw py::value_error("shards must be 1 to 1024");
    return {{shards}};
  }

  ShardNode shards_of(int rank, int ranks) const {
    if (rank < 0 || rank >= ranks || ranks > tree.shards)
      throw py::value_error("rank must be one of the ranks, and each rank needs a shard");
    return tree.run_of(rank, ranks);
  }
  Added add_shards(int rank, int ranks) const {
    Added added(tree);
    const ShardNode run = shards_of(rank, ranks);
    for (int shard = run.first; shard < run.end(); ++shard) added.take({shard, 1});
    return added;
  }
  Node run_of(int rank, int ranks) const {
    const ShardNode run = shards_of(rank, ranks);
    return {run.first, run.count};
  }
  std::vector<Node> nodes_of(int rank, int ranks) const {
    const Added added = add_shards(rank, ranks);
    std::vector<Node> nodes;
    for (int i = 0; i < added.open.count(); ++i)
      nodes.emplace_back(added.open[i].first, added.open[i].count);
    return nodes;
  }
  std::vector<int> sums_of_shards(int rank, int ranks) const {
    return add_shards(rank, ranks).sums;
  }
  std::vector<int> sums_of_nodes(int ranks) const {
    Added all(tree);
    for (int rank = 0; rank < ranks; ++rank) {
      const Added added = add_shards(rank, ranks);
      for (int i = 0; i < added.open.count(); ++i) all.take(added.open[i]);
    }
    return all.sums;
  }
};

// The plan of a call by one way on one kind of device. Counts of elements and bytes are of one
// rank.
struct Described {
  int channels = 1, slots = 0, slices = 1, ahead = 0;
  int64_t chunk = 0, part = 0, rounds = 0;
  int64_t staging = 0;  // bytes of the memory through which this way sends
  int64_t segment = 0;  // bytes that a rank has for all ways
};

Described describe_ring(const Plan& plan, const Geometry& g) {
  Described d;
  d.channels = plan.channels;
  d.slots = g.slots;
  d.chunk = plan.loops > 0 ? plan.chunk_in_loop(0) : 0;
  d.part = d.chunk;
  d.slices = d.chunk > 0 ? plan.slices(d.chunk) : 0;
  d.rounds = plan.loops;
  d.staging = plan.channels * g.fifo_bytes(plan.protocol);
  return d;
}

Described describe_direct(const DirectPlan& plan, int64_t slot_bytes) {
  Described d;
  d.channels = plan.channels;
  d.slots = DirectPlan::slots(plan.ahead);
  d.ahead = plan.ahead;
  d.chunk = plan.chunk;
  d.part = plan.part;
  d.rounds = plan.rounds;
  d.staging = plan.channels * d.slots * slot_bytes;
  return d;
}

}  // namespace

Plan ring_plan(c10::DeviceType device, const Task& task, int ranks, const Geometry& g) {
  const int bytes = size_of(task.reduction.dtype);
#if RK_WITH_CUDA
  if (device == c10::DeviceType::CUDA)
    return Plan::make(task.collective, task.protocol, ranks, task.count, bytes, cuda::kPlanWorkers,
                      g, cuda::shape_of(task, ranks, g).channels);
#endif
  return Plan::make(task.collective, task.protocol, ranks, task.count, bytes, /*workers=*/1, g);
}

namespace {

Described describe_on_cpu(const Task& task, int ranks) {
  using cpu::MeshGeometry;
  const Geometry g = cpu::default_geometry();
  const int bytes = size_of(task.reduction.dtype);
  const bool lines = task.protocol == Protocol::ll;
  Described d =
      task.algorithm == Algorithm::ring
          ? describe_ring(ring_plan(c10::DeviceType::CPU, task, ranks, g), g)
          : describe_direct(
                DirectPlan::make(task.algorithm, ranks, task.count, bytes,
                                 lines ? MeshGeometry::line_slot_data() : MeshGeometry::kSlotBytes,
                                 /*channels=*/1,
                                 lines ? MeshGeometry::kLineAhead : MeshGeometry::kAhead),
                lines ? MeshGeometry::kLines * int64_t(sizeof(cpu::DirectLine))
                      : MeshGeometry::kSlotBytes);
  d.segment = cpu::segment_bytes(g);
  return d;
}

#if RK_WITH_CUDA
// Counts rounds for tensors that are staged; others go in one.
Described describe_across(const Task& task, int ranks, int channels, const Geometry& g) {
  const int64_t bytes = task.count * size_of(task.reduction.dtype);
  Described d;
  d.channels = channels;
  d.staging = channels * g.fifo_bytes(Protocol::simple);
  d.rounds = div_up(bytes, d.staging);
  d.chunk = std::min(div_up(task.count, int64_t(channels)),
                     g.fifo_bytes(Protocol::simple) / size_of(task.reduction.dtype));
  d.part = div_up(d.chunk, int64_t(ranks));
  d.slots = 1;
  return d;
}

// Assumes the default channels: small devices, or many ranks on one, have fewer (cuda/residency.h).
Described describe_on_cuda(const Task& task, int ranks) {
  const Geometry g = cuda::default_geometry();
  const auto mesh = cuda::MeshGeometry::make(ranks, g.channels);
  const int bytes = size_of(task.reduction.dtype);
  const int channels = cuda::shape_of(task, ranks, g).channels;
  Described d =
      task.algorithm == Algorithm::ring
          ? describe_ring(ring_plan(c10::DeviceType::CUDA, task, ranks, g), g)
      : cuda::is_in_place(task.algorithm, task.protocol)
          ? describe_across(task, ranks, channels, g)
          : describe_direct(DirectPlan::make(task.algorithm, ranks, task.count, bytes,
                                             mesh.chunk_bytes(task.algorithm), channels, 0),
                            (ranks - 1) * mesh.slot_bytes);
  d.segment = cuda::segment_bytes(g, ranks);
  return d;
}
#endif

py::object describe(const std::string& device, const std::string& collective,
                    const std::string& algorithm, const std::string& protocol, int ranks,
                    int64_t count, const std::string& dtype) {
  using namespace py::literals;
  if (ranks < 1 || ranks > kMaxRanks) throw py::value_error("ranks must be 1 to 1024");
  if (count < 0) throw py::value_error("count must not be negative");
  Task task;
  task.collective = parse<Collective>(collective, kCollectives, "collective");
  task.algorithm = parse<Algorithm>(algorithm, kAlgorithms, "algorithm");
  task.protocol = parse<Protocol>(protocol, kProtocols, "protocol");
  task.reduction.dtype = parse<DType>(dtype, kDTypes, "dtype");
  task.count = count;
  const bool cuda = device == "cuda";
  if (!cuda && device != "cpu") throw py::value_error("device must be 'cpu' or 'cuda'");
  const auto type = cuda ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
  if (!has_way(type, task.collective, {task.algorithm, task.protocol}, ranks)) return py::none();
#if RK_WITH_CUDA
  const Described d = cuda ? describe_on_cuda(task, ranks) : describe_on_cpu(task, ranks);
#else
  if (cuda) return py::dict();
  const Described d = describe_on_cpu(task, ranks);
#endif
  return py::dict("channels"_a = d.channels, "chunk"_a = d.chunk, "part"_a = d.part,
                  "slices"_a = d.slices, "rounds"_a = d.rounds, "slots"_a = d.slots,
                  "ahead"_a = d.ahead, "staging_bytes"_a = d.staging,
                  "segment_bytes"_a = d.segment);
}

// Chooses the way of a call from a tuner's lists.
std::pair<std::string, std::string> choose(const std::string& device, const WayTables::Lists& lists,
                                           const std::string& collective, const std::string& dtype,
                                           int64_t bytes, const WayRequest& request) {
  const auto type = c10::Device(device).type();
  WayTables tables;
  tables.set(device, lists);
  Task task;
  task.collective = parse<Collective>(collective, kCollectives, "collective");
  task.reduction.dtype = parse<DType>(dtype, kDTypes, "dtype");
  return way_of(tables.of(type), type, task, bytes, request);
}

}  // namespace

void bind_plan(py::module_& m) {
  m.def(
      "choose",
      [](const std::string& device, const WayTables::Lists& lists, const std::string& collective,
         const std::string& dtype, int64_t bytes, const std::string& algorithm,
         const std::string& protocol, bool in_rank_order, bool wide) {
        return choose(device, lists, collective, dtype, bytes,
                      WayRequest::of(algorithm, protocol, in_rank_order, wide));
      },
      py::arg("device"), py::arg("lists"), py::arg("collective"), py::arg("dtype"),
      py::arg("nbytes"), py::arg("algorithm"), py::arg("protocol"), py::arg("in_rank_order"),
      py::arg("wide"),
      "(algorithm, protocol) of a call by a tuner's lists; `nbytes`: of a rank's part.");
  m.def("describe", &describe, py::arg("device"), py::arg("collective"), py::arg("algorithm"),
        py::arg("protocol"), py::arg("ranks"), py::arg("count"), py::arg("dtype"),
        "How a way of a collective cuts `count` elements (as for a Plan), and the memory that it "
        "takes; None where the device does not have it, nothing where this build does not.");
  py::class_<PyPlan>(m, "Plan",
                     "What a collective will do: chunk sizes, loops, steps. Counts and offsets are "
                     "in elements.")
      .def(py::init(&PyPlan::make), py::arg("collective"), py::arg("protocol"), py::arg("ranks"),
           py::arg("count"), py::arg("element_bytes"), py::kw_only(), py::arg("workers") = 1,
           py::arg("channels") = 1, py::arg("slots") = kDefaultSlots, py::arg("slot_bytes") = 0,
           py::arg("orders") = std::vector<std::vector<int>>(), py::arg("root") = 0)
      .def_property_readonly("ranks", [](const PyPlan& p) { return p.plan.ranks; })
      .def_property_readonly("channels", [](const PyPlan& p) { return p.plan.channels; })
      .def_property_readonly("loops", [](const PyPlan& p) { return p.plan.loops; })
      .def_property_readonly("chunk", [](const PyPlan& p) { return p.plan.chunk; })
      .def_property_readonly("grain", [](const PyPlan& p) { return p.plan.grain; })
      .def("next", &PyPlan::next, py::arg("rank"), py::arg("channel") = 0)
      .def("prev", &PyPlan::prev, py::arg("rank"), py::arg("channel") = 0)
      .def("position", &PyPlan::position, py::arg("rank"), py::arg("channel") = 0)
      .def("rank_at", &PyPlan::rank_at, py::arg("position"), py::arg("channel") = 0)
      .def("chunk_of", &PyPlan::chunk_of, py::arg("channel"), py::arg("loop"), py::arg("owner"),
           "(input offset, output offset, count) of the chunk that position `owner` finishes.")
      .def("slices", &PyPlan::slices, py::arg("count"),
           "(first, count) of the slices of a chunk of so many elements, from its start.")
      .def("trace", &PyPlan::trace, py::arg("rank"), py::arg("channel") = 0,
           "The verbs that `rank` runs, in order: (verb, input offset, output offset, count, slots "
           "taken).");
  py::class_<PyShardTree>(m, "ShardTree",
                          "The order in which shards are added on any number of ranks; a node is "
                          "(first shard, number of shards).")
      .def(py::init(&PyShardTree::make), py::arg("shards"))
      .def("run_of", &PyShardTree::run_of, py::arg("rank"), py::arg("ranks"),
           "The shards of a rank, as a node.")
      .def("nodes_of", &PyShardTree::nodes_of, py::arg("rank"), py::arg("ranks"),
           "The nodes that a rank adds up by itself, which are its part of the sum.")
      .def("sums_of_shards", &PyShardTree::sums_of_shards, py::arg("rank"), py::arg("ranks"),
           "For each shard of a rank, in order: how many sums it completes. Each sum replaces the "
           "last two that are open.")
      .def("sums_of_nodes", &PyShardTree::sums_of_nodes, py::arg("ranks"),
           "The same for the nodes of all ranks, in order.");
}

}  // namespace ringkern::torch_ext
