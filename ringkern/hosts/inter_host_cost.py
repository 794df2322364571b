"""The costs of the engine between hosts, by which ``csrc/hosts/stages.h`` cuts a call."""

from __future__ import annotations

from typing import NamedTuple

K, M = 1 << 10, 1 << 20


class InterHostCost(NamedTuple):
    """The costs of the engine between hosts that determine a cut.

    Attributes:
        rail_bytes: bytes per host and rail from which all rails are used: the bytes that a rail
            moves in the time that another rail on the same cores adds to a step.
        stage_bytes: bytes that the ring inside a host moves in the time that the engine waits in
            two steps of a call, or that it needs to start the call.
        tree: whether the number of the engine's steps grows with the logarithm of the number of
            hosts, as with two trees, or with that number, as with a ring.
    """

    rail_bytes: int
    stage_bytes: int
    tree: bool


# A call of Gloo between two hosts takes 36 us at best (bench/results/2026-11-21-cpu-2-ranks-peers
# .json), and several times that if threads have to be woken. 64 us, for two steps or for the start,
# are 512 KiB at 8 GB/s. If ranks outnumber cores, threads also wait for a core. There the fastest
# of several cuts, measured in turn, has twice as many bytes (2 and 3 hosts of 2 and 3 ranks,
# network namespaces of a machine with 2 cores, 3 to 64 MB).
GLOO = InterHostCost(16 * K, 512 * K, tree=False)
GLOO_CROWDED = InterHostCost(3 * M // 2, M, tree=False)
# Two steps of NCCL between hosts take 28 us over Simple, and the start of a call 8 us
# (ringkern/tools/model/constants.py). NVLinks move 5 MB and 1.5 MB in these times. A GPU has its
# own NIC: rails do not wait for each other.
NCCL = InterHostCost(0, 3 * M, tree=True)
