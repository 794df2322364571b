"""The formulas for GPUs: one node; several by a flat ring, a flat tree, and a hierarchy.

Assumptions: ranks start together. Each rank of a node has its own link to the other nodes. A flat
ring or tree has as many copies, each leaving its node at another rank, so that all links are in
use. Nothing else uses the network between nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...choose import rings
from ...choose.cost import Way
from ...choose.topology import Machine
from ...hosts.inter_host_cost import NCCL
from . import constants
from .estimate import FLAT_RING, FLAT_TREE, Estimate, Phase, estimate, hierarchy


@dataclass(frozen=True)
class Node:
    """A machine, with the figures that a prediction needs.

    Attributes:
        name: of the machine.
        ranks: number of ranks on it.
        arch: such as Hopper; selects NCCL's constants.
        link: "NVLink" or "PCIe", selects NCCL's latencies.
        links_gb_s: of its rings together; infinite with one rank.
        vendor: of its CPUs, from CPUID.
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
    """The network between nodes.

    Attributes:
        nodes: number of nodes.
        rank_gb_s: from each rank to other nodes, in one direction.
        hop_us: of a hop between nodes, by protocol; NCCL's constants if not given.
    """

    nodes: int
    rank_gb_s: float
    hop_us: dict[str, float] = field(default_factory=lambda: dict(constants.HOP_US["network"]))

    def exposed_us(self, protocol: str) -> float:
        """Returns the latency of an idle hop: of a tree, and of a ring with one rank per node.

        Args:
            protocol: such as "ll".
        """
        longer = constants.TREE_HOP_US["network"][protocol] - constants.HOP_US["network"][protocol]
        return self.hop_us[protocol] + longer


def node_of(machine: Machine, ranks: int | None = None, arch: str | None = None) -> Node:
    """Returns a node with one rank on each of its first GPUs.

    Args:
        machine: the machine whose links are used.
        ranks: number of ranks; ``None``: one on each GPU.
        arch: of the GPUs, such as ``"Hopper"``; ``None``: by their compute capability.

    Raises:
        ValueError: it has too few GPUs, they are unknown, or no ring joins them.
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
    """Returns all ways of an all-reduce, the fastest first.

    Args:
        node: every machine is like this one.
        network: between the machines; ``None``: there is one machine.
        nbytes: of one rank's tensor.
    """
    usable = constants.protocols(node.link)
    if network is None or network.nodes == 1:
        ways = [_ring(node, protocol, nbytes) for protocol in usable]
    else:
        ways = [_flat_ring(node, network, protocol, nbytes) for protocol in usable]
        ways += [_flat_tree(node, network, protocol, nbytes) for protocol in usable]
        ways.append(_hierarchy(node, network, nbytes))
    return sorted(ways, key=lambda found: found.time_us)


def _inside(node: Node, protocol: str, collective: str, nbytes: float) -> float:
    """Returns microseconds of a collective of one node's ranks."""
    gb_s = constants.data_gb_s(protocol, node.arch, node.links_gb_s)
    cost = constants.cost(protocol, constants.HOP_US[node.link][protocol], gb_s)
    return cost.time_us(Way("ring", protocol), collective, node.ranks, nbytes)


def _ring(node: Node, protocol: str, nbytes: float) -> Estimate:
    time, least = (_inside(node, protocol, "all_reduce", size) for size in (nbytes, 0))
    return estimate("ring", protocol, node.ranks, nbytes, time, least)


def _flat_ring(node: Node, network: Network, protocol: str, nbytes: float) -> Estimate:
    """Predicts a ring through all ranks of all nodes; a chunk crosses the network twice a node."""
    ranks = node.ranks * network.nodes
    inside = constants.HOP_US[node.link][protocol]
    inside = max(inside, constants.POST_US.get(node.vendor, 1.0) * constants.POSTS[protocol])
    between = min(2 * network.nodes, 2 * (ranks - 1))
    hop = network.hop_us[protocol] if node.ranks > 1 else network.exposed_us(protocol)
    latency = between * hop + (2 * (ranks - 1) - between) * inside
    ways = network.rank_gb_s * node.ranks
    gb_s = min(
        constants.data_gb_s(protocol, node.arch, node.links_gb_s),
        constants.network_gb_s(protocol, node.vendor, network.nodes, ways),
    )
    time, least = _ring_us(protocol, ranks, latency, gb_s, nbytes)
    return estimate(FLAT_RING, protocol, ranks, nbytes, time, least)


def _flat_tree(node: Node, network: Network, protocol: str, nbytes: float) -> Estimate:
    """Predicts two trees over the nodes, each the root of a chain through its ranks."""
    inside = 2 * (node.ranks - 1) * constants.TREE_HOP_US[node.link][protocol]
    gb_s = min(node.links_gb_s, network.rank_gb_s * node.ranks)
    time, least = _tree_us(node, network, protocol, gb_s, nbytes)
    ranks = node.ranks * network.nodes
    return estimate(FLAT_TREE, protocol, ranks, nbytes, inside + time, inside + least)


def _ring_us(
    protocol: str, ranks: int, latency_us: float, gb_s: float, nbytes: float
) -> tuple[float, float]:
    """Returns microseconds of these bytes, and of none, round a ring with this latency."""
    cost = constants.cost(protocol, latency_us / (2 * (ranks - 1)), gb_s)
    way = Way("ring", protocol)
    return cost.time_us(way, "all_reduce", ranks, nbytes), cost.time_us(way, "all_reduce", ranks, 0)


def _tree_us(
    node: Node,
    network: Network,
    protocol: str,
    links_gb_s: float,
    nbytes: float,
    rails: int = 1,
) -> tuple[float, float]:
    """Returns the same for trees between nodes, whose levels NCCL counts as whole doublings."""
    levels = network.nodes.bit_length() - 1
    least = constants.TREE_BASE_US[protocol] + 2 * levels * network.exposed_us(protocol)
    gb_s = constants.tree_gb_s(protocol, node.vendor, network.nodes, links_gb_s, nbytes) / rails
    return least + 2 * nbytes / (gb_s * 1e3), least


def _hierarchy(node: Node, network: Network, nbytes: float) -> Estimate:
    """Predicts the ring inside, and NCCL between nodes with a communicator for each rail."""
    usable = constants.protocols(node.link)

    def inside(collective: str, whole: float, pieces: int) -> Phase:
        return min(
            Phase(
                _inside(node, protocol, collective, whole / pieces),
                _inside(node, protocol, collective, 0),
                protocol,
            )
            for protocol in usable
        )

    def between(rails: int, piece: float) -> Phase:
        return min(
            Phase(*found, f"{name} {protocol}")
            for protocol in usable
            for name, found in _rail(node, network, protocol, rails, piece)
        )

    return hierarchy(network.nodes, node.ranks, nbytes, NCCL, inside, between)


def _rail(
    node: Node, network: Network, protocol: str, rails: int, nbytes: float
) -> list[tuple[str, tuple[float, float]]]:
    """Returns the inter-node time of a stage's shards, each over its rank's link: ring and tree."""
    ways, shard = network.rank_gb_s * rails, nbytes / rails
    # The limit of LL applies to a node, whose rails share it.
    gb_s = constants.network_gb_s(protocol, node.vendor, network.nodes, ways) / rails
    latency = 2 * (network.nodes - 1) * network.exposed_us(protocol)
    return [
        ("ring", _ring_us(protocol, network.nodes, latency, gb_s, shard)),
        ("tree", _tree_us(node, network, protocol, ways, shard, rails)),
    ]
