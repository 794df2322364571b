"""The formulas: one node, several nodes by one flat ring, several nodes by a hierarchy.

What they assume: ranks start together; a node's ranks have a way of their own to the other nodes,
and a flat ring has as many copies, each leaving its node by another rank, so that all ways are in
use; between nodes nothing else is on the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import rings
from ..cost import Way, bus_bandwidth
from ..topology import Machine
from . import constants


@dataclass(frozen=True)
class Node:
    """One machine, as far as a prediction needs it.

    Attributes:
        name: of the machine.
        ranks: on it.
        arch: as Hopper; which of NCCL's constants hold.
        link: "NVLink" or "PCIe", which of NCCL's latencies hold.
        links_gb_s: that its rings have together; infinite with one rank.
        vendor: CPUID's of its CPUs.
        found: its rings.
    """

    name: str
    ranks: int
    arch: str
    link: str
    links_gb_s: float
    vendor: str = ""
    found: rings.Rings | None = None


@dataclass(frozen=True)
class Network:
    """What is between nodes.

    Attributes:
        nodes: how many.
        rank_gb_s: of the way of each rank to other nodes, in one direction.
        hop_us: of a journey between nodes, by protocol; NCCL's constants if not given.
    """

    nodes: int
    rank_gb_s: float
    hop_us: dict[str, float] = field(default_factory=lambda: dict(constants.HOP_US["network"]))


class Estimate(NamedTuple):
    """One way of an all-reduce.

    Attributes:
        way: as "ring", "flat ring", "hierarchy".
        protocol: of the ring; of a hierarchy inside and between nodes, as "ll + simple".
        time_us: predicted.
        bus_gb_s: what nccl-tests calls bus bandwidth, over all ranks.
        latency_us: the part of the time that does not depend on the size.
        compared: False: only to compare with; it is not what a ring does.
    """

    way: str
    protocol: str
    time_us: float
    bus_gb_s: float
    latency_us: float
    compared: bool = True


def node_of(machine: Machine, ranks: int | None = None, arch: str | None = None) -> Node:
    """A node with one rank on each of its first GPUs.

    Args:
        machine: whose links are looked at.
        ranks: how many; ``None``: one on each GPU.
        arch: of the GPUs, as ``"Hopper"``; ``None``: by their compute capability.

    Raises:
        ValueError: it has not so many GPUs, they are not known, or no ring joins them.
    """
    gpus = len(machine.gpus)
    ranks = gpus if ranks is None else ranks
    if not 1 <= ranks <= gpus:
        raise ValueError(
            f"{ranks} ranks on {machine.name or 'this machine'}, which has {gpus} GPUs: "
            "give at most as many, and --nodes for more"
        )
    fabric = machine.fabric(range(ranks))
    found = rings.search(fabric)
    hops = {hop for order in found.orders for hop in zip(order, order[1:] + order[:1])}
    kinds = {fabric.kinds[hop] for hop in hops if hop in fabric.kinds}
    return Node(
        name=machine.name,
        ranks=ranks,
        arch=arch or constants.architecture(machine.gpus[0].cc),
        link=constants.link_of(kinds),
        links_gb_s=found.total_gb_s,
        vendor=machine.cpus[0].vendor if machine.cpus else "",
        found=found,
    )


def estimates(node: Node, network: Network | None, nbytes: float) -> list[Estimate]:
    """All ways of an all-reduce, the fastest first.

    Those that are only there to compare with come last.

    Args:
        node: of which every machine is one.
        network: what is between them; ``None``: there is one machine.
        nbytes: of one rank's tensor.
    """
    if network is None or network.nodes == 1:
        ways = [_ring(node, protocol, nbytes) for protocol in constants.protocols(node.link)]
    else:
        ways = [
            _flat(node, network, protocol, nbytes) for protocol in constants.protocols(node.link)
        ]
        ways += _hierarchies(node, network, nbytes)
    return sorted(ways, key=lambda estimate: (not estimate.compared, estimate.time_us))


def _estimate(
    way: str,
    protocol: str,
    ranks: int,
    nbytes: float,
    time: float,
    least: float,
    compared: bool = True,
) -> Estimate:
    bus = bus_bandwidth("all_reduce", ranks, nbytes, time)
    return Estimate(way, protocol, time, bus, least, compared)


def _inside(node: Node, protocol: str, collective: str, nbytes: float) -> float:
    """Microseconds of a collective of one node's ranks."""
    gb_s = constants.data_gb_s(protocol, node.arch, node.links_gb_s)
    cost = constants.cost(protocol, constants.HOP_US[node.link][protocol], gb_s)
    return cost.time_us(Way("ring", protocol), collective, node.ranks, nbytes)


def _ring(node: Node, protocol: str, nbytes: float) -> Estimate:
    time, least = (_inside(node, protocol, "all_reduce", size) for size in (nbytes, 0))
    return _estimate("ring", protocol, node.ranks, nbytes, time, least)


def _flat(node: Node, network: Network, protocol: str, nbytes: float) -> Estimate:
    """One ring through all ranks of all nodes; a chunk crosses the network twice a node."""
    ranks = node.ranks * network.nodes
    inside = constants.HOP_US[node.link][protocol]
    inside = max(inside, constants.POST_US.get(node.vendor, 1.0) * constants.POSTS[protocol])
    between = min(2 * network.nodes, 2 * (ranks - 1))
    latency = between * network.hop_us[protocol] + (2 * (ranks - 1) - between) * inside
    ways = network.rank_gb_s * node.ranks
    gb_s = min(
        constants.data_gb_s(protocol, node.arch, node.links_gb_s),
        constants.network_gb_s(protocol, node.vendor, network.nodes, ways),
    )
    cost = constants.cost(protocol, latency / (2 * (ranks - 1)), gb_s)
    way = Way("ring", protocol)
    time, least = (cost.time_us(way, "all_reduce", ranks, size) for size in (nbytes, 0))
    return _estimate("flat ring", protocol, ranks, nbytes, time, least)


def _hierarchies(node: Node, network: Network, nbytes: float) -> list[Estimate]:
    """Reduce-scatter inside, all-reduce of each shard between equal ranks, all-gather inside.

    The fastest protocol inside and the fastest between, one phase after the other; and to compare
    with: phases that overlap, cut in so many pieces that the slowest one alone counts; and two
    trees between the nodes in place of a ring, with their latency by the logarithm.
    """
    ranks = node.ranks * network.nodes
    usable = constants.protocols(node.link)
    inside = min(
        (_two_halves(node, protocol, nbytes), _two_halves(node, protocol, 0), protocol)
        for protocol in usable
    )
    ring = min(_between(node, network, protocol, nbytes, False) for protocol in usable)
    tree = min(_between(node, network, protocol, nbytes, True) for protocol in usable)

    def summed(
        way: str, phase: tuple[float, float, str], overlap: bool = False, compared: bool = False
    ) -> Estimate:
        time, least = inside[0] + phase[0], inside[1] + phase[1]
        if overlap:
            time = least + max(inside[0] - inside[1], phase[0] - phase[1])
        protocol = f"{inside[2]} + {phase[2]}" if node.ranks > 1 else phase[2]
        return _estimate(way, protocol, ranks, nbytes, time, least, compared)

    return [
        summed("hierarchy", ring, compared=True),
        summed("hierarchy, overlapped", ring, overlap=True),
        summed("hierarchy, tree between", tree),
    ]


def _two_halves(node: Node, protocol: str, nbytes: float) -> float:
    if node.ranks == 1:
        return 0.0
    halves = ("reduce_scatter", "all_gather")
    return sum(_inside(node, protocol, half, nbytes) for half in halves)


def _between(
    node: Node, network: Network, protocol: str, nbytes: float, tree: bool
) -> tuple[float, float, str]:
    """Time and latency of all shards between the nodes, each over its rank's way."""
    ways = network.rank_gb_s * node.ranks
    gb_s = constants.network_gb_s(protocol, node.vendor, network.nodes, ways) / node.ranks
    hop = network.hop_us[protocol]
    if tree:
        hop *= math.ceil(math.log2(network.nodes)) / (network.nodes - 1)
    cost = constants.cost(protocol, hop, gb_s)
    way = Way("ring", protocol)
    time, least = (
        cost.time_us(way, "all_reduce", network.nodes, size) for size in (nbytes / node.ranks, 0)
    )
    return time, least, protocol
