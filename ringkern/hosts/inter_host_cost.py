"""The parameters of the engine between hosts, by which ``csrc/hosts/stages.h`` cuts a call."""

from __future__ import annotations

from typing import NamedTuple

K, M = 1 << 10, 1 << 20


class InterHostCost(NamedTuple):
    """The engine between hosts, as far as a cut depends on it.

    Attributes:
        rail_bytes: for each host and rail, from how many bytes on all rails are worth it: what a
            rail moves in the time that another one, on the same cores, adds to a step.
        stage_bytes: what the ring inside a host moves in the time that the engine waits in two
            steps of a call, or in starting it.
        tree: whether the engine's steps grow with the logarithm of the hosts, as those of two
            trees do, or with the hosts, as those of a ring.
    """

    rail_bytes: int
    stage_bytes: int
    tree: bool


# A call of Gloo between two hosts takes 36 us at best (bench/results/2026-11-21-cpu-2-ranks-peers
# .json), some times that where threads have to be woken: 64 us, for two steps or for the start, at
# 8 GB/s are 512 KiB. Where ranks outnumber cores threads also wait for a core. There the quickest
# of several cuts, measured in turn, goes by twice as much (2 and 3 hosts of 2 and 3 ranks, network
# namespaces of a machine with 2 cores, 3 to 64 MB).
GLOO = InterHostCost(16 * K, 512 * K, tree=False)
GLOO_CROWDED = InterHostCost(3 * M // 2, M, tree=False)
# Two steps of NCCL between hosts take 28 us by Simple, the start of a call 8 (scale/constants.py),
# in which NVLinks move 5 MB and 1.5. A GPU has a NIC of its own: rails do not wait for each other.
NCCL = InterHostCost(0, 3 * M, tree=True)
