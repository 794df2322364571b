// A caller's request for the way of a collective, and the lists that it is chosen from.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/ports.h"
#include "cpu/mesh.h"
#include "cuda/mesh.h"
#include "torch/names.h"

namespace ringkern::torch_ext {

// A request. Empty fields mean "auto". A protocol alone asks for the ring over it.
struct Request {
  std::optional<Algorithm> algorithm;
  std::optional<Protocol> protocol;
  bool in_rank_order = false;  // an all-reduce: every element alike, from rank 0 up
  bool wide = false;           // sums of small floats are kept in float32

  static Request of(const std::string& algorithm, const std::string& protocol,
                    bool in_rank_order = false, bool wide = false) {
    Request r;
    if (algorithm != "auto") r.algorithm = parse<Algorithm>(algorithm, kAlgorithms, "algorithm");
    if (protocol != "auto") r.protocol = parse<Protocol>(protocol, kProtocols, "protocol");
    r.in_rank_order = in_rank_order;
    r.wide = wide;
    return r;
  }
};

// Tells if the all-reduces that take no ring are there over a protocol.
bool runs_over(c10::DeviceType device, Algorithm algorithm, Protocol protocol);

// Tells if a kind of device has a way of a collective between this many ranks.
bool has_way(c10::DeviceType device, Collective collective, const Way& way, int ranks);

[[noreturn]] void throw_not_over(c10::DeviceType on, Algorithm algorithm, Protocol protocol);

// The request that the ring cannot keep, in words; nullptr: there is none. It adds up each chunk in
// an order of its own, and rounds at every hop.
const char* not_by_ring(const Task& task, const Request& request);

[[noreturn]] void throw_not_by_ring(const char* kept, const Request& request,
                                    const std::string& asked);

// A task's way as `request` has it, or what it is to be chosen from. Throws ValueError where the
// device does not have what is asked for.
void choose_way(Task& task, const Request& request, c10::DeviceType on);

// Says why a call of this many ranks cannot go by a way; empty: it can.
std::string why_not(c10::DeviceType device, Task task, const Request& request, const Way& way,
                    int ranks);

// A way as Python names it, of a call whose part of a rank has so many bytes. Throws ValueError
// where the device has none like it.
std::pair<std::string, std::string> way_of(const WayTable& table, c10::DeviceType device, Task task,
                                           int64_t bytes, const Request& request);

// The tables of this rank, of each kind of device, made by ringkern/choose/tables.py: for each list
// rows of (below how many bytes, algorithm, protocol).
class WayTables {
 public:
  using Row = std::tuple<int64_t, std::string, std::string>;
  using Lists = std::map<std::string, std::vector<Row>>;

  // Throws ValueError where they are none.
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
