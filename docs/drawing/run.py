"""Runs the verbs that a plan's TraceLink recorded (csrc/core/trace.h) on symbols, stepwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringkern._C import Plan


@dataclass(frozen=True)
class Event:
    """A verb of a rank.

    Attributes:
        index: which of the rank's verbs it is.
        when: the step in which it can be done, where a verb takes one and data arrives at its end.
        chunk: its place among the chunks of the tensor, from 0.
        ranks: whose contributions are in what it sends or writes, in the order of adding.
        source: the rank from which it receives; None where it does not.
        sends: whether it feeds the next rank.
        writes: whether it writes the output.
    """

    rank: int
    index: int
    when: int
    verb: str
    chunk: int
    count: int
    ranks: tuple[int, ...]
    source: int | None
    sends: bool
    writes: bool


@dataclass
class _Rank:
    rows: deque[tuple[int, tuple[str, int, int, int, int]]]
    free: int = 0  # the first step in which it has nothing to do
    inbox: deque[tuple[int, tuple[int, ...]]] = field(default_factory=deque)  # arrival, ranks


def play(plan: Plan) -> list[Event]:
    """Returns the verbs of channel 0 of a plan with non-empty chunks, by step and rank.

    Args:
        plan: of an all-reduce or of a chain.
    """
    ranks = [_Rank(deque(enumerate(plan.trace(r)))) for r in range(plan.ranks)]
    places = sorted({row[2] for rank in ranks for _, row in rank.rows})
    events: list[Event] = []
    while any(rank.rows for rank in ranks):
        moved = False
        for r, rank in enumerate(ranks):
            if not rank.rows:
                continue
            index, (verb, _, out, count, _) = rank.rows[0]
            words = verb.split("_")
            receives = words[0] == "recv"
            if receives and not rank.inbox:
                continue
            arrival, carried = rank.inbox.popleft() if receives else (0, ())
            if not receives or "reduce" in words:
                carried = (*carried, r)
            when = max(rank.free, arrival)
            rank.free = when + 1
            sends = "send" in words
            writes = "copy" in words or verb == "recv"
            if sends:
                ranks[plan.next(r)].inbox.append((when + 1, carried))
            source = plan.prev(r) if receives else None
            chunk = places.index(out)
            events.append(Event(r, index, when, verb, chunk, count, carried, source, sends, writes))
            rank.rows.popleft()
            moved = True
        if not moved:
            raise ValueError("the ranks wait for each other")
    return sorted(events, key=lambda e: (e.when, e.rank))


def held(
    events: Sequence[Event], ranks: int, chunks: int, after: int
) -> list[list[tuple[int, ...]]]:
    """Returns, for each rank and chunk, the ranks that have contributed after `after` steps.

    The tensor is reduced in place."""
    tensors: list[list[tuple[int, ...]]] = [[(r,)] * chunks for r in range(ranks)]
    for e in events:
        if e.when < after and e.writes:
            tensors[e.rank][e.chunk] = e.ranks
    return tensors
