"""The data of a trace: the rank, verb, chunk, start and end of each event."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

from ... import decode

FORMAT = "ringkern-trace-1"


@dataclass(frozen=True)
class Event:
    """One verb, run by one rank on one chunk.

    All times are nanoseconds of one clock, the same for all ranks, from the start of the trace's
    first event.

    Attributes:
        rank: in the traced group.
        channel: of the ring, from 0.
        loop: of the plan, from 0.
        step: index in the loop's schedule, from 0.
        verb: its name in ``csrc/core/schedule.h``, such as ``"recv_reduce_send"``.
        owner: the position on the channel's ring that owns the moved chunk.
        offset: of the chunk in the tensor; elements.
        count: of the chunk; elements. 0: an empty chunk, which takes its step like any other.
        start_ns, end_ns: of the verb, including its waits.
        wait_prev_ns: the part of this time that it waited for data from prev.
        wait_next_ns: the part of this time that it waited for a free slot at next.
    """

    rank: int
    channel: int
    loop: int
    step: int
    verb: str
    owner: int
    offset: int
    count: int
    start_ns: int
    end_ns: int
    wait_prev_ns: int
    wait_next_ns: int

    @property
    def duration_ns(self) -> int:
        """Returns the time from start to end."""
        return self.end_ns - self.start_ns

    @property
    def wait_ns(self) -> int:
        """Returns all waits of the verb."""
        return self.wait_prev_ns + self.wait_next_ns

    @property
    def receives(self) -> bool:
        """Returns whether the verb receives data from prev."""
        return self.verb.startswith("recv")

    @property
    def sends(self) -> bool:
        """Returns whether the verb sends data to next."""
        return self.verb.endswith("send")


COLUMNS = tuple(field.name for field in fields(Event))


@dataclass(frozen=True)
class Trace:
    """One traced call, of all its ranks.

    Attributes:
        ranks: of the group.
        channels: number of channels of the call.
        orders: for each channel the ranks in the order of its ring.
        collective, protocol, dtype: by their names, such as ``"all_reduce"``, ``"simple"``,
            ``"float32"``.
        count: elements of the tensor.
        device: ``"cpu"`` or ``"cuda"``.
        repeats: the number of recorded calls.
        kept: the index of this one among them, from 0.
        machine: where it ran, as names with texts or numbers.
        date: when it ran, ISO 8601, UTC.
        command: the command that made it; empty: none.
        events: sorted by start.
    """

    ranks: int
    channels: int
    orders: tuple[tuple[int, ...], ...]
    collective: str
    protocol: str
    dtype: str
    count: int
    device: str
    repeats: int
    kept: int
    machine: dict[str, str | int | float]
    date: str
    command: str
    events: tuple[Event, ...]

    @property
    def duration_ns(self) -> int:
        """Returns the time from the first event's start to the last one's end, 0 without events."""
        return max((event.end_ns for event in self.events), default=0)

    @property
    def loops(self) -> int:
        """Returns the number of loops in the plan."""
        return 1 + max((event.loop for event in self.events), default=-1)

    def of(self, rank: int, channel: int = 0) -> tuple[Event, ...]:
        """Returns the events of ``rank`` on ``channel``, in order."""
        return self._lanes.get((rank, channel), ())

    def position(self, rank: int, channel: int = 0) -> int:
        """Returns the position of ``rank`` on the ring of ``channel``."""
        return self.orders[channel].index(rank)

    def next(self, rank: int, channel: int = 0) -> int:
        """Returns the rank that ``rank`` sends to on ``channel``."""
        return self.orders[channel][(self.position(rank, channel) + 1) % self.ranks]

    def prev(self, rank: int, channel: int = 0) -> int:
        """Returns the rank that ``rank`` receives from on ``channel``."""
        return self.orders[channel][self.position(rank, channel) - 1]

    def feeder(self, event: Event) -> Event | None:
        """Returns the verb of prev whose data ``event`` receives; None if it receives nothing."""
        if not event.receives:
            return None
        prev = self.prev(event.rank, event.channel)
        # Every chunk moves one hop a step.
        return self._places.get((prev, event.channel, event.loop, event.step - 1))

    def waits_for(self, received: Event) -> bool:
        """Returns whether the verb ``received`` cannot end before its feeder began.

        Over LL and LL128, no rank waits for an empty chunk: it has no line to poll.
        """
        return received.count > 0 or self.protocol == "simple"

    def hops(self) -> Iterator[tuple[Event, Event]]:
        """Returns each sending verb with the verb of next that receives its chunk."""
        for event in self.events:
            feeder = self.feeder(event)
            if feeder is not None:
                yield feeder, event

    def to_json(self) -> str:
        """Returns the trace as text, for a file; :meth:`from_json` reads it."""
        head = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "events"}
        rows = [[getattr(event, column) for column in COLUMNS] for event in self.events]
        body = ",\n".join(json.dumps(row) for row in rows)
        front = json.dumps({"format": FORMAT, **head, "columns": COLUMNS}, indent=1)
        return f'{front.removesuffix("}").rstrip()},\n "events": [\n{body}\n]}}\n'

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Returns the trace that :meth:`to_json` wrote as ``text``.

        Raises:
            ValueError: it is no such text, or of another version.
        """
        data = decode.load(text, "the trace")
        format_of = data.pop("format", None) if isinstance(data, dict) else type(data).__name__
        if format_of != FORMAT:
            raise ValueError(
                f"this is no trace that can be read: its format is {format_of!r}, not {FORMAT!r}. "
                "Record it again with this version (python -m ringkern trace)"
            )
        try:
            columns = data.pop("columns")
            rows = [dict(zip(columns, row, strict=True)) for row in data["events"]]
            trace: Trace = decode.build(cls, {**data, "events": rows}, "the trace")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this trace is damaged: {error}. Record it again") from error
        return trace

    def check(self) -> None:
        """Checks that this can be a trace of that call.

        Each rank and channel has exactly the verbs of the schedule, in its order and one after the
        other; every element is in one chunk of one owner; no rank ends a receive before the send
        that feeds it began, unless the chunk is empty; and no wait is longer than its verb.

        Raises:
            ValueError: the trace is wrong; the text says what, and where.
        """
        from .checking import check

        check(self)

    @cached_property
    def _lanes(self) -> dict[tuple[int, int], tuple[Event, ...]]:
        lanes: dict[tuple[int, int], list[Event]] = defaultdict(list)
        for event in self.events:
            lanes[event.rank, event.channel].append(event)
        # Two verbs may start within one tick of the clock.
        return {
            lane: tuple(sorted(events, key=lambda e: (e.loop, e.step)))
            for lane, events in lanes.items()
        }

    @cached_property
    def _places(self) -> dict[tuple[int, int, int, int], Event]:
        return {(e.rank, e.channel, e.loop, e.step): e for e in self.events}
