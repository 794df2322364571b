"""The bench that the schedule is proven on finds what is planted there."""

from __future__ import annotations

import pytest

from ringkern._C import Plan
from tests.core.expected import CHAINS, check_run, make_ring
from tests.core.simulator import SCHEDULERS, Deadlock, Mismatch, Ring


def planted(k: int = 3, slots: int = 8) -> Ring:
    """All-reduce of three loops; chunks of two slots each."""
    plan = Plan("all_reduce", "simple", k, 24 * k, 4, slot_bytes=16, slots=8)
    ring = make_ring(plan, "all_reduce", 24 * k, slots)
    ring.traces = [list(rows) for rows in ring.traces]
    assert plan.loops == 3
    assert all(row[4] == 2 for rows in ring.traces for row in rows)
    return ring


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("entry", range(15))
def test_a_dropped_entry_is_found(entry: int, scheduler: str) -> None:
    ring = planted()
    assert len(ring.traces[1]) == 15
    del ring.traces[1][entry]
    with pytest.raises((Deadlock, Mismatch)):
        ring.run(scheduler)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("k", [2, 3, 5])
def test_too_few_slots_deadlock(k: int, scheduler: str) -> None:
    """Chunks of two slots need a third; the plan does not cut chunks where slots are two."""
    for slots in (1, 2):
        with pytest.raises(Deadlock):
            planted(k, slots).run(scheduler)
    planted(k, slots=3).run(scheduler)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_a_single_slot_deadlocks(k: int) -> None:
    plan = Plan("all_reduce", "ll", k, 100 * k, 4, slots=2)
    with pytest.raises(Deadlock):
        make_ring(plan, "all_reduce", 100 * k, slots=1).run()
    make_ring(plan, "all_reduce", 100 * k, slots=2).run()


def test_swapped_entries_are_found() -> None:
    ring = planted()
    rows = ring.traces[2]
    rows[1], rows[2] = rows[2], rows[1]
    with pytest.raises((Deadlock, Mismatch)):
        ring.run()


def test_a_wrong_offset_is_found() -> None:
    ring = planted()
    verb, at, out, count, slots = ring.traces[0][1]
    ring.traces[0][1] = (verb, at + 1, out + 1, count, slots)
    with pytest.raises(Mismatch, match="expects"):
        ring.run()


def test_an_access_out_of_bounds_is_found() -> None:
    ring = planted()
    ring.count -= 1
    with pytest.raises(Mismatch, match="of 71"):
        ring.run()


def test_ranks_that_cut_differently_are_found() -> None:
    ring = planted()
    other = Plan("all_reduce", "simple", 3, 72, 4, slot_bytes=32, slots=8)
    ring.traces[1] = other.trace(1)
    with pytest.raises(Mismatch, match="expects"):
        ring.run()


def test_reading_what_was_overwritten_is_found() -> None:
    ring = planted(k=2)
    # Rank 0 finishes its chunk, and is then asked to add it again.
    ring.traces[0].insert(2, ring.traces[0][1])
    with pytest.raises((Mismatch, Deadlock)):
        ring.run()


def test_a_missing_contribution_is_found() -> None:
    """A rank that forwards without adding its part: every size fits, and the result is wrong."""
    ring = planted(k=3)
    for i, (verb, *rest) in enumerate(ring.traces[1]):
        if verb == "recv_reduce_send":
            ring.traces[1][i] = ("recv_copy_send", *rest)
    run = ring.run()
    plan = Plan("all_reduce", "simple", 3, 72, 4, slot_bytes=16, slots=8)
    with pytest.raises(AssertionError):
        check_run("all_reduce", 72, plan, [run])


def planted_chain(collective: str, k: int = 4, slots: int = 8) -> tuple[Plan, Ring]:
    """Three loops from, or to, rank 1; chunks of two slots."""
    plan = Plan(collective, "simple", k, 24, 4, slot_bytes=16, slots=8, root=1)
    assert plan.loops == 3
    return plan, make_ring(plan, collective, 24, slots)


@pytest.mark.parametrize("collective", CHAINS)
def test_a_chain_runs_with_a_single_slot(collective: str) -> None:
    """A chain is not a ring: some rank waits for no other."""
    for scheduler in SCHEDULERS:
        plan, ring = planted_chain(collective, slots=1)
        check_run(collective, 24, plan, [ring.run(scheduler)], root=1)


@pytest.mark.parametrize("collective", CHAINS)
def test_a_dropped_entry_of_a_chain_is_found(collective: str) -> None:
    plan, ring = planted_chain(collective)
    ranks = [rank for rank in range(4) if plan.trace(rank)]
    assert len(ranks) == (2 if collective == "send_recv" else 4)
    for dropped in ranks:
        ring.traces = [plan.trace(r)[r == dropped :] for r in range(4)]
        with pytest.raises((Deadlock, Mismatch)):
            ring.run()


@pytest.mark.parametrize("collective", CHAINS)
def test_ranks_that_disagree_on_the_root_are_found(collective: str) -> None:
    plan, ring = planted_chain(collective)
    other = Plan(collective, "simple", 4, 24, 4, slot_bytes=16, slots=8, root=2)
    # A rank between the two ends, or beside them, does the same for either root.
    ranks = [rank for rank in range(4) if other.trace(rank) != plan.trace(rank)]
    assert set(ranks) >= {1, 2}
    for wrong in ranks:
        ring.traces = [(other if r == wrong else plan).trace(r) for r in range(4)]
        with pytest.raises((Deadlock, Mismatch)):
            ring.run()


@pytest.mark.parametrize("collective", ["reduce", "send_recv"])
def test_an_output_that_is_nobodys_business_is_found(collective: str) -> None:
    """Everybody is given the right chunks, and a rank that has no output writes one."""
    plan, ring = planted_chain(collective)
    writing = {"send": "copy_send", "recv_reduce_send": "recv_reduce_copy_send"}
    ranks = [rank for rank in range(4) if any(row[0] in writing for row in plan.trace(rank))]
    assert ranks == ([1] if collective == "send_recv" else [0, 2, 3])
    for wrong in ranks:
        rows = [(writing[verb], *rest) for verb, *rest in plan.trace(wrong)]
        ring.traces = [rows if r == wrong else plan.trace(r) for r in range(4)]
        with pytest.raises(AssertionError, match="not even"):
            check_run(collective, 24, plan, [ring.run()], root=1)
