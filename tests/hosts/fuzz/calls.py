"""One call on one rank: how it is drawn, made, waited for and checked."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from tests.hosts.fuzz.values import Box, Boxes, Plain, Reduction, bits_of_any_kind
from tests.torch.layouts import DENSE, LAYOUTS

SMALL = (0, 1, 1, 2, 3, 5, 7, 8, 13)
MIDDLE = (31, 64, 65, 97, 128, 129, 256, 257, 511, 512, 513, 1009, 1024, 1025)
LARGE = (4099, 20_011, 70_001)
LIMIT = timedelta(seconds=60)


class Team(NamedTuple):
    """A group and its ranks: the world's numbers, in the order of the group."""

    group: dist.ProcessGroup | None  # None on other ranks
    ranks: tuple[int, ...]
    backend: str


class Kind(NamedTuple):
    start: Callable[[Call], Any]  # returns a Work, a list of them, or None
    pairs: bool  # takes two ranks
    blocks: bool  # even if async_op
    any_backend: bool


KINDS: dict[str, Kind] = {}


def kind(*flags: str) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Adds a function to the kinds of call. ``flags``: "pairs", "blocks", "any" backend."""

    def add(start: Callable[[Call], Any]) -> Callable[[Call], Any]:
        KINDS[start.__name__] = Kind(start, *(f in flags for f in ("pairs", "blocks", "any")))
        return start

    return add


class Call:
    """A call that can be made once. ``random`` draws equal values on all ranks, ``own`` for this
    one.
    """

    def __init__(self, seed: str, kind: str, team: Team, rank: int, async_op: bool) -> None:
        self.kind, self.async_op, self.ranks = kind, async_op, team.ranks
        self.group: Any = team.group
        self.me, self.size = team.ranks.index(rank), len(team.ranks)
        self.random, self.own = Random(seed), Random(f"{seed} {rank}")
        self.number = zlib.crc32(seed.encode())
        self.outputs: list[Box | Plain] = []
        self.checks: list[Callable[[], str | None]] = []
        self.notes: list[str] = []
        self.works: list[Any] = []

    def __str__(self) -> str:
        how = "async" if self.async_op else "sync"
        return f"{self.kind} ({how}, ranks {[*self.ranks]}) {' '.join(self.notes)}"

    def start(self) -> None:
        if self.own.random() < 0.1:
            # Rarely so long that others look for what has become of this rank.
            time.sleep(self.own.choice([0.001] * 40 + [0.02, 0.2, 0.7]))
        found = KINDS[self.kind].start(self)
        works = found if isinstance(found, list) else [found]
        self.works = [work for work in works if work is not None]

    def finish(self) -> None:
        """Waits in one of the ways that there are."""
        self.own.shuffle(self.works)
        for work in self.works:
            way = self.own.choice(("wait", "wait", "future", "poll", "limit"))
            if not isinstance(work, dist.Work):
                work.wait()
                continue
            if way == "future":
                work.get_future().wait()
            while way == "poll" and not work.is_completed():
                time.sleep(0.0002)
            work.wait(LIMIT) if way == "limit" else work.wait()

    def wrong(self) -> list[str]:
        """Returns how the results differ from the expected ones."""
        return [f"{self}: {text}" for check in self.checks if (text := check()) is not None]

    # ---- parts of calls

    def note(self, **facts: Any) -> None:
        self.notes += [f"{name}={value}" for name, value in facts.items()]

    def choose(self, name: str, values: Sequence[Any]) -> Any:
        value = self.random.choice(values)
        self.note(**{name: value})
        return value

    def length(self, most: int = LARGE[-1]) -> int:
        sizes = self.random.choices((SMALL, MIDDLE, LARGE), (60, 32, 8))[0]
        n = min(self.random.choice(sizes), most)
        self.note(n=n)
        return n

    def reduction(self, numbers: bool = False) -> Reduction:
        """``numbers``: neither bool nor complex."""
        found = Reduction.draw(self.random, self.number, self.size, numbers)
        self.note(dtype=found.dtype, op=found.op)
        return found

    def bits(self, dtype: str, rank: int, part: int, n: int) -> torch.Tensor:
        """Returns a rank's values of a dtype that is moved and not reduced: any bits."""
        return bits_of_any_kind(np.random.default_rng([self.number, rank, part]), dtype, n)

    def all_bits(self, dtype: str, n: int, part: int = 0) -> list[torch.Tensor]:
        return [self.bits(dtype, rank, part, n) for rank in range(self.size)]

    def box(self, values: torch.Tensor, dense: bool = False) -> Box:
        """Returns a tensor with these values, which each rank lays out in memory in its own way."""
        layout = self.own.choice(DENSE if dense else LAYOUTS)
        self.note(layout=layout)
        return Box(values, layout, self.number)

    def list_of(self, values: Sequence[torch.Tensor]) -> Boxes:
        return Boxes(values, self.box, adjacent=self.own.random() < 0.3)

    def expect(self, box: Box | Boxes | Plain, values: Any, moved: bool = False) -> None:
        """Checks an output: it has these values, and nothing around it has changed."""
        self.outputs += box.all if isinstance(box, Boxes) else [box]
        self.checks.append(lambda: box.differs(values, moved))

    def keep(self, box: Box | Boxes) -> None:
        """Checks an input: nothing has changed."""
        self.checks.append(box.changed)

    def expect_same(self, got: Any, want: Any) -> None:
        self.checks.append(lambda: None if got == want else f"got {got!r}, expected {want!r}")
