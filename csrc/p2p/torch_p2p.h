// Messages between pairs of ranks: of one host, or also of several hosts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/interfaces.h"
#include "torch/checks.h"
#include "torch/runner.h"

namespace ringkern::torch_ext {

class HostsCommunicator;

// Returns the runner for the ranks of one host. `name`: the same on all ranks, as for a
// communicator. `numbers`: the numbers of its ranks in errors; empty: their own.
std::unique_ptr<P2pRunner> make_p2p(std::shared_ptr<Store> store, std::string name, Seat seat,
                                    Milliseconds timeout, std::vector<int> numbers = {});

// Returns the runner for all ranks of `group`, which outlives it.
std::unique_ptr<P2pRunner> make_hosts_p2p(HostsCommunicator& group, std::shared_ptr<Store> store,
                                          const std::string& name, Milliseconds timeout);

}  // namespace ringkern::torch_ext
