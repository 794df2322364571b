"""Times calls: the common method of ``bench``, ``tune`` and the programs compared with them.

Ranks that have a core each are pinned to it. Entrants take turns. A turn is a block of calls in a
row, after some that do not count. A sample is one call, timed on its slowest rank. A block is
disturbed if a rank was preempted in it, or if the distance of the two cores changed. It does not
count, unless too few blocks would be left. The time is the median of the samples.

Needs only Python: ranks of other libraries load nothing else of ringkern.
"""

from __future__ import annotations

import resource
import statistics
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_CALLS = 10_000  # in a block
BLOCK_S = 0.004
LEAST_REPEATS, MOST_REPEATS = 9, 99

# Round trip of a cache line, in ns: below the first for two hardware threads of one core, below the
# second for two cores that share a last-level cache.
SAME_CORE_NS = 75.0
NEAR_NS = 230.0
LEAST_SHARE = 0.3  # the least share of the blocks that must remain


def timed(calls: Iterator[Callable[[], object]], number: int) -> array[int]:
    """Returns the ns of each of the next ``number`` calls."""
    clock = time.perf_counter_ns
    times = array("q", bytes(8 * number))
    for i, call in zip(range(number), calls):
        start = clock()
        call()
        times[i] = clock() - start
    return times


def preemptions() -> int:
    """Returns how often this process has lost its core so far without asking for it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def distance(round_trip_ns: float) -> str:
    """Returns the relation of two cores: ``"smt"``, ``"near"`` or ``"far"``."""
    if round_trip_ns < SAME_CORE_NS:
        return "smt"
    return "near" if round_trip_ns < NEAR_NS else "far"


@dataclass(frozen=True)
class Block:
    """One turn of one contender.

    Attributes:
        samples: microseconds of each call, on its slowest rank.
        preempted: how often a rank lost its core in it.
        round_trips: ns between the cores, before and after; empty if not measured.
    """

    samples: array[float]
    preempted: int = 0
    round_trips: tuple[float, ...] = ()

    @property
    def placement(self) -> str:
        """Returns the cores' placement; ``"mixed"``: it changed, ``"unknown"``: not probed."""
        found = {distance(time) for time in self.round_trips}
        if not found:
            return "unknown"
        return found.pop() if len(found) == 1 else "mixed"

    @property
    def median_us(self) -> float:
        """Returns the median of the samples, in microseconds."""
        return statistics.median(self.samples)


def slowest(ranks: Sequence[Sequence[int]]) -> array[float]:
    """Returns for each call the time of the slowest rank; converts ns to microseconds."""
    return array("d", (max(times) / 1e3 for times in zip(*ranks)))


def usual_placement(blocks: Iterable[Block]) -> str:
    """Returns the most frequent placement of the cores."""
    return Counter(block.placement for block in blocks).most_common(1)[0][0]


@dataclass(frozen=True)
class Result:
    """The figures of one contender for one size, in one mode.

    Attributes:
        blocks: all of them, in the order of measurement.
        kept: the blocks that count.
        wrong: elements that differ from the exact result, of all ranks; None: not checked.
    """

    blocks: list[Block]
    kept: list[Block]
    wrong: int | None
    _sorted: list[float] = field(repr=False, compare=False)

    @classmethod
    def of(cls, blocks: list[Block], placement: str, wrong: int | None) -> Result:
        """Keeps the blocks that are comparable to those at ``placement``, if they suffice.

        ``wrong``: elements that differ from the exact result; ``None``: not checked.
        """
        quiet = [b for b in blocks if not b.preempted and b.placement != "mixed"]
        kept = blocks
        for choice in (quiet, [b for b in quiet if b.placement == placement]):
            if choice and len(choice) >= LEAST_SHARE * len(blocks):
                kept = choice
        return cls(blocks, kept, wrong, sorted(x for block in kept for x in block.samples))

    @property
    def time_us(self) -> float:
        """Returns the median of the samples."""
        return statistics.median(self._sorted)

    @property
    def p99_us(self) -> float:
        """Returns the time that 99 of 100 samples do not exceed."""
        return self._sorted[min(len(self._sorted) - 1, int(len(self._sorted) * 0.99))]

    @property
    def samples(self) -> int:
        """Returns the number of samples that count."""
        return len(self._sorted)

    @property
    def placement(self) -> str:
        """Returns the placement of the cores in the kept blocks; ``"mixed"``: they moved."""
        found = {block.placement for block in self.kept}
        return found.pop() if len(found) == 1 else "mixed"

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures for JSON, with units in the names; the median of each block."""
        return {
            "time_us": self.time_us,
            "p99_us": self.p99_us,
            "samples": self.samples,
            "wrong": self.wrong,
            "placement": self.placement,
            "blocks": [
                {
                    "median_us": block.median_us,
                    "calls": len(block.samples),
                    "preempted": block.preempted,
                    "round_trips_ns": block.round_trips,
                    "kept": any(block is kept for kept in self.kept),
                }
                for block in self.blocks
            ],
        }


def quotient(one: Result, other: Result) -> float:
    """Returns the time of one over the other's: the median over the rounds of their turns.

    A slow phase of the machine slows down both, while the medians of all their samples may come
    from different phases.
    """
    return statistics.median(a.median_us / b.median_us for a, b in zip(one.blocks, other.blocks))


class Turns:
    """The turns of one entrant, at one size.

    Attributes:
        calls: number of calls in a block.
        seconds: of a call.
        blocks: those of the turns so far.
        wrong: elements that were wrong, of all ranks; None: not checked.
    """

    def __init__(self, time: Callable[[int, int], Block], warmup: int = 1) -> None:
        """Makes turns whose calls ``time(warmup, calls)`` makes and times, on all ranks.

        ``warmup``: minimum number of calls per turn that do not count.
        """
        self._time, self._warmup = time, warmup
        self.calls, self.seconds = 1, 0.0
        self.blocks: list[Block] = []
        self.wrong: int | None = None

    def calibrate(self, block_s: float) -> None:
        """Measures a call, to find how many calls fill a block: the same number on all ranks."""
        calls = 3
        for seconds in (block_s / 4, block_s):
            found = self._time(max(1, self._warmup), calls)
            self.seconds = max(1e-6 * found.median_us, 1e-9)
            calls = max(1, min(MOST_CALLS, int(seconds / self.seconds)))
        self.calls = calls

    def take(self) -> None:
        """Makes a turn."""
        # Warm-up calls replace the data that others left in the caches.
        warmup = max(self._warmup, self.calls // 10)
        self.blocks.append(self._time(warmup, self.calls))

    def result(self, placement: str) -> Result:
        """Returns the result of the turns; ``placement``: see :meth:`Result.of`."""
        return Result.of(self.blocks, placement, self.wrong)


def block_seconds(seconds: float, entrants: int) -> float:
    """Returns the seconds of a block, if this many entrants share the time of a size."""
    return min(BLOCK_S, seconds / max(1, entrants) / LEAST_REPEATS)


def repeats(seconds: float, block_s: float, entrants: Iterable[Turns]) -> int:
    """Returns how many turns each entrant has, within about that time: an odd number."""
    longest = sum(max(block_s, turns.seconds) for turns in entrants)
    wanted = int(seconds / longest) if longest else 0
    return max(LEAST_REPEATS, min(MOST_REPEATS, wanted)) | 1
