"""Checks whether other programs used the cores during a measurement."""

from __future__ import annotations

import os
import resource
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# Above these limits, the figures depend more on other programs than on rings.
MOST_OTHERS = 0.10  # of the cores' time
MOST_STEAL = 0.05
MOST_SPREAD = 0.25
_FIELDS = 8  # of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal


class Used(NamedTuple):
    """Processor time so far, in seconds: of the cores of this process, and of its children.

    Attributes:
        all, busy, stolen: of the cores: in all, by programs, and by other virtual machines.
        own: of this process and of its children that have ended.
    """

    all: float
    busy: float
    stolen: float
    own: float


def used(stat: Path = Path("/proc/stat")) -> Used:
    """Reads the processor time so far; zeros if Linux does not report it."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    totals = [0] * _FIELDS
    try:
        lines = [line.split() for line in stat.read_text().splitlines()]
    except OSError:
        lines = []
    for _, *values in (line for line in lines if line and line[0] in cores):
        totals = [a + int(b) for a, b in zip(totals, values)]
    user, nice, system, idle, waiting, *interrupts, stolen = totals
    ticks = os.sysconf("SC_CLK_TCK")
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    own = sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, whose))
    busy = user + nice + system + sum(interrupts)
    return Used((busy + idle + waiting + stolen) / ticks, busy / ticks, stolen / ticks, own)


def disturbances(before: Used, after: Used, turns_us: Iterable[list[float]]) -> list[str]:
    """Returns the disturbances of the measurement, in words; empty: none that matters.

    Args:
        before, after: the times before and after the measurement.
        turns_us: the times of the turns of each measured cell.
    """
    whole = max(1e-9, after.all - before.all)
    others = (after.busy - before.busy - (after.own - before.own)) / whole
    stolen = (after.stolen - before.stolen) / whole
    spreads = [_spread(sorted(times)) for times in turns_us if len(times) > 2]
    spread = statistics.median(spreads) if spreads else 0.0
    found = (
        (others > MOST_OTHERS, f"other programs used {others:.0%} of the cores"),
        (stolen > MOST_STEAL, f"other virtual machines took {stolen:.0%} of the cores"),
        (spread > MOST_SPREAD, f"half of the repeats are {spread:.0%} apart"),
    )
    return [text for is_so, text in found if is_so]


def _spread(times: list[float]) -> float:
    """Returns the distance from the first quartile to the third, over the median."""
    quarter = len(times) // 4
    return (times[-1 - quarter] - times[quarter]) / statistics.median(times)
