"""The sizes from which the hierarchy is faster than ways over all ranks, by number of hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...units import say_size
from .estimate import FLAT_RING, FLAT_TREE, HIERARCHY, WAYS, Estimate

HOSTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
# Bytes, four to a factor of two, from 8 B to 4 GiB.
SIZES = tuple(round(2 ** (i / 4)) for i in range(3 * 4, 32 * 4 + 1))
ALONE = "engine alone"
# The ways that an engine chooses from for a kind of device, if it reduces over all ranks.
OF_ENGINE = {"cuda": (FLAT_RING, FLAT_TREE), "cpu": (FLAT_RING,)}

# The maximum ratio in a gap that is bridged: between two ranges, the number of pieces may decide.
NEARLY = 1.03

Ranges = list[tuple[int, int | None]]
Predict = Callable[[int, float], list[Estimate]]


class Row(NamedTuple):
    """The sweep over this many hosts.

    Attributes:
        hosts: number of hosts.
        faster: for each flat way and ``ALONE``, the ranges in which the hierarchy takes less: from
            this many bytes on, up to this many, ``None``: no upper end.
    """

    hosts: int
    faster: dict[str, Ranges]


def by_hosts(predict: Predict, device: str, hosts: Sequence[int] = HOSTS) -> list[Row]:
    """Returns a row for each number of hosts.

    Args:
        predict: (hosts, bytes) to all ways.
        device: "cpu" or "cuda".
        hosts: numbers of hosts, 2 or more each.
    """
    return [Row(count, faster(predict, device, count)) for count in hosts]


def faster(predict: Predict, device: str, hosts: int) -> dict[str, Ranges]:
    """Returns where the hierarchy takes less than each flat way and than the engine alone.

    Args:
        predict, device: see :func:`by_hosts`.
        hosts: 2 or more.
    """
    ratios: dict[str, list[float]] = {FLAT_RING: [], FLAT_TREE: [], ALONE: []}
    for size in SIZES:
        found = predict(hosts, size)
        times = {way: min(e.time_us for e in found if e.way == way) for way in WAYS}
        own = times.pop(HIERARCHY)
        times[ALONE] = min(times[way] for way in OF_ENGINE[device])
        for way, time in times.items():
            ratios[way].append(own / time)
    return {way: ranges(found) for way, found in ratios.items()}


def ranges(ratios: Sequence[float]) -> Ranges:
    """Returns where the hierarchy takes less: from the first of ``SIZES`` up to the last.

    Args:
        ratios: of its time to another, at each of ``SIZES``. Two ranges are one if no ratio
            between them is above ``NEARLY``.
    """
    found: list[tuple[int, int]] = []  # positions, both included
    for i, ratio in enumerate(ratios):
        if ratio >= 1:
            continue
        if found and max(ratios[found[-1][1] : i + 1]) <= NEARLY:
            found[-1] = found[-1][0], i
        else:
            found.append((i, i))
    last = len(SIZES) - 1
    return [(SIZES[low], None if high == last else SIZES[high]) for low, high in found]


def say(found: Ranges) -> str:
    """Formats ranges in words: "always", "never", "from 1M on", "8 to 64K"."""
    if found == [(SIZES[0], None)]:
        return "always"
    return ", ".join(_say_range(*one) for one in found) or "never"


def _say_range(low: int, high: int | None) -> str:
    if high is None:
        return f"from {say_size(low)} on"
    return f"at {say_size(low)}" if low == high else f"{say_size(low)} to {say_size(high)}"


def as_text(rows: Sequence[Row], ranks: int) -> str:
    """Returns a table.

    Args:
        rows: of :func:`by_hosts`.
        ranks: on each host.
    """
    columns = list(rows[0].faster)
    cells = [["hosts", "ranks", *columns]]
    cells += [
        [str(row.hosts), str(row.hosts * ranks), *(say(row.faster[c]) for c in columns)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths)) for row in cells
    )
