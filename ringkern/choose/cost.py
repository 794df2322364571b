"""The time of a collective, from the bytes that it moves and the number of waits for other ranks.

    time = base + hops * hop + bytes on the wire / bandwidth

``base`` is the cost of a call before anything moves, and ``hop`` the latency from rank to rank. The
bandwidth is that of the link: of an NVLink or a PCIe path, or, between processes on a CPU, of the
cache that holds a tensor of that size. Nothing here needs torch or a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Bytes on the wire for each byte of data: csrc/core/wire.h.
OVERHEAD = {"simple": 1.0, "ll": 2.0, "ll128": 128 / 120}
# The same for the direct all-reduces on a CPU, whose lines have 64 bytes: csrc/cpu/mesh.h. On CUDA
# they have the lines of the ring.
_DIRECT_ON_CPU = {"simple": 1.0, "ll": 64 / 56}

ANY_SIZE = 2**62  # bytes; more than any tensor has


class Way(NamedTuple):
    """A way to run a collective.

    Attributes:
        algorithm, protocol: their names, such as ``"ring"`` and ``"ll"``.
        channels: the number of channels that run at the same time.
    """

    algorithm: str
    protocol: str
    channels: int = 1

    def __str__(self) -> str:
        return f"{self.algorithm}/{self.protocol}"


def hops(way: Way, collective: str, ranks: int) -> int:
    """Returns the number of consecutive hops of the first byte of a call.

    Args:
        way: the way of the call.
        collective: such as ``"all_reduce"``.
        ranks: number of ranks.
    """
    if ranks == 1:
        return 0
    if collective != "all_reduce":
        return ranks - 1
    return {"ring": 2 * (ranks - 1), "one_shot": 1, "two_shot": 2}[way.algorithm]


def wire_bytes(way: Way, collective: str, ranks: int, nbytes: float, device: str = "cpu") -> float:
    """Returns the bytes that a rank sends, flags included.

    Args:
        way, collective, ranks: as for :func:`hops`.
        nbytes: of the tensor of an all-reduce; for other collectives, of all ranks' parts together,
            as nccl-tests counts.
        device: ``"cpu"`` or ``"cuda"``.
    """
    copies, overhead = _per_byte(way, collective, ranks, device)
    return nbytes * copies * overhead


def _per_byte(way: Way, collective: str, ranks: int, device: str) -> tuple[float, float]:
    """Returns how often a rank sends each byte, and with how many bytes on the wire."""
    if ranks == 1:
        return 0.0, 1.0
    overhead = OVERHEAD if way.algorithm == "ring" or device == "cuda" else _DIRECT_ON_CPU
    share = (ranks - 1) / ranks
    copies = {
        "all_reduce": {"ring": 2 * share, "one_shot": ranks - 1.0, "two_shot": 2 * share},
        "reduce_scatter": {"ring": share},
        "all_gather": {"ring": share},
        "broadcast": {"ring": 1.0},
        "reduce": {"ring": 1.0},
    }[collective][way.algorithm]
    return copies, overhead[way.protocol]


class Tier(NamedTuple):
    """A bandwidth, and the largest size of a tensor for which it holds.

    Attributes:
        up_to: that size, in bytes.
        gb_s: 1e9 bytes a second, on the wire.
    """

    up_to: int
    gb_s: float


@dataclass(frozen=True)
class Cost:
    """The cost of one way over one kind of link.

    Attributes:
        base_us: microseconds before anything moves.
        hop_us: microseconds from rank to rank.
        tiers: bandwidths by the size of the tensor, in rising order; the last one has
            ``ANY_SIZE``. A larger tensor moves its first bytes at the first bandwidth, and so on,
            so that the time has no steps.
        device: ``"cpu"`` or ``"cuda"``.
    """

    base_us: float
    hop_us: float
    tiers: tuple[Tier, ...]
    device: str = "cpu"

    def time_us(self, way: Way, collective: str, ranks: int, nbytes: float) -> float:
        """Returns the predicted microseconds of a call.

        Args:
            way, collective, ranks, nbytes: as for :func:`wire_bytes`.
        """
        return self.times_us(way, collective, ranks, [nbytes])[0]

    def times_us(
        self, way: Way, collective: str, ranks: int, sizes: Sequence[float]
    ) -> list[float]:
        """Returns the predicted microseconds of calls of rising sizes.

        Args:
            way, collective, ranks: as for :func:`wire_bytes`.
            sizes: as ``nbytes`` there.
        """
        copies, overhead = _per_byte(way, collective, ranks, self.device)
        start = self.base_us + hops(way, collective, ranks) * self.hop_us  # of this tier
        tiers = iter(self.tiers)
        tier, below = next(tiers), 0.0
        times = []
        for nbytes in sizes:
            while nbytes > tier.up_to:
                start += (tier.up_to - below) * copies * overhead / (tier.gb_s * 1e3)
                tier, below = next(tiers), tier.up_to
            times.append(start + (nbytes - below) * copies * overhead / (tier.gb_s * 1e3))
        return times


def bus_share(collective: str, ranks: int) -> float:
    """Returns the part of a collective's bytes on each link of a ring, as nccl-tests counts.

    Args:
        collective, ranks: as for :func:`hops`.
    """
    return (ranks - 1) / ranks * (2 if collective == "all_reduce" else 1)


def bus_bandwidth(collective: str, ranks: int, nbytes: float, time_us: float) -> float:
    """Returns the GB/s on each link of a ring, as nccl-tests counts; comparable between ranks.

    Args:
        collective, ranks, nbytes: as for :func:`wire_bytes`.
        time_us: of the call.
    """
    if time_us <= 0 or ranks == 1:
        return math.nan
    return nbytes * bus_share(collective, ranks) / (time_us * 1e3)
