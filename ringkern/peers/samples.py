"""From the times of each rank to the figures of a row.

A sample is a call, as on the rank that was slowest in it; a block is what a contender measures in
one turn. A block is disturbed where a rank was preempted in it, or where the two cores were at
another distance after it than before; it does not count, unless too few would be left.
"""

from __future__ import annotations

import statistics
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Of a cache line, there and back, in ns: two hardware threads of one core are below the first, two
# cores that share a last-level cache below the second.
SAME_CORE_NS = 75.0
NEAR_NS = 230.0
LEAST_SHARE = 0.3  # of the blocks must remain


def distance(round_trip_ns: float) -> str:
    """Where two cores are: ``"smt"``, ``"near"`` or ``"far"``."""
    if round_trip_ns < SAME_CORE_NS:
        return "smt"
    return "near" if round_trip_ns < NEAR_NS else "far"


@dataclass(frozen=True)
class Block:
    """One turn of one contender.

    Attributes:
        samples: microseconds of each call, on the rank that was slowest in it.
        preempted: how often ranks lost their core in it.
        round_trips: ns between the cores, before and after; empty where that is not measured.
    """

    samples: array[float]
    preempted: int = 0
    round_trips: tuple[float, ...] = ()

    @property
    def placement(self) -> str:
        """Where the cores were; ``"mixed"`` where that changed, ``"unknown"`` without a probe."""
        found = {distance(time) for time in self.round_trips}
        if not found:
            return "unknown"
        return found.pop() if len(found) == 1 else "mixed"

    @property
    def median_us(self) -> float:
        """Of the samples, microseconds."""
        return statistics.median(self.samples)


def slowest(ranks: Sequence[Sequence[int]]) -> array[float]:
    """Of each call the slowest rank's time, ns to microseconds."""
    return array("d", (max(times) / 1e3 for times in zip(*ranks)))


def usual_placement(blocks: Iterable[Block]) -> str:
    """Where the cores were most often."""
    return Counter(block.placement for block in blocks).most_common(1)[0][0]


@dataclass(frozen=True)
class Result:
    """What one contender did with one size, in one mode.

    Attributes:
        blocks: all of them, in the order in which they were measured.
        kept: those that count.
        wrong: elements that differ from the exact result, of all ranks; None: not checked.
    """

    blocks: list[Block]
    kept: list[Block]
    wrong: int | None
    _sorted: list[float] = field(repr=False, compare=False)

    @classmethod
    def of(cls, blocks: list[Block], placement: str, wrong: int | None) -> Result:
        """With the blocks that are comparable to those at ``placement``, where they suffice."""
        quiet = [b for b in blocks if not b.preempted and b.placement != "mixed"]
        kept = blocks
        for choice in (quiet, [b for b in quiet if b.placement == placement]):
            if choice and len(choice) >= LEAST_SHARE * len(blocks):
                kept = choice
        return cls(blocks, kept, wrong, sorted(x for block in kept for x in block.samples))

    @property
    def time_us(self) -> float:
        """The median of the samples."""
        return statistics.median(self._sorted)

    @property
    def p99_us(self) -> float:
        """The time within which 99 of 100 samples are."""
        return self._sorted[min(len(self._sorted) - 1, int(len(self._sorted) * 0.99))]

    @property
    def samples(self) -> int:
        """How many count."""
        return len(self._sorted)

    @property
    def placement(self) -> str:
        """Where the cores were in the blocks that count; ``"mixed"`` where they moved."""
        found = {block.placement for block in self.kept}
        return found.pop() if len(found) == 1 else "mixed"
