#include "torch/choice.h"

namespace ringkern::torch_ext {

bool runs_over(c10::DeviceType device, Algorithm algorithm, Protocol protocol) {
  if (algorithm == Algorithm::ring) return true;
  return device == c10::DeviceType::CPU ? cpu::direct_runs_over(algorithm, protocol)
                                        : cuda::direct_runs_over(algorithm, protocol);
}

bool has_way(c10::DeviceType device, Collective collective, const Way& way, int ranks) {
  if (way.algorithm == Algorithm::ring) return true;
  return collective == Collective::all_reduce && runs_over(device, way.algorithm, way.protocol) &&
         (device == c10::DeviceType::CPU || cuda::MeshGeometry::make(ranks, 1).possible());
}

void throw_not_over(c10::DeviceType on, Algorithm algorithm, Protocol protocol) {
  std::string known;
  for (int p = 0; p < kProtocols; ++p)
    if (runs_over(on, algorithm, Protocol(p)))
      known += std::string(known.empty() ? "" : ", ") + name_of(Protocol(p));
  throw py::value_error(std::string("algorithm '") + name_of(algorithm) +
                        "' does not run over protocol '" + name_of(protocol) + "' on " +
                        c10::DeviceTypeName(on, true) + "; choose one of auto, " + known);
}

const char* not_by_ring(const Task& task, const WayRequest& request) {
  if (task.collective != Collective::all_reduce) return nullptr;
  if (request.tree) return "deterministic='world_invariant'";
  if (request.in_rank_order) return "deterministic='size_invariant'";
  return request.wide && task.reduction.can_be_wide() ? "accumulate='float32'" : nullptr;
}

void throw_not_by_ring(const char* kept, const WayRequest& request, const std::string& asked) {
  throw py::value_error(
      std::string(kept) + " and " + asked + ": " +
      (request.in_rank_order
           ? "the order in which the ring adds an element depends on its place"
           : "the ring rounds partial sums, which it sends, to the tensor's dtype") +
      "; leave algorithm and protocol to auto, or use one_shot or two_shot");
}

void apply_request(Task& task, const WayRequest& request, c10::DeviceType on) {
  task.choice = Choice::none;
  if (task.collective != Collective::all_reduce) {
    if (request.protocol) task.protocol = *request.protocol;
    else task.choice = Choice::others;
    return;
  }
  task.reduction.tree = request.tree && task.reduction.can_be_tree();
  task.reduction.wide = (request.wide || task.reduction.tree) && task.reduction.can_be_wide();
  const char* const direct = not_by_ring(task, request);
  std::optional<Algorithm> algorithm = request.algorithm;
  if (direct && algorithm == Algorithm::ring)
    throw_not_by_ring(direct, request, "algorithm='ring'");
  if (direct && !algorithm && request.protocol) {
    algorithm = runs_over(on, Algorithm::two_shot, *request.protocol) ? Algorithm::two_shot
                                                                      : Algorithm::one_shot;
    if (!runs_over(on, *algorithm, *request.protocol))
      throw_not_by_ring(direct, request,
                        std::string("protocol='") + name_of(*request.protocol) + "'");
  }
  if (request.protocol) {
    task.algorithm = algorithm.value_or(Algorithm::ring);
    task.protocol = *request.protocol;
    if (!runs_over(on, task.algorithm, task.protocol))
      throw_not_over(on, task.algorithm, task.protocol);
  } else {
    task.choice = algorithm ? choice_of(*algorithm)
                  : direct  ? Choice::in_rank_order
                            : Choice::automatic;
  }
}

std::string why_not(c10::DeviceType device, Task task, const WayRequest& request, const Way& way,
                    int ranks) {
  if (!has_way(device, task.collective, way, ranks))
    return c10::DeviceTypeName(device, true) + " has no " + name_of(way.algorithm) + " over " +
           name_of(way.protocol);
  const char* const kept = not_by_ring(task, request);
  if (kept && way.algorithm == Algorithm::ring) return std::string("does not keep ") + kept;
  apply_request(task, request, device);
  if (task.choice == Choice::none ? way == Way{task.algorithm, task.protocol}
                                  : may_list(task.choice, way))
    return "";
  const bool protocol_alone = request.protocol && !request.algorithm && !kept;
  return protocol_alone && way.protocol == task.protocol
             ? "not asked for: a protocol alone is the ring's"
             : "not asked for";
}

std::pair<std::string, std::string> way_of(const WayTable& table, c10::DeviceType device, Task task,
                                           int64_t bytes, const WayRequest& request) {
  apply_request(task, request, device);
  Way way{task.algorithm, task.protocol};
  if (task.choice != Choice::none) way = table.choose(task.choice, bytes);
  return {name_of(way.algorithm), name_of(way.protocol)};
}

WayTables::Lists lists_of(const WayTable& table) {
  WayTables::Lists lists;
  for (int c = 0; c < kChoices; ++c) {
    if (Choice(c) == Choice::none) continue;
    auto& rows = lists[name_of(Choice(c))];
    do {
      const WayTable::Row& row = table.rows[c][rows.size()];
      rows.emplace_back(row.below, name_of(row.way.algorithm), name_of(row.way.protocol));
    } while (std::get<0>(rows.back()) != WayTable::kAnySize);
  }
  return lists;
}

void WayTables::set(const std::string& device, const Lists& lists) {
  const c10::DeviceType on = c10::Device(device).type();
  WayTable table;
  for (const auto& [name, rows] : lists) {
    const Choice list = parse<Choice>(name, kChoices, "list");
    if (rows.empty() || rows.size() > WayTable::kRows)
      throw py::value_error("list '" + name + "' has " + std::to_string(rows.size()) +
                            " rows; it takes 1 to " + std::to_string(WayTable::kRows));
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto& [below, algorithm, protocol] = rows[r];
      const Way way{parse<Algorithm>(algorithm, kAlgorithms, "algorithm"),
                    parse<Protocol>(protocol, kProtocols, "protocol")};
      if (!runs_over(on, way.algorithm, way.protocol))
        throw_not_over(on, way.algorithm, way.protocol);
      table.rows[int(list)][r] = {below, way};
    }
  }
  if (!table.valid())
    throw py::value_error("the rows of a list rise, and the last one is below " +
                          std::to_string(WayTable::kAnySize) + " bytes");
  of_[index(on)] = table;
}

}  // namespace ringkern::torch_ext
