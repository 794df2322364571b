// The plan and the schedule for Python: what a collective would do, without doing it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/trace.h"
#include "cpu/engine.h"
#include "torch/names.h"

namespace ringkern::torch_ext {

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
      throw py::value_error("channels must be 1 to 64, slots 2 to 64, and slot_bytes a multiple of "
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
        throw py::value_error("orders must be at most 8, and each must have every rank, of at most "
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

inline void bind_plan(py::module_& m) {
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
      .def("trace", &PyPlan::trace, py::arg("rank"), py::arg("channel") = 0,
           "The verbs that `rank` runs, in order: (verb, input offset, output offset, count, slots "
           "taken).");
}

}  // namespace ringkern::torch_ext
