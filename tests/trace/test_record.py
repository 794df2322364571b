"""Recording: real calls of real ranks, held against the plan that the extension makes for them."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import _C
from ringkern.comm import communicator_for
from ringkern.tools import exact
from ringkern.tools.trace.align import align
from ringkern.tools.trace.events import Event, Trace
from ringkern.tools.trace.record import record
from tests.ranks import Pool, RankError

PROTOCOLS = _C.protocols
SIZES = {"simple": (4, 3000, 1 << 20), "ll": (4, 3000, 100_000), "ll128": (4, 3000, 1 << 20)}


# ---- whole traces -------------------------------------------------------------------------------


def _record(rank: int, size: int, size_bytes: int, asked: dict[str, Any]) -> str:
    trace = record(size_bytes, **asked)
    assert (trace is None) == (rank != 0)
    return trace.to_json() if trace else ""


def recorded(pool: Pool, ranks: int, size_bytes: int, **asked: Any) -> Trace:
    return Trace.from_json(pool(ranks).run(_record, size_bytes, asked)[0])


def assert_is_the_plan(trace: Trace) -> None:
    """Compares verb by verb with the trace link on the plan of a CPU's ring."""
    element = getattr(torch, trace.dtype).itemsize
    geometry = _C.describe(
        "cpu", "all_reduce", "ring", trace.protocol, trace.ranks, trace.count, trace.dtype
    )
    assert geometry
    plan = _C.Plan("all_reduce", trace.protocol, trace.ranks, trace.count, element,
                   slots=geometry["slots"],
                   slot_bytes=geometry["staging_bytes"] // geometry["slots"])  # fmt: skip
    assert trace.orders == (tuple(range(trace.ranks)),)
    for rank in range(trace.ranks):
        events = trace.of(rank)
        found = [(e.verb, e.offset, e.offset, e.count) for e in events]
        assert found == [row[:4] for row in plan.trace(rank)]
        for event in events:
            chunk = plan.chunk_of(event.channel, event.loop, event.owner)
            assert chunk == (event.offset, event.offset, event.count)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_verb_of_every_rank(ranks: Pool, size: int, protocol: str) -> None:
    for size_bytes in SIZES[protocol]:
        trace = recorded(ranks, size, size_bytes, protocol=protocol, warmup=1, repeats=3)
        trace.check()
        assert_is_the_plan(trace)
        assert (trace.ranks, trace.channels, trace.protocol) == (size, 1, protocol)
        assert trace.count == size_bytes // 4
        assert trace.events[0].start_ns == 0
        assert trace.duration_ns > 0
        assert len(list(trace.hops())) == size * (2 * size - 2) * trace.loops
        for sent, received in trace.hops():
            assert (sent.owner, sent.offset, sent.loop) == (
                received.owner, received.offset, received.loop)  # fmt: skip
            if received.count > 0:
                assert sent.start_ns <= received.end_ns
            assert trace.next(sent.rank) == received.rank


def test_a_recording_notes_call_machine_and_command(ranks: Pool) -> None:
    asked = {"protocol": "auto", "dtype": "bfloat16", "repeats": 1, "command": "a command"}
    trace = recorded(ranks, 2, 1001, **asked)
    assert (trace.protocol, trace.dtype, trace.count) == ("simple", "bfloat16", 500)
    assert (trace.repeats, trace.kept) == (1, 0)
    assert (trace.collective, trace.device, trace.command) == ("all_reduce", "cpu", "a command")
    assert trace.machine["ringkern"] == ringkern.__version__
    assert trace.machine["torch"] == str(torch.__version__)
    assert trace.machine["clock"] == "CLOCK_MONOTONIC"
    assert trace.date.endswith("+00:00")
    assert_is_the_plan(trace)


# ---- the call itself ----------------------------------------------------------------------------


def _late(rank: int, size: int) -> list[_C.TimedRow]:
    """Rank 1 comes late, so that all others wait for it."""
    c = communicator_for(None)._c
    x = torch.zeros(64)
    c.record_all_reduce(x, "simple")  # connects
    dist.barrier()
    if rank == 1:
        time.sleep(1.0)
    return c.record_all_reduce(x, "simple")


def test_ranks_wait_for_a_late_rank(ranks: Pool) -> None:
    """Rank 2 waits for the data of the late rank. A tenth of the delay is enough: the others may
    come late as well.
    """
    rows = ranks(3).run(_late)
    first = next(row for row in rows[2] if row[3] == "recv_reduce_send")
    assert first[9] > 100_000_000
    assert first[9] > max(row[9] for row in rows[1])
    assert max(row[10] for row in rows[2]) < first[9]  # there are slots enough
    assert min(row[7] for row in rows[1]) > min(row[7] for row in rows[0])


def _results(rank: int, size: int, protocol: str) -> None:
    """Checks that the traced call has the right result, like the calls before and after it."""
    c = communicator_for(None)._c
    for count in (0, 1, size - 1, 1000, 70_001):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
            given, expected = exact.all_reduce("sum", dtype, rank, size, count)
            before, x, after = given.clone(), given.clone(), given.clone()
            strided = torch.stack([given, given], 1)[:, 0]
            ringkern.ring_all_reduce(before, protocol=protocol)
            rows = c.record_all_reduce(x, protocol)
            ringkern.ring_all_reduce(after, protocol=protocol)
            c.record_all_reduce(strided, protocol)
            for result in (before, x, after, strided):
                assert exact.differences(result, expected) == 0, (count, dtype)
            assert (len(rows) == 0) == (count == 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_results_of_traced_calls_and_their_neighbours(
    ranks: Pool, size: int, protocol: str
) -> None:
    ranks(size).run(_results, protocol)


def _too_long(rank: int, size: int) -> str:
    c = communicator_for(None)._c
    huge = torch.empty(80_000_000, dtype=torch.uint8)  # never touched: the call is refused before
    with pytest.raises(ValueError, match="verbs on each rank, and 16384 are traced at most") as e:
        c.record_all_reduce(huge, "ll")
    x = torch.ones(1)
    ringkern.ring_all_reduce(x)
    assert x.item() == size
    return str(e.value)


def test_a_call_of_too_many_verbs_is_refused(ranks: Pool) -> None:
    texts = ranks(4).run(_too_long)
    assert len(set(texts)) == 1
    assert "trace a smaller tensor" in texts[0]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"protocol": "tcp"}, "unknown protocol 'tcp'; choose one of auto, simple, ll, ll128"),
        ({"dtype": "complex64"}, "unknown dtype 'complex64'; choose one of float32, "),
        ({"repeats": 0}, "give 1 or more"),
        ({"warmup": -1}, "give 1 or more, 0 or more"),
    ],
)
def test_arguments_that_do_not_fit(ranks: Pool, asked: dict[str, Any], text: str) -> None:
    for outcome in ranks(2).outcomes(_record, 100, asked):
        assert isinstance(outcome, RankError)
        assert outcome.kind == "ValueError"
        assert text in outcome.text


def _alone(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="a ring of one rank sends nothing"):
        record(100)
    assert communicator_for(None)._c.record_all_reduce(torch.ones(3), "simple") == []
    with pytest.raises(ValueError, match="unknown protocol 'auto'"):
        communicator_for(None)._c.record_all_reduce(torch.ones(3), "auto")


def test_one_rank(ranks: Pool) -> None:
    ranks(1).run(_alone)


# ---- check() finds faults -----------------------------------------------------------------------


def made(ranks: int = 3) -> Trace:
    """Returns a trace of a machine without delays: a verb takes 10 ns, a gap 2."""
    plan = _C.Plan("all_reduce", "simple", ranks, 12, 4)
    events = []
    for rank in range(ranks):
        for step, row in enumerate(plan.trace(rank)):
            verb, offset, _, count, _ = row
            owner = (rank - 1 - step) % ranks
            event = Event(rank, 0, 0, step, verb, owner, offset, count, 12 * step, 12 * step + 10,
                          0, 0)  # fmt: skip
            events.append(event)
    events.sort(key=lambda e: e.start_ns)
    return Trace(ranks, 1, (tuple(range(ranks)),), "all_reduce", "simple", "float32", 12, "cpu", 1,
                 0, {}, "", "", tuple(events))  # fmt: skip


def changed(trace: Trace, at: int, **fields: Any) -> Trace:
    events = list(trace.events)
    events[at] = replace(events[at], **fields)
    return replace(trace, events=tuple(sorted(events, key=lambda e: e.start_ns)))


def test_a_trace_that_is_right() -> None:
    for ranks in (2, 3, 5):
        made(ranks).check()


@pytest.mark.parametrize(
    ("at", "fields", "text"),
    [
        (4, {"verb": "recv_copy_send"}, "(loop, step, verb, owner) is (0, 1, 'recv_copy_send', 2)"),
        (4, {"owner": 0}, "(loop, step, verb, owner) is"),
        (4, {"step": 2}, "(loop, step, verb, owner) is"),
        (4, {"rank": 2}, "events where the schedule has"),
        (4, {"end_ns": 30}, "starts before the one before it ends"),
        (14, {"end_ns": 0}, "ends before it starts"),
        (4, {"wait_prev_ns": 11}, "waits for longer than it takes"),
        (4, {"wait_prev_ns": 6, "wait_next_ns": 6}, "waits for longer than it takes"),
        (4, {"wait_prev_ns": -1}, "waits for longer than it takes"),
        (0, {"wait_prev_ns": 1}, "waits for data, and its verb takes none"),
        (14, {"wait_next_ns": 1}, "waits for a slot, and its verb fills none"),
        (4, {"count": 3}, "has another chunk of this owner"),
    ],
)
def test_a_trace_that_is_wrong(at: int, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        changed(made(), at, **fields).check()


def test_events_that_are_missing_or_twice() -> None:
    trace = made()
    for events in (trace.events[1:], trace.events[:-1], trace.events + trace.events[-1:]):
        with pytest.raises(ValueError, match="events"):
            replace(trace, events=events).check()
    for place in ({"rank": 3}, {"channel": 1}):
        events = (*trace.events, replace(trace.events[-1], **place))
        with pytest.raises(ValueError, match="is of 3 ranks and 1 channels"):
            replace(trace, events=events).check()
    unsorted = (*trace.events[3:], *trace.events[:3])
    with pytest.raises(ValueError, match="not sorted"):
        replace(trace, events=unsorted).check()


def test_a_receive_that_ends_before_its_send() -> None:
    trace = made()
    late = tuple(
        replace(e, start_ns=e.start_ns + 1000, end_ns=e.end_ns + 1000) if e.rank == 1 else e
        for e in trace.events
    )
    events = tuple(sorted(late, key=lambda e: e.start_ns))
    trace = replace(trace, events=events)
    with pytest.raises(ValueError, match="which feeds it"):
        trace.check()
    empty = tuple(replace(e, offset=0, count=0) for e in events)
    trace = replace(trace, events=empty, count=0, protocol="ll")
    trace.check()  # lines that there are none of are not waited for
    with pytest.raises(ValueError, match="which feeds it"):
        replace(trace, protocol="simple").check()


def test_chunks_that_leave_elements_out() -> None:
    trace = made()
    with pytest.raises(ValueError, match="the tensor has 13"):
        replace(trace, count=13).check()
    moved = tuple(replace(e, offset=e.offset + (e.owner == 2)) for e in trace.events)
    with pytest.raises(ValueError, match="are in no chunk"):
        replace(trace, events=moved).check()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"collective": "broadcast"}, "all_reduce is what can be traced"),
        ({"orders": ((0, 1, 1),)}, "is no order of 3 ranks"),
        ({"orders": ()}, "0 orders for 1 channels"),
    ],
)
def test_a_head_that_is_wrong(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        replace(made(), **fields).check()


def test_ranks_in_another_order() -> None:
    """Ranks 0, 2, 1: the sources of data follow from the order of the channel's ring."""
    order = {0: 0, 1: 2, 2: 1}
    trace = made()
    events = tuple(replace(e, rank=order[e.rank]) for e in trace.events)
    trace = replace(trace, orders=((0, 2, 1),), events=events)
    trace.check()
    assert (trace.next(0), trace.prev(0), trace.position(2)) == (2, 1, 1)
    assert {(s.rank, r.rank) for s, r in trace.hops()} == {(0, 2), (2, 1), (1, 0)}


# ---- clocks that differ ----------------------------------------------------------------------


def shifted(trace: Trace, ahead: dict[int, int]) -> Trace:
    """Returns the trace with some ranks' clocks ahead; all else stays, so that times start at 0."""
    first = min(e.start_ns + ahead.get(e.rank, 0) for e in trace.events)
    events = []
    for e in trace.events:
        by = ahead.get(e.rank, 0) - first
        events.append(replace(e, start_ns=e.start_ns + by, end_ns=e.end_ns + by))
    return replace(trace, events=tuple(sorted(events, key=lambda e: e.start_ns)))


def by_place(trace: Trace) -> dict[tuple[int, int, int], tuple[int, int]]:
    return {(e.rank, e.loop, e.step): (e.start_ns, e.end_ns) for e in trace.events}


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_clocks_are_aligned(ranks: int) -> None:
    """All hops of this trace take as long, so that it is found again as it was."""
    trace = made(ranks)
    wrong = shifted(trace, {0: 1_000_000, ranks - 1: -7_000_000})
    with pytest.raises(ValueError, match="which feeds it"):
        wrong.check()
    found = align(wrong)
    found.check()
    assert by_place(found) == by_place(trace)


def test_aligning_depends_on_no_clock(ranks: Pool) -> None:
    trace = recorded(ranks, 3, 100_000, protocol="ll", warmup=1, repeats=1)
    found = align(trace)
    found.check()
    assert by_place(align(shifted(trace, {1: 123_456, 2: -999}))) == by_place(found)
    for rank in range(3):  # within a rank nothing changes
        before, after = trace.of(rank), found.of(rank)
        shift = after[0].start_ns - before[0].start_ns
        assert [(e.start_ns + shift, e.end_ns + shift) for e in before] == [
            (e.start_ns, e.end_ns) for e in after
        ]


def test_a_trace_without_data_is_left_as_it_is() -> None:
    events = tuple(replace(e, count=0) for e in made().events)
    empty = replace(made(), protocol="ll", events=events)
    assert align(empty) is empty


# ---- files --------------------------------------------------------------------------------------


def test_json() -> None:
    trace = made(4)
    assert Trace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "its format is 'list'"),
        ('{"format": "ringkern-trace-0"}', "its format is 'ringkern-trace-0'"),
        ('{"format": "ringkern-trace-1"}', "this trace is damaged"),
        (
            made(2).to_json().replace('"count": ', '"count": 0.5, "x": ', 1),
            "the trace: count is 0.5",
        ),
        (made(2).to_json().replace("\n[0,", '\n["0",'), r"the trace: events\[\d+\].rank is '0'"),
        ("{", "Expecting"),
    ],
)
def test_text_that_is_no_trace(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Trace.from_json(text)
