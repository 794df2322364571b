// Messages between pairs of ranks: between processes of one host, or between hosts, too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/ports.h"
#include "torch/checks.h"
#include "torch/runner.h"

namespace ringkern::torch_ext {

class HostsCommunicator;

// Between the ranks of one host. `name`, as a communicator's: the same on all ranks. `numbers`:
// those that its ranks have in errors; none: their own.
std::unique_ptr<P2pRunner> make_p2p(std::shared_ptr<Store> store, std::string name, Seat seat,
                                    Milliseconds timeout, std::vector<int> numbers = {});

// Between all ranks of `group`, which outlives it.
std::unique_ptr<P2pRunner> make_hosts_p2p(HostsCommunicator& group, std::shared_ptr<Store> store,
                                          const std::string& name, Milliseconds timeout);

}  // namespace ringkern::torch_ext
