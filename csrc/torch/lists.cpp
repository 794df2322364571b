// The lists and limits of csrc/core for Python, and the rules that exclude ways.

#include <string>
#include <utility>
#include <vector>

#include "core/choice.h"
#include "core/orders.h"
#include "torch/bindings.h"
#include "torch/choice.h"
#include "torch/names.h"

namespace ringkern::torch_ext {
namespace {

Task task_of(const std::string& collective, const std::string& dtype) {
  Task task;
  task.collective = parse<Collective>(collective, kCollectives, "collective");
  task.reduction.dtype = parse<DType>(dtype, kDTypes, "dtype");
  return task;
}

std::vector<std::string> ops_of(const std::string& dtype) {
  const Kind kind = kind_of(parse<DType>(dtype, kDTypes, "dtype"));
  std::vector<std::string> ops;
  for (int op = 0; op < kOps; ++op)
    if (accepts(Op(op), kind)) ops.emplace_back(name_of(Op(op)));
  return ops;
}

std::vector<std::pair<std::string, std::string>> ways_on(const std::string& device) {
  const auto type = c10::Device(device).type();
  std::vector<std::pair<std::string, std::string>> ways;
  for (int a = 0; a < kAlgorithms; ++a)
    for (int p = 0; p < kProtocols; ++p)
      if (runs_over(type, Algorithm(a), Protocol(p)))
        ways.emplace_back(name_of(Algorithm(a)), name_of(Protocol(p)));
  return ways;
}

// Returns true if one all-reduce can meet the whole request, for a dtype to which all of it
// applies.
bool is_there(const std::string& device, const WayRequest& request) {
  Task task;
  task.reduction.dtype = DType::f16;
  const auto type = c10::Device(device).type();
  for (int a = 0; a < kAlgorithms; ++a)
    for (int p = 0; p < kProtocols; ++p)
      if (request.algorithm.value_or(Algorithm(a)) == Algorithm(a) &&
          request.protocol.value_or(Protocol(p)) == Protocol(p) &&
          runs_over(type, Algorithm(a), Protocol(p)) &&
          !(Algorithm(a) == Algorithm::ring && not_by_ring(task, request)))
        return true;
  return false;
}

}  // namespace

void bind_lists(py::module_& m) {
  py::list lists;
  for (int c = 0; c < kChoices; ++c)
    if (Choice(c) != Choice::none) lists.append(name_of(Choice(c)));
  m.attr("lists") = py::tuple(lists);
  m.attr("most_rows") = WayTable::kRows;
  m.attr("most_ranks") = kMaxRanks;
  m.attr("most_orders") = RingOrders::kMost;
  m.attr("most_ordered_ranks") = RingOrders::kMostRanks;
  m.def("ops_of", &ops_of, py::arg("dtype"), "The ops that a dtype takes.");
  m.def("ways_on", &ways_on, py::arg("device"),
        "(algorithm, protocol) of every all-reduce that a kind of device has.");
  m.def(
      "is_there",
      [](const std::string& device, const std::string& algorithm, const std::string& protocol,
         bool in_rank_order, bool wide) {
        return is_there(device, WayRequest::of(algorithm, protocol, in_rank_order, wide));
      },
      py::arg("device"), py::arg("algorithm"), py::arg("protocol"), py::arg("in_rank_order"),
      py::arg("wide"), "Whether an all-reduce on a kind of device can be all of this.");
  m.def(
      "not_by_ring",
      [](const std::string& collective, const std::string& dtype, bool in_rank_order, bool wide) {
        return not_by_ring(task_of(collective, dtype),
                           WayRequest::of("auto", "auto", in_rank_order, wide));
      },
      py::arg("collective"), py::arg("dtype"), py::arg("in_rank_order"), py::arg("wide"),
      "The request that keeps a call off the ring, in words; None: there is none.");
  m.def(
      "why_not",
      [](const std::string& device, const std::string& collective, int ranks,
         const std::string& dtype, const std::pair<std::string, std::string>& way,
         const std::string& algorithm, const std::string& protocol, bool in_rank_order, bool wide) {
        return why_not(c10::Device(device).type(), task_of(collective, dtype),
                       WayRequest::of(algorithm, protocol, in_rank_order, wide),
                       {parse<Algorithm>(way.first, kAlgorithms, "algorithm"),
                        parse<Protocol>(way.second, kProtocols, "protocol")},
                       ranks);
      },
      py::arg("device"), py::arg("collective"), py::arg("ranks"), py::arg("dtype"), py::arg("way"),
      py::arg("algorithm"), py::arg("protocol"), py::arg("in_rank_order"), py::arg("wide"),
      "Why a call cannot go by a way (algorithm, protocol), in words; empty: it can.");
}

}  // namespace ringkern::torch_ext
