"""A simulator of ranks: runs the traces of a plan over FIFOs of a few slots, with symbols for data.

A :class:`Piece` names its elements and its contributions, in the order in which they were combined.
The rules of a link are those of the CPU's Simple link (csrc/cpu/simple.h): a verb takes its slots
one at a time, and for each waits for data from ``prev`` and for a free slot at ``next``, whichever
of the two it needs, before it touches either.

A scheduler chooses the next rank. Each rank waits at one place at a time, so a run that can
deadlock does so under every scheduler. The tests run several schedulers all the same, because that
argument is about the rules above and not about this code.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

RECEIVES = {
    "recv_reduce_send",
    "recv_reduce_copy_send",
    "recv_reduce_copy",
    "recv_copy_send",
    "recv",
}
SENDS = {"send", "copy_send", "recv_reduce_send", "recv_reduce_copy_send", "recv_copy_send"}
READS_INPUT = {
    "send",
    "copy_send",
    "recv_reduce_send",
    "recv_reduce_copy_send",
    "recv_reduce_copy",
}
WRITES_OUTPUT = {
    "copy_send",
    "recv_reduce_copy_send",
    "recv_reduce_copy",
    "recv_copy_send",
    "recv",
}

Pick = Callable[[Sequence[int], random.Random], int]

SCHEDULERS: dict[str, Pick] = {
    "lowest first": lambda ready, _: ready[0],
    "highest first": lambda ready, _: ready[-1],
    "random": lambda ready, rng: rng.choice(ready),
    "rank 0 starved": lambda ready, rng: rng.choice(ready[1:] or ready),
}


class Deadlock(AssertionError):
    """Every rank that is not finished waits."""


class Mismatch(AssertionError):
    """A rank was given something else than its verb is about."""


class Row(NamedTuple):
    """An entry of ``Plan.trace``."""

    verb: str
    at: int  # in the input
    out: int  # in the output
    count: int
    slots: int


class Piece(NamedTuple):
    """One slot's content."""

    home: int  # first element of the chunk, counted in the longer of the two tensors
    count: int  # elements of the chunk
    slot: int  # which of the chunk's slots
    slots: int
    ranks: tuple[int, ...]  # whose contributions, in the order in which they were combined


class Span(NamedTuple):
    """A chunk that lies in an output."""

    first: int
    count: int
    ranks: tuple[int, ...]


@dataclass
class Run:
    """The actions of the ranks. Chunks that are not empty are named by their first element."""

    outputs: list[list[Span]]
    sent: Counter[int] = field(default_factory=Counter)  # slots, by each rank
    reduced: Counter[int] = field(default_factory=Counter)
    copied: Counter[int] = field(default_factory=Counter)


@dataclass
class Ring:
    """The bench.

    Args:
        traces: what each rank does.
        next: the rank after each rank.
        collective, count: as the plan has them.
        slots: places in each FIFO.
    """

    traces: Sequence[Sequence[tuple[str, int, int, int, int]]]
    next: Sequence[int]
    collective: str
    count: int
    slots: int

    def run(self, scheduler: str = "random", seed: int = 0) -> Run:
        """Runs to the end.

        Raises:
            Deadlock: no rank can continue.
            Mismatch: a piece does not match the verb that receives it, an access is out of
                bounds, a rank reads input that it has overwritten, or something is left in a FIFO.
        """
        size = len(self.traces)
        rng, pick = random.Random(seed), SCHEDULERS[scheduler]
        ranks = [_Rank(self, rank) for rank in range(size)]
        result = Run([rank.output for rank in ranks])
        ready = set(range(size))
        while ready:
            rank = ranks[pick(sorted(ready), rng)]
            # For as long as it can, or only a little: both leave the FIFOs in states of their own.
            for _ in range(rng.choice((1, 2, 1000))):
                if not rank.step(ranks, result):
                    ready.discard(rank.number)
                    break
                ready |= {self.next[rank.number], rank.prev}
        stuck = [rank.describe() for rank in ranks if not rank.finished]
        if stuck:
            raise Deadlock("; ".join(stuck))
        for rank in ranks:
            if rank.fifo:
                raise Mismatch(f"rank {rank.number} leaves {len(rank.fifo)} slots unread")
        return result

    def lengths(self) -> tuple[int, int]:
        """Elements of the input and of the output."""
        whole = self.count * len(self.traces)
        if self.collective == "reduce_scatter":
            return whole, self.count
        if self.collective == "all_gather":
            return self.count, whole
        return self.count, self.count


class _Rank:
    """One rank: its trace, how far it has come, and the FIFO that it receives from."""

    def __init__(self, ring: Ring, number: int) -> None:
        self.ring, self.number = ring, number
        self.prev = list(ring.next).index(number)
        self.rows = [Row(*row) for row in ring.traces[number]]
        self.row = self.slot = 0
        self.fifo: deque[Piece] = deque()
        self.output: list[Span] = []
        self.overwritten: set[int] = set()

    @property
    def finished(self) -> bool:
        return self.row == len(self.rows)

    def describe(self) -> str:
        row = self.rows[self.row]
        return (
            f"rank {self.number} at {self.row} of {len(self.rows)}: {row.verb} slot {self.slot} of "
            f"{row.slots}, {len(self.fifo)} in its FIFO"
        )

    def step(self, ranks: list[_Rank], result: Run) -> bool:
        """Moves one slot; False if it has to wait, or nothing is left to do."""
        if self.finished:
            return False
        row = self.rows[self.row]
        to = ranks[self.ring.next[self.number]].fifo
        if row.verb in RECEIVES and not self.fifo:
            return False
        if row.verb in SENDS and len(to) >= self.ring.slots:
            return False
        piece = self._move(row, result)
        if row.verb in SENDS:
            to.append(piece)
            result.sent[self.number] += 1
        self.slot += 1
        if self.slot == row.slots:
            self.row, self.slot = self.row + 1, 0
        return True

    def _move(self, row: Row, result: Run) -> Piece:
        length_in, length_out = self.ring.lengths()
        gathers = self.ring.collective == "all_gather"
        scatters = self.ring.collective == "reduce_scatter"
        home = row.out if gathers else row.at
        mine = Piece(home, row.count, self.slot, row.slots, (self.number,))
        piece = mine
        last = self.slot == row.slots - 1
        counts = last and row.count > 0
        if row.verb in RECEIVES:
            piece = self.fifo.popleft()
            # Where a chunk lies in the input means nothing to a verb that does not read it.
            if piece[:4] != mine[:4]:
                raise Mismatch(f"rank {self.number} {row.verb}: expects {mine}, was given {piece}")
        if row.verb in READS_INPUT:
            self._check_bounds(row.at, row.count, length_in, "reads")
            if home in self.overwritten:
                raise Mismatch(f"rank {self.number} reads element {home}, which it has overwritten")
            if row.verb in RECEIVES:
                piece = piece._replace(ranks=(*piece.ranks, self.number))
                if counts:
                    result.reduced[home] += 1
            elif gathers and home != row.at + self.number * self.ring.count:
                raise Mismatch(f"rank {self.number} sends element {row.at} as {home}")
        elif counts:
            result.copied[home] += 1
        if row.verb in WRITES_OUTPUT:
            if scatters and home != row.out + self.number * self.ring.count:
                raise Mismatch(f"rank {self.number} writes element {home} as {row.out}")
            self._check_bounds(row.out, row.count, length_out, "writes")
            if last:
                self.output.append(Span(row.out, row.count, piece.ranks))
                if counts:
                    self.overwritten.add(home)
        return piece

    def _check_bounds(self, first: int, count: int, length: int, does: str) -> None:
        # An empty chunk is moved too, from anywhere: nothing of it is touched.
        if count < 0 or (count > 0 and not 0 <= first <= length - count):
            raise Mismatch(f"rank {self.number} {does} {first}..{first + count} of {length}")
