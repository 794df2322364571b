"""Checks a trace against the schedule of ``csrc/core/schedule.h``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import _C

if TYPE_CHECKING:
    from .events import Event, Trace


def check(trace: Trace) -> None:
    """See :meth:`ringkern.tools.trace.events.Trace.check`."""
    _check_orders(trace)
    for channel in range(trace.channels):
        for rank in range(trace.ranks):
            _check_schedule(trace, rank, channel)
            _check_times(trace, rank, channel)
    for event in trace.events:
        if not (0 <= event.rank < trace.ranks and 0 <= event.channel < trace.channels):
            raise ValueError(
                f"{_name(event)} is of {trace.ranks} ranks and {trace.channels} channels"
            )
    _check_chunks(trace)
    for sent, received in trace.hops():
        if trace.waits_for(received) and received.end_ns < sent.start_ns:
            raise ValueError(f"{_name(received)} ends before {_name(sent)}, which feeds it, starts")


def schedule(ranks: int, position: int) -> list[tuple[str, int]]:
    """Returns verb and owner of each step in a loop of an all-reduce for a rank at ``position``."""
    if ranks == 1:
        return []  # no rank to send to
    # A loop of whole chunks, none of which is empty, so that the offset identifies the owner.
    chunk = _C.Plan("all_reduce", "simple", ranks, 1, 4).chunk
    plan = _C.Plan("all_reduce", "simple", ranks, chunk * ranks, 4)
    owner_at = {plan.chunk_of(0, 0, owner)[0]: owner for owner in range(ranks)}
    return [(row[0], owner_at[row[1]]) for row in plan.trace(position)]


def _check_orders(trace: Trace) -> None:
    if trace.collective != "all_reduce":
        raise ValueError(f"collective is {trace.collective!r}; all_reduce is what can be traced")
    if len(trace.orders) != trace.channels:
        raise ValueError(f"{len(trace.orders)} orders for {trace.channels} channels")
    for channel, order in enumerate(trace.orders):
        if sorted(order) != list(range(trace.ranks)):
            raise ValueError(f"channel {channel}: {order} is no order of {trace.ranks} ranks")


def _check_schedule(trace: Trace, rank: int, channel: int) -> None:
    steps = schedule(trace.ranks, trace.position(rank, channel))
    events = trace.of(rank, channel)
    expected = [
        (loop, step, verb, owner)
        for loop in range(trace.loops)
        for step, (verb, owner) in enumerate(steps)
    ]
    found = [(e.loop, e.step, e.verb, e.owner) for e in events]
    if found != expected:
        at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), -1)
        what = f"{found[at]}, not {expected[at]}" if at >= 0 else "too few or too many events"
        raise ValueError(
            f"rank {rank}, channel {channel}: {len(found)} events where the schedule has "
            f"{len(expected)}; (loop, step, verb, owner) is {what}"
        )


def _check_times(trace: Trace, rank: int, channel: int) -> None:
    before = 0
    for event in trace.of(rank, channel):
        if event.start_ns < before:
            raise ValueError(f"{_name(event)} starts before the one before it ends")
        if event.end_ns < event.start_ns:
            raise ValueError(f"{_name(event)} ends before it starts")
        if min(event.wait_prev_ns, event.wait_next_ns) < 0 or event.wait_ns > event.duration_ns:
            raise ValueError(f"{_name(event)} waits for longer than it takes")
        if event.wait_prev_ns and not event.receives:
            raise ValueError(f"{_name(event)} waits for data, and its verb takes none")
        if event.wait_next_ns and not event.sends:
            raise ValueError(f"{_name(event)} waits for a slot, and its verb fills none")
        before = event.end_ns
    if list(trace.events) != sorted(trace.events, key=lambda e: e.start_ns):
        raise ValueError("the events are not sorted by start")


def _check_chunks(trace: Trace) -> None:
    chunks: dict[tuple[int, int, int], tuple[int, int]] = {}
    for event in trace.events:
        chunk = chunks.setdefault(
            (event.channel, event.loop, event.owner), (event.offset, event.count)
        )
        if chunk != (event.offset, event.count):
            raise ValueError(f"{_name(event)} has another chunk of this owner than other ranks")
    reached = 0
    for offset, count in sorted(c for c in chunks.values() if c[1] > 0):
        if offset != reached:
            raise ValueError(f"elements {reached} to {offset} are in no chunk, or in two")
        reached = offset + count
    if reached != trace.count and trace.ranks > 1:
        raise ValueError(f"the chunks end at element {reached}, and the tensor has {trace.count}")


def _name(event: Event) -> str:
    return (
        f"rank {event.rank}, channel {event.channel}, loop {event.loop}, step {event.step} "
        f"({event.verb})"
    )
