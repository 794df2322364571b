"""Traces of machines that never were: the real schedule, and times that a test chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from ringkern._C import Plan
from ringkern.tools.trace.events import Event, Trace

Work = Callable[[int, int], int]  # (rank, elements) -> ns

AHEAD = 4  # chunks that a FIFO holds: 8 slots, 2 slices a chunk
CLOCK_NS = 37  # between two verbs of a rank


def usual(rank: int, elements: int) -> int:
    """Rank 1 takes half as long again as the others."""
    return (600 + elements // 8) * (3 if rank == 1 else 2) // 2


def make(
    ranks: int = 4,
    count: int = 1 << 16,
    *,
    channels: int = 1,
    slot_bytes: int = 0,
    orders: tuple[tuple[int, ...], ...] = (),
    work: Work = usual,
    command: str = "",
) -> Trace:
    """Returns a float32 all-reduce in slots of ``slot_bytes``, as ``work`` would record it."""
    plan = Plan(
        "all_reduce",
        "simple",
        ranks,
        count,
        4,
        channels=channels,
        slot_bytes=slot_bytes,
        orders=orders,
    )
    events = [
        event for channel in range(channels) for event in _channel(plan, channel, count, work)
    ]
    return Trace(
        ranks=ranks,
        channels=channels,
        orders=tuple(
            tuple(plan.rank_at(position, channel) for position in range(ranks))
            for channel in range(channels)
        ),
        collective="all_reduce",
        protocol="simple",
        dtype="float32",
        count=count,
        device="cpu",
        repeats=1,
        kept=0,
        machine={"cpu": "a machine of the tests", "cores": 2},
        date="2026-11-21T00:00:00+00:00",
        command=command,
        events=tuple(sorted(events, key=lambda event: event.start_ns)),
    )


def asleep(trace: Trace, rank: int, late_ns: int) -> Trace:
    """Returns the trace with ``rank`` delayed by this much after its last wait for prev."""
    last = trace.of(rank)[-1]
    assert last.verb == "recv"
    slept = dataclasses.replace(
        last, end_ns=last.end_ns + late_ns, wait_prev_ns=last.wait_prev_ns + late_ns
    )
    events = tuple(slept if event == last else event for event in trace.events)
    changed = dataclasses.replace(trace, events=events)
    changed.check()
    return changed


def _channel(plan: Plan, channel: int, count: int, work: Work) -> Iterator[Event]:
    """Runs the ranks until all are through: a verb starts when its data and its slot are there."""
    ranks = range(plan.ranks)
    rows = [plan.trace(rank, channel) for rank in ranks]
    steps = 2 * plan.ranks - 1
    offset = {
        (loop, plan.chunk_of(channel, loop, owner)[0]): owner
        for loop in range(plan.loops)
        for owner in reversed(range(plan.ranks))  # of empty chunks at one place, the first
    }
    done: list[list[Event]] = [[] for _ in ranks]
    ended: dict[tuple[str, int, int], int] = {}  # ("sent" or "received", rank, how many) -> ns
    seen = {("sent", rank): 0 for rank in ranks} | {("received", rank): 0 for rank in ranks}
    while any(len(done[rank]) < len(rows[rank]) for rank in ranks):
        before = sum(map(len, done))
        for rank in ranks:
            while len(done[rank]) < len(rows[rank]):
                number = len(done[rank])
                verb, at, _, elements, _ = rows[rank][number]
                receives, sends = verb.startswith("recv"), verb.endswith("send")
                start = done[rank][-1].end_ns + CLOCK_NS if number else rank * CLOCK_NS
                data = slot = start
                if receives:
                    data = ended.get(("sent", plan.prev(rank, channel), seen["received", rank]), -1)
                if sends and seen["sent", rank] >= AHEAD:
                    slot = ended.get(
                        ("received", plan.next(rank, channel), seen["sent", rank] - AHEAD), -1
                    )
                if data < 0 or slot < 0:
                    break
                wait_prev = max(0, data - start)
                wait_next = max(0, slot - max(start, data))
                end = start + wait_prev + wait_next + work(rank, elements)
                for did, does in (("sent", sends), ("received", receives)):
                    if does:
                        ended[did, rank, seen[did, rank]] = end
                        seen[did, rank] += 1
                loop, step = divmod(number, steps)
                owner = _owner(plan, channel, rank, step) if not elements else offset[loop, at]
                what = (rank, channel, loop, step, verb, owner, at, elements)
                done[rank].append(Event(*what, start, end, wait_prev, wait_next))
        assert sum(map(len, done)) > before, "nobody can go on"
    for events in done:
        yield from events


def _owner(plan: Plan, channel: int, rank: int, step: int) -> int:
    """Returns the owner of an empty chunk, which has no offset."""
    return (plan.position(rank, channel) - 1 - step) % plan.ranks
