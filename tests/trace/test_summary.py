"""The summary of a trace: shares, their ranks, and certain facts about lateness."""

from __future__ import annotations

import dataclasses

import pytest

from ringkern.tools.trace.events import Event
from ringkern.tools.trace.summary import Waits, circumstances, say_ns, summarize, title, waits
from tests.trace import synthetic


def test_a_late_rank_waits_for_no_rank() -> None:
    """A wait that continues after prev is done is not caused by prev."""
    trace = synthetic.make(4)
    before = waits(trace, trace.of(2)[-1])
    assert before.prev > 0
    assert before.late == 0
    changed = synthetic.asleep(trace, 2, 500)
    assert waits(changed, changed.of(2)[-1]) == Waits(before.prev, 500, 0)


def test_late_is_no_more_than_is_certain() -> None:
    """A long verb whose data came at the front may have worked all the time."""
    trace = synthetic.make(2)
    event = trace.of(0)[-1]
    feeder = trace.feeder(event)
    assert feeder is not None
    long = dataclasses.replace(event, end_ns=event.end_ns + 10_000)
    assert waits(trace, long).late == 0
    early = dataclasses.replace(event, wait_prev_ns=event.wait_prev_ns // 2)
    assert waits(trace, early).late == 0
    assert sum(waits(trace, long)) == long.wait_ns


def test_shares_add_up() -> None:
    trace = synthetic.asleep(synthetic.make(8, channels=2), 3, 2000)
    found = summarize(trace)
    assert found.call_ns == trace.duration_ns
    for one in found.ranks:
        lanes = [trace.of(one.rank, channel) for channel in (0, 1)]
        assert one.took_ns == sum(lane[-1].end_ns - lane[0].start_ns for lane in lanes)
        waited = sum(event.wait_ns for lane in lanes for event in lane)
        assert sum(one.waited_ns.values()) + one.late_ns == waited
        assert one.worked_ns == sum(e.duration_ns for lane in lanes for e in lane) - waited
        assert one.waited_share == pytest.approx(waited / one.took_ns)
        assert set(one.waited_ns) <= {(one.rank - 1) % 8, (one.rank + 1) % 8}
    assert [one.rank for one in found.ranks if one.late_ns] == [3]
    assert found.slowest == 1


def test_the_summary_names_the_cause_of_the_waiting() -> None:
    trace = synthetic.make(4)
    assert summarize(trace).reason() == "Rank 1 worked longest."
    late = summarize(synthetic.asleep(trace, 2, 50_000))
    assert "data was there, and the rank did not run" in late.reason()
    assert late.reason().endswith("More ranks than free cores do that.")
    assert late.ranks[2].text().endswith("% late")
    on_a_gpu = dataclasses.replace(synthetic.asleep(trace, 2, 50_000), device="cuda")
    assert summarize(on_a_gpu).reason().endswith("Processes on one GPU do that.")

    def even(rank: int, elements: int) -> int:
        return 1000

    assert summarize(synthetic.make(2, work=even)).reason() == ""
    assert summarize(trace).ranks[1].text() == "hardly waited"
    assert summarize(trace).ranks[2].text() == "waited 30%: 30% for rank 1"


def test_nothing_was_done() -> None:
    empty = dataclasses.replace(synthetic.make(2), events=())
    found = summarize(empty)
    assert found.call_ns == 0
    assert [one.waited_share for one in found.ranks] == [0.0, 0.0]


def test_words() -> None:
    assert title(synthetic.make(3, 5)) == "all_reduce of 20 (float32) over 3 ranks, simple, cpu"
    for time_ns, said in (
        (0, "0 ns"), (999, "999 ns"), (1000, "1.00 us"), (41_230, "41.2 us"),
        (812_345, "812 us"), (3_070_000, "3.07 ms"), (2_000_000_000, "2.00 s"),
    ):  # fmt: skip
        assert say_ns(time_ns) == said


def test_circumstances() -> None:
    trace = synthetic.make(2)
    known = {
        "cpu": "A CPU",
        "cores": 8,
        "gpus": "2 x A GPU",
        "ringkern": "0.1.0",
        "torch": "2.13.0",
    }
    trace = dataclasses.replace(trace, machine=known)
    said = "A CPU, 2 x A GPU, 8 cores, ringkern 0.1.0, torch 2.13.0, 2026-11-21 00:00 UTC"
    assert circumstances(trace) == said
    assert circumstances(dataclasses.replace(trace, machine={})) == "2026-11-21 00:00 UTC"


def test_a_verb_that_receives_nothing_is_never_late() -> None:
    trace = synthetic.make(2)
    send = Event(0, 0, 0, 0, "send", 1, 0, 8, 0, 100, 0, 90)
    assert waits(trace, send) == Waits(0, 0, 90)
