"""How an all-reduce of ranks on several hosts is cut: over how many rails, in how many pieces.

Inside a host the ring reduces and scatters a piece, an engine of torch.distributed reduces each
rank's shard of it between the hosts, on rails, and the ring gathers. While the engine works on one
piece, the ring works on the next:

    ring      scatter 0  scatter 1  scatter 2    gather 0  scatter 3  gather 1 ...
    engine              [------ 0 ------][------ 1 ------][------ 2 ------][-- 3 ...

Every rank of every host must cut alike, so the cut follows from whole numbers that all of them
know. ``csrc/core/pieces.h`` is the same for calls that are made; this is for those that are not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

K, M = 1 << 10, 1 << 20

# The ring waits for a piece when it has given the engine so many after it.
UNDER_WAY = 2
# Beyond so many, what is still to be hidden is less than 1/16 of what the ring takes.
MOST_PIECES = 16


class Crossing(NamedTuple):
    """What a cut has to know of the way between hosts, and of the engine that goes it.

    Attributes:
        rail_bytes: for each host and rail, from how many bytes on all rails are worth it: what a
            rail moves in the time that another one, on the same cores, adds to a step.
        piece_bytes: what the ring inside a host moves in the time that the engine waits in two
            steps of a call, or in starting it.
        tree: whether the engine's steps grow with the logarithm of the hosts, as those of two
            trees do, or with the hosts, as those of a ring.
    """

    rail_bytes: int
    piece_bytes: int
    tree: bool


# A call of Gloo between two hosts takes 36 us at best (bench/results/2026-11-21-cpu-2-ranks-peers
# .json), some times that where threads have to be woken: 64 us, for two steps or for the start, at
# 8 GB/s are 512 KiB. Where ranks outnumber cores threads also wait for a core. There the quickest
# of several cuts, measured in turn, goes by twice as much (2 and 3 hosts of 2 and 3 ranks, network
# namespaces of a machine with 2 cores, 3 to 64 MB).
GLOO = Crossing(16 * K, 512 * K, tree=False)
GLOO_CROWDED = Crossing(3 * M // 2, M, tree=False)
# Two steps of NCCL between hosts take 28 us by Simple, the start of a call 8 (scale/constants.py),
# in which NVLinks move 5 MB and 1.5. A GPU has a NIC of its own: rails do not wait for each other.
NCCL = Crossing(0, 3 * M, tree=True)


class Cut(NamedTuple):
    """Of one call.

    Attributes:
        rails: that are used: all, or 1, where a host's first rank alone speaks with other hosts.
        pieces: one after the other.
    """

    rails: int
    pieces: int


def rails_and_pieces(
    nbytes: int, hosts: int, ranks: int, crossing: Crossing, *, most_ranks: int | None = None
) -> Cut:
    """How a call is cut.

    A piece costs the engine its latency once more, and cutting hides what the ring takes, once:
    pieces * latency + ring / pieces is least for the root of the quotient.

    Args:
        nbytes: of one rank's tensor.
        hosts: how many.
        ranks: of the host that has the fewest, which is how many rails there are.
        crossing: between the hosts.
        most_ranks: of the host that has the most; ``None``: all have ``ranks``.
    """
    if hosts == 1:
        return Cut(1, 1)
    rails = ranks if nbytes >= hosts * ranks * crossing.rail_bytes else 1
    if (most_ranks or ranks) == 1:
        return Cut(rails, 1)  # no ring, and nothing to hide
    steps = hosts.bit_length() if crossing.tree else hosts
    pieces = math.isqrt(nbytes // (steps * crossing.piece_bytes))
    return Cut(rails, max(1, min(pieces, MOST_PIECES)))


def pipelined_us(scatter: float, between: float, gather: float, pieces: int) -> float:
    """Microseconds of equal pieces, one after the other as in the picture above.

    Args:
        scatter, between, gather: what one piece takes, in microseconds. The engine does one piece
            at a time.
        pieces: 1 or more.
    """
    if pieces == 1:
        return scatter + between + gather
    engine = scatter + pieces * between + gather
    # While the ring scatters the next ones, and while it gathers those before the last.
    beside = min(UNDER_WAY, pieces - 1)
    waits = max(0.0, between - beside * scatter) + max(0.0, between - beside * gather)
    return max(engine, pieces * (scatter + gather) + waits)
