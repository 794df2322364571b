"""A trace in the form of Chrome's trace events, which Perfetto (ui.perfetto.dev) opens."""

from __future__ import annotations

from typing import Any

from .events import Event, Trace

WAITS = (("wait_prev_ns", "wait for data from prev"), ("wait_next_ns", "wait for a slot at next"))


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """Returns the trace as a dictionary for :func:`json.dump`.

    A process is a rank and a thread a channel. A slice is a verb, with its data as arguments. It
    contains its waits, the sum for prev and then the sum for next, drawn at the verb's start, where
    most of the waiting is. An arrow goes from each sending verb to the verb of next that receives
    its chunk, unless the chunk is empty. Times are microseconds.
    """
    events = _names(trace)
    for event in trace.events:
        events.append(_slice(trace, event))
        events += _waits(event)
    for number, (sent, received) in enumerate(trace.hops(), 1):
        if received.count > 0:
            events += _arrow(number, sent, received)
    about = {
        name: getattr(trace, name)
        for name in ("collective", "protocol", "dtype", "count", "device", "ranks", "date")
    }
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {**about, **trace.machine, "command": trace.command},
    }


def _names(trace: Trace) -> list[dict[str, Any]]:
    """Names the rows and sorts them by number."""
    events = []
    for rank in range(trace.ranks):
        events.append(_meta("process_name", rank, name=f"rank {rank}"))
        events.append(_meta("process_sort_index", rank, sort_index=rank))
        for channel in range(trace.channels):
            position = trace.position(rank, channel)
            name = f"channel {channel}, position {position}"
            events.append(_meta("thread_name", rank, channel, name=name))
            events.append(_meta("thread_sort_index", rank, channel, sort_index=channel))
    return events


def _meta(what: str, rank: int, channel: int = 0, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": channel, "args": args}


def _slice(trace: Trace, event: Event) -> dict[str, Any]:
    args: dict[str, int] = {
        "loop": event.loop,
        "step": event.step,
        "owner": event.owner,
        "offset": event.offset,
        "count": event.count,
        "wait_prev_ns": event.wait_prev_ns,
        "wait_next_ns": event.wait_next_ns,
    }
    if event.receives:
        args["prev"] = trace.prev(event.rank, event.channel)
    if event.sends:
        args["next"] = trace.next(event.rank, event.channel)
    return _complete(event, event.verb, "verb", event.start_ns, event.duration_ns, args)


def _waits(event: Event) -> list[dict[str, Any]]:
    slices, start = [], event.start_ns
    for field, name in WAITS:
        if duration := getattr(event, field):
            slices.append(_complete(event, name, "wait", start, duration, {field: duration}))
            start += duration
    return slices


def _complete(
    event: Event, name: str, kind: str, start_ns: int, duration_ns: int, args: dict[str, int]
) -> dict[str, Any]:
    times = {"ts": start_ns / 1e3, "dur": duration_ns / 1e3}
    place = {"pid": event.rank, "tid": event.channel}
    return {"ph": "X", "name": name, "cat": kind, **place, **times, "args": args}


def _arrow(number: int, sent: Event, received: Event) -> list[dict[str, Any]]:
    # Both ends are inside their slices, because the viewer would otherwise tie the arrow to the
    # next slice. The arrow does not go backwards: a receive may end before the send that fed it
    # returns, as its data is already there.
    end = max(received.start_ns, received.end_ns - 1)
    start = max(sent.start_ns, min(sent.end_ns - 1, end))
    both = {"name": "chunk", "cat": "chunk", "id": number}
    return [
        {"ph": "s", **both, "pid": sent.rank, "tid": sent.channel, "ts": start / 1e3},
        {
            "ph": "f",
            "bp": "e",
            **both,
            "pid": received.rank,
            "tid": received.channel,
            "ts": end / 1e3,
        },
    ]
