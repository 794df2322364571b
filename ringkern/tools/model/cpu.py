"""The formulas for CPU hosts: ranks that share memory inside a host, Gloo over Ethernet between.

Inside a host, the times are ringkern's measurements. Gloo's all-reduce is a ring whose ranks go
step by step. It cuts the data of a step into two or more segments, and some are in flight while
others are added up. So a step takes its latency, and its bytes over the bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...choose import tables
from ...choose.cost import Way, wire_bytes
from ...choose.tuning import LIKE
from ...hosts.inter_host_cost import GLOO, GLOO_CROWDED, InterHostCost
from .constants import PROTOCOLS
from .estimate import FLAT_RING, FLAT_TREE, Estimate, Phase, estimate, hierarchy

# The latency of a step of Gloo on one machine, and the GB/s of one of its rings: half of the
# shortest time of a small all-reduce of 2 ranks, and 64 MB to 256 MB of the same run, each sending
# as much (bench/results/2026-11-21-cpu-2-ranks-peers.json).
STEP_US = 18.0
RAIL_GB_S = 3.0
# Assumed, not measured: the time that NICs and a switch add to a step. `--inter-us` sets the sum.
NETWORK_US = 12.0
NETWORK_GBIT = 10.0
# The share of data on an Ethernet: 1448 bytes in each 1538, with the headers of TCP, IP and
# Ethernet, and the gap between frames.
DATA_SHARE = 1448 / 1538
RING = Way("ring", "simple")


@dataclass(frozen=True)
class Host:
    """A machine without GPUs.

    Attributes:
        ranks: number of ranks on it.
        cores: number of cores for them.
    """

    ranks: int
    cores: int

    @property
    def crowded(self) -> bool:
        """Returns whether ranks share cores."""
        return self.ranks > self.cores

    @property
    def costs(self) -> tables.Costs:
        """Returns times that were measured inside a host."""
        return tables.shipped(self.ranks, self.crowded)

    @property
    def inter_host_cost(self) -> InterHostCost:
        """Returns the costs that cut a call over Gloo."""
        return GLOO_CROWDED if self.crowded else GLOO

    def turns(self, ranks: int) -> float:
        """Returns how much longer each rank takes if this many of its ranks work at once."""
        return max(1.0, ranks / self.cores)


@dataclass(frozen=True)
class Ethernet:
    """The network between CPU hosts.

    Attributes:
        hosts: number of hosts.
        host_gb_s: of data from a host to the others, in one direction, for all of its ranks.
        step_us: of a step of Gloo between hosts.
    """

    hosts: int
    host_gb_s: float = NETWORK_GBIT / 8 * DATA_SHARE
    step_us: float = STEP_US + NETWORK_US


def estimates(host: Host, network: Ethernet | None, nbytes: float) -> list[Estimate]:
    """Returns all ways of an all-reduce, the fastest first.

    Args:
        host: every host is like this one.
        network: between the hosts; ``None``: there is one host.
        nbytes: of one rank's tensor.
    """
    if network is None or network.hosts == 1:
        ways = [_ring(host, protocol, nbytes) for protocol in PROTOCOLS]
    else:
        ways = [_flat_ring(host, network, nbytes), _flat_tree(host, network, nbytes)]
        ways.append(_hierarchy(host, network, nbytes))
    return sorted(ways, key=lambda found: found.time_us)


def _measured(host: Host, way: Way, collective: str, nbytes: float) -> float:
    """Returns microseconds inside a host."""
    cost = host.costs.measured.ways[LIKE.get(collective, collective), way].cost
    return cost.time_us(way, collective, host.ranks, nbytes)


def _ring(host: Host, protocol: str, nbytes: float) -> Estimate:
    way = Way("ring", protocol)
    time, least = (_measured(host, way, "all_reduce", size) for size in (nbytes, 0))
    return estimate("ring", protocol, host.ranks, nbytes, time, least)


def _flat_ring(host: Host, network: Ethernet, nbytes: float) -> Estimate:
    """Predicts Gloo over all ranks, in their order: a host has one link out, and one in."""
    ranks = host.ranks * network.hosts
    turns = host.turns(host.ranks)
    between = min(2 * network.hosts, 2 * (ranks - 1))
    least = turns * (between * network.step_us + (2 * (ranks - 1) - between) * STEP_US)
    gb_s = min(RAIL_GB_S / turns, network.host_gb_s)
    time = least + wire_bytes(RING, "all_reduce", ranks, nbytes) / (gb_s * 1e3)
    return estimate(FLAT_RING, "gloo", ranks, nbytes, time, least)


def _flat_tree(host: Host, network: Ethernet, nbytes: float) -> Estimate:
    """Predicts two trees over hosts, each the root of a chain through its ranks, with Gloo's steps.

    Gloo has none; MPI and UCC may.
    """
    turns = host.turns(host.ranks)
    levels = (network.hosts - 1).bit_length()
    least = 2 * turns * (levels * network.step_us + (host.ranks - 1) * STEP_US)
    gb_s = min(RAIL_GB_S / turns, network.host_gb_s)
    ranks = host.ranks * network.hosts
    return estimate(FLAT_TREE, "", ranks, nbytes, least + 2 * nbytes / (gb_s * 1e3), least)


def _hierarchy(host: Host, network: Ethernet, nbytes: float) -> Estimate:
    def inside(collective: str, whole: float, pieces: int) -> Phase:
        """Uses the bandwidth of a tensor of the whole size, which stages do not change."""
        found = []
        for protocol in PROTOCOLS:
            way = Way("ring", protocol)
            time, least = (_measured(host, way, collective, size) for size in (whole, 0))
            found.append(Phase(least + (time - least) / pieces, least, protocol))
        return min(found)

    def between(rails: int, piece: float) -> Phase:
        turns = host.turns(rails)
        least = 2 * (network.hosts - 1) * turns * network.step_us
        gb_s = min(rails * RAIL_GB_S / turns, network.host_gb_s)
        moved = wire_bytes(RING, "all_reduce", network.hosts, piece)
        return Phase(least + moved / (gb_s * 1e3), least, "gloo")

    return hierarchy(network.hosts, host.ranks, nbytes, host.inter_host_cost, inside, between)
