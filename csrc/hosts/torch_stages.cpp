// Gives Python the cut of an all-reduce over hosts, without a call.

#include <tuple>

#include "hosts/stages.h"
#include "torch/bindings.h"

namespace ringkern::torch_ext {
namespace {

// `inter_host_cost`: rail_bytes, stage_bytes and tree of an InterHostCost.
Stages make_stages(int64_t count, int element_bytes, int rails, int hosts, bool inside,
                   const std::tuple<int64_t, int64_t, bool>& inter_host_cost) {
  if (count < 0) throw py::value_error("count must not be negative");
  if (element_bytes < 1 || element_bytes > 8) throw py::value_error("element_bytes must be 1 to 8");
  if (rails < 1 || rails > kMaxRanks) throw py::value_error("rails must be 1 to 1024");
  if (hosts < 2) throw py::value_error("hosts must be 2 or more: one host needs no cut");
  const auto& [rail_bytes, stage_bytes, tree] = inter_host_cost;
  if (rail_bytes < 0 || stage_bytes < 1)
    throw py::value_error(
        "the inter-host cost has rail_bytes of 0 or more and stage_bytes of 1 or more");
  return Stages::make(count, element_bytes, rails, hosts, inside, {rail_bytes, stage_bytes, tree});
}

}  // namespace

void bind_stages(py::module_& m) {
  py::class_<Stages> stages(m, "Stages",
                            "How an all-reduce over hosts is cut. Counts are in elements.");
  stages
      .def(py::init(&make_stages), py::arg("count"), py::arg("element_bytes"), py::arg("rails"),
           py::arg("hosts"), py::arg("inside"), py::arg("inter_host_cost"))
      .def_readonly("rails", &Stages::rails, "The rails in use: all, or 1.")
      .def_readonly("long_stages", &Stages::long_stages, "The stages that go over these rails.");
  stages.attr("most") = Stages::kMost;
  stages.attr("under_way") = Stages::kUnderWay;
  stages.attr("little_bytes") = Stages::kLittleBytes;
}

}  // namespace ringkern::torch_ext
