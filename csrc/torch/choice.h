// Which way a collective takes: its algorithm and protocol, as asked for or by the size.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <optional>
#include <string>

#include "cpu/mesh.h"
#include "torch/names.h"

namespace ringkern::torch_ext {

struct Way {
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
};

// What a caller asks for; what is empty is "auto". A protocol alone asks for the ring over it.
struct Wish {
  std::optional<Algorithm> algorithm;
  std::optional<Protocol> protocol;

  static Wish of(const std::string& algorithm, const std::string& protocol) {
    Wish w;
    if (algorithm != "auto") w.algorithm = parse<Algorithm>(algorithm, kAlgorithms, "algorithm");
    if (protocol != "auto") w.protocol = parse<Protocol>(protocol, kProtocols, "protocol");
    return w;
  }
};

// Bytes of one rank's part, up to which "auto" is what the field says; looked at in this order.
struct Limits {
  int64_t one_shot_ll = 0;  // an all-reduce
  int64_t one_shot = 0;
  int64_t two_shot = 0;
  int64_t ring_ll = 0;  // everything else
  int64_t ring_ll128 = 0;
};

// The limits of each kind of device.
class Thresholds {
 public:
  void set(const std::string& device, const Limits& limits) {
    of_[index(c10::Device(device).type())] = limits;
  }

  // Throws ValueError where the device does not have what is asked for.
  Way choose(const Wish& wish, c10::DeviceType device, Collective collective, DType dtype,
             int64_t count) const {
    const Limits& most = of_[index(device)];
    const int64_t bytes = count * size_of(dtype);
    if (collective == Collective::all_reduce && wish.algorithm != Algorithm::ring) {
      if (wish.algorithm)
        return {*wish.algorithm, direct_protocol(wish, device, bytes, most.one_shot_ll)};
      if (!wish.protocol) {
        if (bytes < most.one_shot_ll) return {Algorithm::one_shot, Protocol::ll};
        if (bytes < most.one_shot) return {Algorithm::one_shot, Protocol::simple};
        if (bytes < most.two_shot) return {Algorithm::two_shot, Protocol::simple};
      }
    }
    return {Algorithm::ring, wish.protocol               ? *wish.protocol
                             : bytes < most.ring_ll      ? Protocol::ll
                             : bytes < most.ring_ll128   ? Protocol::ll128
                                                         : Protocol::simple};
  }

 private:
  static constexpr size_t index(c10::DeviceType device) {
    return device == c10::DeviceType::CPU ? 0 : 1;
  }

  static bool runs_over(c10::DeviceType device, Algorithm algorithm, Protocol protocol) {
    return device == c10::DeviceType::CPU ? cpu::direct_runs_over(algorithm, protocol)
                                          : protocol == Protocol::ll;
  }
  static Protocol direct_protocol(const Wish& wish, c10::DeviceType device, int64_t bytes,
                                  int64_t ll_below) {
    const Algorithm algorithm = *wish.algorithm;
    if (!wish.protocol) {
      const bool ll = runs_over(device, algorithm, Protocol::ll) &&
                      (bytes < ll_below || !runs_over(device, algorithm, Protocol::simple));
      return ll ? Protocol::ll : Protocol::simple;
    }
    if (runs_over(device, algorithm, *wish.protocol)) return *wish.protocol;
    std::string known;
    for (int p = 0; p < kProtocols; ++p)
      if (runs_over(device, algorithm, Protocol(p)))
        known += std::string(known.empty() ? "" : ", ") + name_of(Protocol(p));
    throw py::value_error(std::string("algorithm '") + name_of(algorithm) +
                          "' does not run over protocol '" + name_of(*wish.protocol) + "' on " +
                          c10::DeviceTypeName(device, true) + "; choose one of auto, " + known);
  }

  std::array<Limits, 2> of_;
};

}  // namespace ringkern::torch_ext
