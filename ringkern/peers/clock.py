"""The clock of calls from Python, alike for every library. Needs Python alone."""

from __future__ import annotations

import resource
import time
from array import array
from collections.abc import Callable, Iterator


def timed(calls: Iterator[Callable[[], object]], number: int) -> array[int]:
    """The ns of each of the next ``number`` calls."""
    clock = time.perf_counter_ns
    times = array("q", bytes(8 * number))
    for i, call in zip(range(number), calls):
        start = clock()
        call()
        times[i] = clock() - start
    return times


def preemptions() -> int:
    """How often this process has lost its core so far, without having asked for that."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
