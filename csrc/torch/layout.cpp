// The layout of a rank's memory on a CPU, for Python. The pictures of the documentation are drawn
// from it, and a test compares them with it.

#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/trace.h"
#include "cpu/executor.h"
#include "cpu/link.h"
#include "cpu/ll.h"
#include "cpu/ll128.h"
#include "torch/bindings.h"
#include "torch/names.h"

namespace ringkern::torch_ext {
namespace {

// Returns (name, offset, bytes) of each part of a rank's segment, in order. A FIFO and each staging
// area are followed by their first slot, so that their number of slots can be derived.
std::vector<std::tuple<std::string, int64_t, int64_t>> cpu_segment() {
  using cpu::MeshGeometry;
  const Geometry g = cpu::default_geometry();
  std::vector<std::tuple<std::string, int64_t, int64_t>> parts;
  const auto add = [&](std::string name, int64_t at, int64_t bytes) {
    parts.emplace_back(std::move(name), at, bytes);
  };
  add("bell", 0, cpu::kBellBytes);
  for (int p = 0; p < kProtocols; ++p) {
    const std::string of = std::string(" of ") + name_of(Protocol(p));
    const int64_t at = cpu::kBellBytes + g.counters_offset(0, Protocol(p));
    add("tail" + of, at + int64_t(offsetof(LinkCounters, tail)), sizeof(StepCounter));
    add("head" + of, at + int64_t(offsetof(LinkCounters, head)), sizeof(StepCounter));
    add("sent" + of, at + int64_t(offsetof(LinkCounters, sent)), sizeof(StepCounter));
    add("received" + of, at + int64_t(offsetof(LinkCounters, received)), sizeof(StepCounter));
  }
  for (int p = 0; p < kProtocols; ++p) {
    const std::string name = name_of(Protocol(p));
    const int64_t at = cpu::kBellBytes + g.fifo_offset(0, Protocol(p));
    add("FIFO of " + name, at, g.fifo_bytes(Protocol(p)));
    add("slot of " + name, at, g.slot_bytes[p]);
  }
  const int64_t mesh = cpu::mesh_offset(g), lines = mesh + int64_t(sizeof(cpu::Board));
  add("board", mesh, sizeof(cpu::Board));
  add("staged lines", lines, MeshGeometry::lines_bytes());
  add("slot of staged lines", lines, MeshGeometry::kLines * int64_t(sizeof(cpu::DirectLine)));
  add("staged chunks", lines + MeshGeometry::lines_bytes(),
      mesh + MeshGeometry::bytes() - lines - MeshGeometry::lines_bytes());
  add("slot of staged chunks", lines + MeshGeometry::lines_bytes(), MeshGeometry::kSlotBytes);
  return parts;
}

// Returns a line as it lies in memory after it was written in `step` with the bytes 0, 1, 2, ...
py::bytes cpu_line(const std::string& protocol, uint64_t step) {
  const auto written = [&](auto line) {
    std::byte data[decltype(line)::kData];
    for (size_t i = 0; i < sizeof data; ++i) data[i] = std::byte(i);
    line.write(data, line.flag_of(step));
    return py::bytes(reinterpret_cast<const char*>(&line), sizeof line);
  };
  switch (parse<Protocol>(protocol, kProtocols, "protocol")) {
    case Protocol::ll: return written(cpu::LL{});
    case Protocol::ll128: return written(cpu::LL128{});
    case Protocol::simple: break;
  }
  throw py::value_error("simple has no lines; ll and ll128 have");
}

// Returns the verbs of one rank in a direct all-reduce, in order: (verb, round, first element,
// elements).
std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> cpu_direct_trace(
    const std::string& algorithm, int ranks, int64_t count, int element_bytes) {
  using cpu::MeshGeometry;
  if (ranks < 2 || ranks > kMaxRanks) throw py::value_error("ranks must be 2 to 1024");
  if (count < 0) throw py::value_error("count must not be negative");
  if (element_bytes < 1 || element_bytes > 8) throw py::value_error("element_bytes must be 1 to 8");
  const auto way = parse<Algorithm>(algorithm, kAlgorithms, "algorithm");
  if (way == Algorithm::ring) throw py::value_error("the ring has a Plan; one_shot and two_shot");
  const DirectPlan plan = DirectPlan::make(way, ranks, count, element_bytes,
                                           MeshGeometry::kSlotBytes, 1, MeshGeometry::kAhead);
  std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> rows;
  for (const TraceMesh::Entry& e : trace(plan, 0))
    rows.emplace_back(e.verb, e.round, e.chunk.first, e.chunk.count);
  return rows;
}

}  // namespace

void bind_layout(py::module_& m) {
  m.def("cpu_segment", &cpu_segment,
        "(name, offset, bytes) of each part of a rank's segment on a CPU; a part with slots is "
        "followed by its first one.");
  m.def("cpu_line", &cpu_line, py::arg("protocol"), py::arg("step"),
        "A line of ll or ll128 as it lies in memory, written in `step`; its data are 0, 1, 2, ...");
  m.def("cpu_direct_trace", &cpu_direct_trace, py::arg("algorithm"), py::arg("ranks"),
        py::arg("count"), py::arg("element_bytes"),
        "The verbs of a one_shot or two_shot over Simple, in order: (verb, round, first element, "
        "elements).");
}

}  // namespace ringkern::torch_ext
