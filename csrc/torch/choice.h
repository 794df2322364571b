// A caller's request for the way of a collective, and the lists from which a way is chosen.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/interfaces.h"
#include "cpu/mesh.h"
#include "cuda/mesh.h"
#include "torch/names.h"

namespace ringkern::torch_ext {

// A request. Empty fields mean "auto". A protocol alone asks for the ring over it.
struct WayRequest {
  std::optional<Algorithm> algorithm;
  std::optional<Protocol> protocol;
  bool in_rank_order = false;  // an all-reduce combines every element from rank 0 up
  bool wide = false;           // sums of small floats are kept in float32
  bool tree = false;           // with in_rank_order: in the order of core/tree.h instead

  static WayRequest of(const std::string& algorithm, const std::string& protocol,
                       bool in_rank_order = false, bool wide = false, bool tree = false) {
    WayRequest r;
    if (algorithm != "auto") r.algorithm = parse<Algorithm>(algorithm, kAlgorithms, "algorithm");
    if (protocol != "auto") r.protocol = parse<Protocol>(protocol, kProtocols, "protocol");
    r.in_rank_order = in_rank_order;
    r.wide = wide;
    r.tree = tree;
    return r;
  }
};

// Returns true if this algorithm runs over this protocol on this kind of device.
bool runs_over(c10::DeviceType device, Algorithm algorithm, Protocol protocol);

// Returns true if a kind of device has this way of a collective for this many ranks.
bool has_way(c10::DeviceType device, Collective collective, const Way& way, int ranks);

[[noreturn]] void throw_not_over(c10::DeviceType on, Algorithm algorithm, Protocol protocol);

// Returns the option of the request that the ring cannot keep, as Python spells it; null: none. The
// ring combines each chunk in an order of its own, and rounds at every hop.
const char* not_by_ring(const Task& task, const WayRequest& request);

[[noreturn]] void throw_not_by_ring(const char* kept, const WayRequest& request,
                                    const std::string& asked);

// Sets the task's algorithm and protocol if the request fixes them. Otherwise sets `task.choice`,
// the list from which resolve_auto() chooses. Throws ValueError if the device does not have what is
// requested.
void apply_request(Task& task, const WayRequest& request, c10::DeviceType on);

// Returns the reason why a call of this many ranks cannot go by a way; empty if it can.
std::string why_not(c10::DeviceType device, Task task, const WayRequest& request, const Way& way,
                    int ranks);

// Returns (algorithm, protocol) of a call with this many bytes on each rank. Throws ValueError if
// the device does not have what is requested.
std::pair<std::string, std::string> way_of(const WayTable& table, c10::DeviceType device, Task task,
                                           int64_t bytes, const WayRequest& request);

// This rank's table for each kind of device, from ringkern/choose/tables.py. A list has rows of
// (bytes, algorithm, protocol): the first row with more bytes than the call has applies.
class WayTables {
 public:
  using Row = std::tuple<int64_t, std::string, std::string>;
  using Lists = std::map<std::string, std::vector<Row>>;

  // Throws ValueError for lists that are not well-formed.
  void set(const std::string& device, const Lists& lists);

  const WayTable& of(c10::DeviceType device) const { return of_[index(device)]; }
  WayTable& of(c10::DeviceType device) { return of_[index(device)]; }

 private:
  static constexpr size_t index(c10::DeviceType device) {
    return device == c10::DeviceType::CPU ? 0 : 1;
  }
  std::array<WayTable, 2> of_;
};

WayTables::Lists lists_of(const WayTable& table);

}  // namespace ringkern::torch_ext
