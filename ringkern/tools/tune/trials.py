"""Measures every way of every collective over a range of sizes, for ``tune`` to fit costs to.

The method is that of :mod:`ringkern.tools.turns`, in passes over everything: a disturbance of the
machine, or a move of its cores, affects all ways and sizes alike. All-reduces are called from C++,
their halves from Python.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from ...choose.cost import Way
from ...choose.tuning import COLLECTIVES, RING, ways_of
from ...comm import Communicator
from ..turns import Block, Result, preemptions, timed

MOST_CALLS = 5000  # in a row
MOST_PASSES = 31
LEAST_SIZES = 3  # for a fit
TURNS = 3  # of a small size in a pass
MEETING = 50  # calls that do not count, after the ranks have exchanged their times
# A way that takes this many times as long as the best one, at two sizes in a row, is not measured
# at larger sizes. The rule does not apply to small sizes, which cost little time, and at which a
# busy machine may make any way slow.
HOPELESS = 4.0
CHEAP = 64 << 10  # bytes
_FLOAT = 4  # bytes: everything is measured with float32
_BLOCK_S = 0.002
_GROWTH = 2.5  # from size to size
_LOOK_SHARE = 0.4  # of the time, for a first look at everything


class Cell(NamedTuple):
    """A row to be measured: a way of a collective, at a size as in nccl-tests."""

    collective: str
    way: Way
    size: int


@dataclass
class Trials:
    """The measurements.

    Attributes:
        turns: for each cell its blocks, of which only the median is kept.
        base_us: for each collective, the cost of a call in a ring of one.
    """

    turns: dict[Cell, list[Block]] = field(default_factory=dict)
    base_us: dict[str, float] = field(default_factory=dict)

    def points(self, collective: str, way: Way) -> list[tuple[int, float]]:
        """Returns (bytes, microseconds) of one way, rising."""
        return sorted(
            (cell.size, Result.of(turns, "unknown", None).time_us)
            for cell, turns in self.turns.items()
            if (cell.collective, cell.way) == (collective, way)
        )

    def dump(self) -> str:
        """Returns JSON, for another process."""
        cells = [
            [c.collective, *c.way, c.size, [(turn.median_us, turn.preempted) for turn in turns]]
            for c, turns in self.turns.items()
        ]
        return json.dumps({"cells": cells, "base_us": self.base_us})

    @classmethod
    def load(cls, text: str) -> Trials:
        """Reads the text of :meth:`dump`."""
        content = json.loads(text)
        cells = {
            Cell(c, Way(*way), size): [block(*turn) for turn in turns]
            for c, *way, size, turns in content["cells"]
        }
        return cls(cells, content["base_us"])


def block(median_us: float, preempted: int = 0) -> Block:
    """Returns a turn of which only the median was kept."""
    return Block(array("d", [median_us]), preempted)


def measure(sizes: tuple[int, ...], end: float, file: Path) -> int:
    """Measures, on all ranks of the default group; rank 0 writes the text for :meth:`Trials.load`.

    ``end``: the end of the measurement, in the time of time.monotonic().
    """
    start = time.monotonic()
    with Communicator() as communicator:
        calls = _Calls(communicator, max(sizes))
        work = _Work(calls, Progress(sys.stderr if dist.get_rank() == 0 else None, end - start))
        work.look(sizes, start + _LOOK_SHARE * (end - start))
        work.repeat(end)
    alone = _Calls(Communicator.from_store(dist.HashStore(), 0, 1), _FLOAT * 2)
    base = [statistics.median(alone.times_us(Cell(c, RING[0], 8), 500)) for c in COLLECTIVES]
    alone.communicator.close()
    work.trials.base_us = dict(zip(COLLECTIVES, _slowest(base)))
    if dist.get_rank() == 0:
        file.write_text(work.trials.dump())
    return 0


class WorthIt:
    """The ways that are worth measuring, from small sizes to large ones, without hopeless ones."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._slow: dict[tuple[str, Way], int] = {}  # how often in a row

    def cells(self, size: int) -> list[Cell]:
        """Lists the cells to be measured at a size."""
        return [
            Cell(name, way, size)
            for name in COLLECTIVES
            for way in ways_of(name, self._device)
            if self._slow.get((name, way), 0) < 2
        ]

    def saw(self, times_us: dict[Cell, float]) -> None:
        """Notes the times at one size."""
        for cell, time_us in times_us.items():
            best = min(t for c, t in times_us.items() if c.collective == cell.collective)
            key = cell.collective, cell.way
            hopeless = cell.size > CHEAP and time_us > HOPELESS * best
            self._slow[key] = self._slow.get(key, 0) + 1 if hopeless else 0


class _Calls:
    """Calls of every collective, by any way, in one piece of memory."""

    def __init__(self, communicator: Communicator, most: int) -> None:
        self.communicator = communicator
        # Zeros stay zeros, however often they are added; and writing them takes the pages.
        self._memory = torch.empty(-(-most // _FLOAT)).zero_()

    def times_us(self, cell: Cell, calls: int) -> list[float]:
        """Times each of this many calls in a row, on this rank."""
        rank, ranks = self.communicator.rank, self.communicator.size
        if cell.collective == "all_reduce":
            tensor = self._memory[: max(1, cell.size // _FLOAT)]
            asked = (cell.way.algorithm, cell.way.protocol)
            return [t / 1e3 for t in self.communicator._c.time_all_reduce(tensor, calls, *asked)]
        count = max(1, cell.size // _FLOAT // ranks)
        whole = self._memory[: count * ranks]
        part = whole[rank * count : (rank + 1) * count]
        call = self._call(cell, whole, part)
        return [t / 1e3 for t in timed(itertools.repeat(call), calls)]

    def _call(self, cell: Cell, whole: torch.Tensor, part: torch.Tensor) -> Callable[[], object]:
        c, protocol = self.communicator._c, cell.way.protocol
        if cell.collective == "reduce_scatter":
            return lambda: c.reduce_scatter(part, whole, dist.ReduceOp.SUM, protocol, False)
        return lambda: c.all_gather(whole, part, protocol, False)


class _Work:
    """The measured cells, and the number of calls in a row of each: the same on all ranks."""

    def __init__(self, calls: _Calls, progress: Progress) -> None:
        self._calls, self._progress = calls, progress
        self._in_a_row: dict[Cell, int] = {}
        self.trials = Trials()

    def look(self, sizes: tuple[int, ...], end: float) -> None:
        """Measures each cell roughly, from small sizes to large ones, and drops hopeless ways.

        Sizes for which there is no time until ``end`` are left out, except the first few.
        """
        worth_it = WorthIt("cpu")
        for size in sizes:
            start = time.monotonic()
            cells = worth_it.cells(size)
            calls = 40 if size <= CHEAP else 4
            # Takes the least time, because one bad moment must not make a way hopeless.
            *found, is_late = _slowest(
                [
                    *(min(self._calls.times_us(cell, calls)[1:]) for cell in cells),
                    float(time.monotonic() + _GROWTH * (time.monotonic() - start) > end),
                ]
            )
            worth_it.saw(dict(zip(cells, found)))
            for cell, time_us in zip(cells, found):
                wanted = int(_BLOCK_S * 1e6 / time_us)
                self._in_a_row[cell] = min(MOST_CALLS, max(1, wanted))
                self.trials.turns[cell] = []
            self._progress.show(f"a first look, {size} bytes")
            if is_late and size not in (*sizes[: LEAST_SIZES - 1], sizes[-1]):
                self._progress.say(f"no time for sizes above {size} bytes; raise --seconds")
                break

    def repeat(self, deadline: float) -> None:
        """Measures everything repeatedly while there is time for it, at least once."""
        # Large sizes take nearly all of the time; meanwhile small ones have several turns.
        small = [cell for cell, calls in self._in_a_row.items() if calls > 1]
        large = [cell for cell, calls in self._in_a_row.items() if calls == 1]
        parts = [large[i::TURNS] for i in range(TURNS)]
        for number in range(1, MOST_PASSES + 1):
            start = time.monotonic()
            cells = [cell for part in parts for cell in (*small, *part)]
            self._calls.times_us(cells[0], MEETING)
            turns = [self._turn(cell, f"pass {number}") for cell in cells]
            late = time.monotonic() + (time.monotonic() - start) > deadline
            # The clock of any rank ends it for all.
            *found, is_late = _slowest([*itertools.chain(*turns), float(late)])
            slowest = iter(found)
            for cell, turn in zip(cells, turns):
                *samples, preempted = itertools.islice(slowest, len(turn))
                self.trials.turns[cell].append(block(statistics.median(samples), int(preempted)))
            if is_late:
                break
            small.reverse()  # no way is always the first
            parts = [part[::-1] for part in parts]
        self._progress.end(f"{number} passes over {len(self._in_a_row)} ways and sizes")

    def _turn(self, cell: Cell, doing: str) -> list[float]:
        """Returns the microseconds of each call on this rank, and how often it lost its core."""
        self._progress.show(doing)
        calls = self._in_a_row[cell]
        warmup, before = _warmup(calls), preemptions()
        times = self._calls.times_us(cell, warmup + calls)[warmup:]
        return [*times, float(preemptions() - before)]


def _warmup(calls: int) -> int:
    return -(-calls // 10) if calls > 1 else 0


def _slowest(numbers: list[float]) -> list[float]:
    """Returns for each number the largest of all ranks."""
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    result: list[float] = tensor.tolist()
    return result


class Progress:
    """Shows the progress: a bar on a terminal, elsewhere a line every tenth of the time."""

    def __init__(self, stream: object, seconds: float) -> None:
        self._stream, self._seconds = stream, seconds
        self._start = self._shown = time.monotonic()
        self._tenth = -1
        self._bar = bool(stream) and stream.isatty()  # type: ignore[attr-defined]
        self._clear = "\r\x1b[K" if self._bar else ""

    def show(self, doing: str) -> None:
        """Shows what is being done; may be called as often as needed."""
        now = time.monotonic()
        share = min(1.0, (now - self._start) / self._seconds)
        if self._bar and now - self._shown > 0.1:
            self._shown = now
            filled = int(30 * share)
            self._write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {share:4.0%}  {doing}\x1b[K")
        elif self._stream and not self._bar and int(10 * share) > self._tenth:
            self._tenth = int(10 * share)
            self._write(f"tune: {share:.0%}, {doing}\n")

    def say(self, text: str) -> None:
        """Prints a separate line."""
        if self._stream:
            self._write(f"{self._clear}tune: {text}\n")

    def end(self, done: str) -> None:
        """Prints the last line."""
        self.say(f"{done} in {time.monotonic() - self._start:.1f} s")

    def _write(self, text: str) -> None:
        self._stream.write(text)  # type: ignore[attr-defined]
        self._stream.flush()  # type: ignore[attr-defined]
