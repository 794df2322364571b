"""The formulas for ranks that own several cores of one server, on one socket or several.

A library moves a tensor in passes. In a pass each rank moves bytes with all its threads, and waits
for the other ranks. A pass takes the longest of three times:

- its bytes over what the cores of a rank move;
- the bytes of a socket's ranks over the bandwidth of its memory, where tensors and buffers are
  larger than its caches;
- the bytes that come to a socket from others over the bandwidth of the link.

Nothing was measured on several sockets by ringkern. The errors against times that DeepSpeed's
authors published are those of :func:`as_rows`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...units import size_text
from .estimate import Estimate, estimate

K, M = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Server:
    """A machine whose ranks own cores, of which each socket has as many.

    Attributes:
        ranks: number of ranks, in the order of the sockets.
        threads: of each rank, each with a core.
        sockets: number of sockets.
        memory_gb_s: of a socket's memory, read and written.
        link_gb_s: from one socket to another, in one direction.
        cache_bytes: of a socket's last-level cache.
        core_cache_bytes: of a core's second-level cache.
    """

    ranks: int
    threads: int
    sockets: int = 1
    # An Intel Xeon Platinum 8480+. Eight channels of DDR5-4800 move 307 GB/s, of which STREAM
    # reaches some 80 %. The link is fitted to one published time, of 32 MiB.
    memory_gb_s: float = 245.0
    link_gb_s: float = 70.0
    cache_bytes: int = 105 * M
    core_cache_bytes: int = 2 * M

    @property
    def near(self) -> float:
        """Returns the number of ranks of a socket; below 1, a rank has several sockets."""
        return self.ranks / self.sockets

    @property
    def caches(self) -> int:
        """Returns the bytes of all caches of a socket."""
        return self.cache_bytes + int(self.near * self.threads) * self.core_cache_bytes


class Pass(NamedTuple):
    """The bytes of a rank in a pass.

    Attributes:
        moved: read and written.
        across: read from other sockets, and written to them.
    """

    moved: float
    across: float


@dataclass(frozen=True)
class Library:
    """The passes and rates of a library.

    Attributes:
        passes: (server, bytes of a rank's tensor) to them.
        core_gb_s: number of ranks to what a core moves, while all others move as much.
        regions: the number of times that threads are started, if there are several.
        least: bytes of a call from which on a rank uses its threads.
        buffers: bytes in the caches for each byte of a tensor.
        all_in_memory: whether a large call moves its buffers through memory, too; else they stay in
            the caches of the cores.
    """

    passes: Callable[[Server, float], list[Pass]]
    core_gb_s: Callable[[int], float]
    regions: int
    least: int = 0
    buffers: int = 1
    all_in_memory: bool = True


# Fitted to bench/results/2026-11-27-cpu-2x8-threads.json and its neighbours, on one socket: the
# rates of cores. To DeepSpeed's published time of 2 bytes: a parallel region of 56 threads, 5.7 us.
# A region of some threads starts in 5 us (docs/design/cpu.md), most of which overlaps the work.
REGION_US, REGION_POWER = 1.15, 0.4
CALL_US = 1.5
# Assumed: a journey between cores of a socket and of two, with the store and the wait; and what one
# core reads of another socket's lines.
HOP_US, FAR_HOP_US = 0.2, 0.5
FAR_CORE_GB_S = 8.0
# A core whose neighbours do nothing moves more (docs/design/cpu.md: 256 KiB).
ALONE = 1.7


def two_shot(server: Server, nbytes: float) -> list[Pass]:
    """Returns the passes of ``two_shot``: stage, reduce and give back, collect."""
    others = (server.ranks - 1) / server.ranks
    return [
        Pass(2 * nbytes * others, 0),
        Pass(2 * nbytes, 2 * _far(server) * nbytes),
        Pass(2 * nbytes * others, 0),
    ]


def chain(server: Server, nbytes: float) -> list[Pass]:
    """Returns the passes of csrc/cpu/mesh_sockets.h: stage, reduce in a chain, collect."""
    own = nbytes / server.near
    return [
        Pass(2 * (nbytes - own), 0),
        Pass(nbytes + own + server.sockets * own, own),
        Pass(2 * nbytes, 0),
    ]


def _chains(server: Server, nbytes: float) -> bool:
    return server.sockets > 1 and server.near >= 2 and nbytes >= 256 * K  # csrc/cpu/mesh.cpp


def _staged(server: Server, nbytes: float) -> list[Pass]:
    return (chain if _chains(server, nbytes) else two_shot)(server, nbytes)


def _in_place(server: Server, nbytes: float) -> list[Pass]:
    """Returns the passes of tensors in shared memory, which are not staged."""
    if _chains(server, nbytes):
        return chain(server, nbytes)[1:]
    return two_shot(server, nbytes)[1:2]


def _one_shot(server: Server, nbytes: float) -> list[Pass]:
    """Returns the passes of a library in which every rank reads the tensors of all."""
    ranks = server.ranks
    return [Pass(2 * nbytes, 0), Pass((ranks + 1) * nbytes, ranks * _far(server) * nbytes)]


def _deepspeed(server: Server, nbytes: float) -> list[Pass]:
    if nbytes < M:
        return _one_shot(server, nbytes)
    far = _far(server) * nbytes
    return [
        Pass(2 * nbytes, 0), Pass((1 + 1 / server.ranks) * nbytes, far), Pass(2 * nbytes, far),
    ]  # fmt: skip


def _far(server: Server) -> float:
    """Returns the share of ranks that are on other sockets than one rank."""
    return 1 - max(1.0, server.near) / server.ranks


def _ours(ranks: int) -> float:
    return 24.0 if ranks == 2 else 14.0


RINGKERN, SHARED = "ringkern", "ringkern, shared"
LIBRARIES = {
    RINGKERN: Library(_staged, _ours, 1, 256 * K, all_in_memory=False),
    SHARED: Library(_in_place, lambda _: 25.0, 1, 256 * K, all_in_memory=False),
    "deepspeed": Library(_deepspeed, lambda _: 10.0, 2, buffers=3),
    "vllm": Library(_one_shot, lambda _: 13.0, 2),
}


def time_us(server: Server, library: Library, nbytes: float) -> float:
    """Returns the predicted microseconds of an all-reduce in place.

    Args:
        library: one of ``LIBRARIES``.
        nbytes: of one rank's tensor.
    """
    threads = server.threads if nbytes >= library.least else 1
    passes = library.passes(server, nbytes)
    rate = library.core_gb_s(server.ranks) * (1.0 if threads > 1 else ALONE)
    time = CALL_US
    if threads > 1:
        time += library.regions * REGION_US * math.pow(threads, REGION_POWER)
    in_memory = server.near * nbytes * library.buffers > server.caches
    all_moved = sum(each.moved for each in passes)
    memory = all_moved if library.all_in_memory else 2 * nbytes
    for each in passes:
        took = [each.moved / (threads * rate), each.across / (threads * FAR_CORE_GB_S)]
        if in_memory:
            took.append(server.near * memory * each.moved / all_moved / server.memory_gb_s)
        if server.sockets > 1:
            took.append(server.near * each.across / server.link_gb_s)
        time += max(took) / 1e3 + (FAR_HOP_US if each.across else HOP_US)
    return time


def estimates(server: Server, nbytes: float) -> list[Estimate]:
    """Returns an all-reduce by each library, the fastest first.

    Args:
        nbytes: of one rank's tensor.
    """
    found = [
        estimate(
            *(name, "", server.ranks, nbytes),
            *(time_us(server, library, size) for size in (nbytes, 0)),
        )
        for name, library in LIBRARIES.items()
    ]
    return sorted(found, key=lambda each: each.time_us)


# ---- published times ----------------------------------------------------------------------------

_SMALL = "deepspeedai/DeepSpeed PR#5571"
# DeepSpeed's shared-memory all-reduce on two sockets of 4th generation Xeons. The pages do not say
# how many ranks and threads: assumed are a rank a socket, and 56 threads.
PUBLISHED: tuple[tuple[int, float, str], ...] = (
    *((size, us, _SMALL) for size, us in {
        2: 13.34, 16: 13.27, 128: 13.70, K: 15.00, 4 * K: 16.00, 16 * K: 16.27, 32 * K: 16.13,
        64 * K: 18.92, 128 * K: 21.12, 256 * K: 23.09, 512 * K: 32.78,
    }.items()),
    (32 * M, 650.0, "deepspeedai/DeepSpeed PR#5391"),
)  # fmt: skip
PUBLISHED_ON = Server(ranks=2, threads=56, sockets=2)


class Row(NamedTuple):
    """A published time, and its prediction.

    Attributes:
        nbytes: of one rank's tensor.
        time_us: measured.
        predicted_us: by :func:`time_us`.
        error: predicted over measured time, less 1.
        source: the publication.
    """

    nbytes: int
    time_us: float
    predicted_us: float
    error: float
    source: str


def _rows() -> list[Row]:
    rows = []
    for nbytes, us, source in PUBLISHED:
        predicted = time_us(PUBLISHED_ON, LIBRARIES["deepspeed"], nbytes)
        rows.append(Row(nbytes, us, predicted, predicted / us - 1, source))
    return rows


def as_rows() -> list[dict[str, Any]]:
    """Returns published times of DeepSpeed, predictions, and their errors."""
    return [row._asdict() for row in _rows()]


def median_error() -> float:
    """Returns the median of the sizes of errors."""
    return statistics.median(abs(row.error) for row in _rows())


def as_text() -> str:
    """Returns the table of published times."""
    lines = [f"{'size':>6}{'measured':>10}{'predicted':>10}{'error':>7}  source"]
    for row in _rows():
        lines.append(
            f"{size_text(row.nbytes):>6}{row.time_us:>10.1f}{row.predicted_us:>10.1f}"
            f"{row.error:>+7.0%}  {row.source}"
        )
    lines += [
        "",
        "Microseconds of DeepSpeed's all-reduce on two sockets; error: predicted over measured,",
        f"less 1. Median error: {median_error():.0%}. The start of threads is fitted to 2 bytes,",
        "the link between sockets to 32M.",
    ]
    return "\n".join(lines)
