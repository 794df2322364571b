"""NVIDIA's published costs of rings and trees on GPUs: the constants by which NCCL chooses.

They are from NCCL 2.30.7, ``src/graph/tuning.cc`` (base, hops, bandwidths in one node, trees). The
others, for several nodes, are from the same file in 2.20.3. Left out are its factor for the latency
of long Simple rings on several nodes, its factor for trees without a second parent, and limits of a
channel which the networks of today do not reach. Nothing here was measured by ringkern.
"""

from __future__ import annotations

import math

from ...choose.cost import ANY_SIZE, OVERHEAD, Cost, Tier

PROTOCOLS = ("ll", "ll128", "simple")
ARCHITECTURES = ("Volta", "Ampere", "Hopper", "Blackwell")

# Microseconds of a ring before anything moves, and of one hop.
BASE_US = {"ll": 6.6, "ll128": 14.0, "simple": 8.4}
HOP_US = {
    "NVLink": {"ll": 0.6, "ll128": 1.9, "simple": 3.4},
    "PCIe": {"ll": 1.0, "ll128": 2.5, "simple": 5.7},
    "network": {"ll": 2.7, "ll128": 4.0, "simple": 14.0},
}
# The same for trees. If a node has one rank, a ring's hops between nodes are like a tree's.
TREE_BASE_US = {"ll": 6.8, "ll128": 14.0, "simple": 8.4}
TREE_HOP_US = {
    "NVLink": {"ll": 0.6, "ll128": 1.25, "simple": 4.0},
    "PCIe": {"ll": 1.0, "ll128": 1.9, "simple": 4.0},
    "network": {"ll": 5.0, "ll128": 8.5, "simple": 14.0},
}
TREE_SHARE = 0.92  # of the bandwidth of the links
TREE_PROTOCOL_SHARE = {"ll": 1 / 3.8, "ll128": 120 / 128, "simple": 1.0}  # of that
# The share of its bandwidth that a tree reaches, for 64 bytes and each doubling from there.
TREE_REACHED = {
    "ll": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1),
    "ll128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1),
    "simple": (
        .9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9,
    ),
}  # fmt: skip
# GB/s of data: LL in one node; LL on several nodes, limited by the CPU that the lines go through,
# for two nodes and for more; LL128 per channel.
LL_GB_S = {"Volta": 39.0, "Ampere": 87.7, "Hopper": 141.0, "Blackwell": 282.0}
LL_NETWORK_GB_S = {"GenuineIntel": (39.0, 20.4), "AuthenticAMD": (22.5, 19.0)}
LL128_CHANNEL_GB_S = {"Volta": 20.0, "Ampere": 20.0, "Hopper": 36.7, "Blackwell": 40.0}
LL_SHARE, LL128_SHARE = 0.5, 0.92  # of the bandwidth of the links
# In a ring that spans nodes, every hop takes at least the time that a post to the network costs the
# CPU.
POST_US = {"GenuineIntel": 1.0, "AuthenticAMD": 2.0}
POSTS = {"ll": 1, "ll128": 1, "simple": 3}
# Channels of NCCL on eight A100 and H100: NVIDIA/nccl-tests#100, NVIDIA/nccl#1259.
CHANNELS = 24


def architecture(cc: int | None) -> str:
    """Returns the architecture whose constants NCCL takes for a compute capability, such as 90.

    Raises:
        ValueError: it is unknown.
    """
    if cc is None:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"the file does not say which GPUs these are: give --arch, of {known}")
    return ARCHITECTURES[(cc >= 80) + (cc >= 90) + (cc >= 100)]


def link_of(kinds: set[str]) -> str:
    """Returns the table's row for these kinds of hops; in NCCL, a shared GPU counts as PCIe."""
    return "NVLink" if kinds <= {"NVL", "NVS", "C2C"} else "PCIe"


def data_gb_s(protocol: str, arch: str, links_gb_s: float, channels: int = CHANNELS) -> float:
    """Returns the GB/s of data over links of these GB/s in one node: nccl-tests' bus bandwidth."""
    if protocol == "ll":
        return min(LL_GB_S[arch], LL_SHARE * links_gb_s)
    if protocol == "ll128":
        return min(LL128_CHANNEL_GB_S[arch] * channels, LL128_SHARE * links_gb_s)
    return links_gb_s


def network_gb_s(protocol: str, vendor: str, nodes: int, links_gb_s: float) -> float:
    """Returns the same between nodes; `links_gb_s`: from a node to the next, of all its ranks."""
    if protocol == "ll":
        return min(_ll_gb_s(vendor, nodes), LL_SHARE * links_gb_s)
    return links_gb_s * (LL128_SHARE if protocol == "ll128" else 1.0)


def _ll_gb_s(vendor: str, nodes: int) -> float:
    limits = LL_NETWORK_GB_S.get(vendor, LL_NETWORK_GB_S["GenuineIntel"])
    return limits[nodes > 2]


def tree_gb_s(protocol: str, vendor: str, nodes: int, links_gb_s: float, nbytes: float) -> float:
    """Returns the GB/s of data up a tree, and as much down, over links of these GB/s between nodes.

    Args:
        protocol, vendor, nodes, links_gb_s: see :func:`network_gb_s`.
        nbytes: of the call. Between the sizes of NCCL's table it is interpolated, so that a larger
            call never takes less.
    """
    gb_s = links_gb_s * TREE_SHARE * TREE_PROTOCOL_SHARE[protocol]
    if protocol == "ll":
        gb_s = min(gb_s, _ll_gb_s(vendor, nodes))
    reached = TREE_REACHED[protocol]
    doublings = min(max(math.log2(max(nbytes, 64) / 64), 0.0), len(reached) - 1)
    low = min(int(doublings), len(reached) - 2)
    return gb_s * (reached[low] + (doublings - low) * (reached[low + 1] - reached[low]))


def cost(protocol: str, hop_us: float, gb_s: float) -> Cost:
    """Returns the cost of a protocol whose hops take `hop_us` and whose data moves at `gb_s`."""
    wire = gb_s * OVERHEAD[protocol] if gb_s < math.inf else math.inf
    return Cost(BASE_US[protocol], hop_us, (Tier(ANY_SIZE, wire),))


def protocols(link: str) -> tuple[str, ...]:
    """Returns NCCL's protocols over a link: LL128 needs stores of 128 bytes to arrive whole."""
    return PROTOCOLS if link == "NVLink" else ("ll", "simple")
