"""The form that Perfetto reads: slices, what they waited, and arrows between them."""

from __future__ import annotations

import json
from typing import Any

from ringkern.tools.trace.chrome import chrome_trace
from ringkern.tools.trace.events import Trace
from tests.trace.test_record import changed, made


def events_of(trace: Trace, phase: str, **match: Any) -> list[dict[str, Any]]:
    data = json.loads(json.dumps(chrome_trace(trace)))
    return [
        e
        for e in data["traceEvents"]
        if e["ph"] == phase and all(e[key] == value for key, value in match.items())
    ]


def test_a_slice_for_each_verb() -> None:
    trace = made(3)
    slices = events_of(trace, "X", cat="verb")
    assert len(slices) == len(trace.events) == 15
    for event, found in zip(trace.events, slices, strict=True):
        assert (found["pid"], found["tid"], found["name"]) == (event.rank, 0, event.verb)
        assert (found["ts"], found["dur"]) == (event.start_ns / 1e3, 0.01)
        assert found["args"]["owner"] == event.owner
        assert found["args"].get("prev") == (trace.prev(event.rank) if event.receives else None)
        assert found["args"].get("next") == (trace.next(event.rank) if event.sends else None)


def test_rows_have_names() -> None:
    names = events_of(made(3), "M", name="process_name")
    assert [(e["pid"], e["args"]["name"]) for e in names] == [
        (0, "rank 0"),
        (1, "rank 1"),
        (2, "rank 2"),
    ]
    threads = events_of(made(3), "M", name="thread_name")
    assert [e["args"]["name"] for e in threads] == [f"channel 0, position {p}" for p in range(3)]


def test_waits_lie_within_their_verb() -> None:
    trace = changed(made(3), 4, wait_prev_ns=3, wait_next_ns=4)
    event = trace.events[4]
    for_prev, for_next = events_of(trace, "X", cat="wait")
    assert for_prev["name"] == "wait for data from prev"
    assert for_next["name"] == "wait for a slot at next"
    assert for_prev["ts"] == event.start_ns / 1e3
    assert (for_prev["dur"], for_next["dur"]) == (0.003, 0.004)
    assert for_next["ts"] == (event.start_ns + 3) / 1e3
    assert for_next["pid"] == event.rank


def test_an_arrow_for_each_hop() -> None:
    trace = made(3)
    begins, ends = events_of(trace, "s"), events_of(trace, "f")
    hops = list(trace.hops())
    assert len(begins) == len(ends) == len(hops) == 12
    assert len({e["id"] for e in begins}) == 12
    for (sent, received), a, b in zip(hops, begins, ends, strict=True):
        assert (a["id"], a["name"], a["cat"]) == (b["id"], b["name"], b["cat"])
        assert (a["pid"], b["pid"], b["bp"]) == (sent.rank, received.rank, "e")
        assert sent.start_ns <= a["ts"] * 1e3 <= sent.end_ns
        assert received.start_ns <= b["ts"] * 1e3 <= received.end_ns
        assert a["ts"] <= b["ts"]


def test_an_arrow_never_points_back() -> None:
    """A send may return after the receive that it fed."""
    trace = changed(made(2), 0, end_ns=11)
    first = trace.events[0]
    trace = changed(trace, 0, end_ns=first.end_ns + 1)
    for a, b in zip(events_of(trace, "s"), events_of(trace, "f"), strict=True):
        assert a["ts"] <= b["ts"]


def test_the_trace_states_call_ranks_and_unit() -> None:
    data = chrome_trace(made(3))
    assert data["displayTimeUnit"] == "ns"
    assert data["otherData"]["collective"] == "all_reduce"
    assert data["otherData"]["ranks"] == 3
