"""The schedule, proven without memory: what the ranks would do is run on a bench of FIFOs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from ringkern._C import Plan
from tests.core.simulator import SCHEDULERS, Deadlock, Mismatch, Ring, Run, Span

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
PROTOCOLS = ("simple", "ll", "ll128")
# On the wire; the smallest that hold 16 bytes of data, and some that no power of two divides.
SLOT_BYTES = {"simple": (16, 48), "ll": (32, 112), "ll128": (128, 384)}
DATA_BYTES = {"simple": lambda n: n, "ll": lambda n: n // 2, "ll128": lambda n: n // 128 * 120}


@dataclass(frozen=True)
class Geometry:
    """What is varied of a plan beside its collective, protocol, ranks and count."""

    channels: int
    slots: int
    size: int  # which of SLOT_BYTES
    element_bytes: int
    workers: int = 1


GEOMETRIES = (
    Geometry(channels=1, slots=2, size=0, element_bytes=4),
    Geometry(channels=2, slots=3, size=0, element_bytes=1),
    Geometry(channels=3, slots=8, size=1, element_bytes=8),
    Geometry(channels=1, slots=4, size=1, element_bytes=2, workers=3),
)


def make_plan(
    collective: str, protocol: str, ranks: int, count: int, g: Geometry, reversed: bool = False
) -> Plan:
    return Plan(
        collective,
        protocol,
        ranks,
        count,
        g.element_bytes,
        workers=g.workers,
        channels=g.channels,
        slots=g.slots,
        slot_bytes=SLOT_BYTES[protocol][g.size],
        reversed=reversed,
    )


def make_ring(plan: Plan, collective: str, count: int, slots: int, channel: int = 0) -> Ring:
    ranks = range(plan.ranks)
    return Ring(
        [plan.trace(rank, channel) for rank in ranks],
        [plan.next(rank) for rank in ranks],
        collective,
        count,
        slots,
    )


def counts_of(collective: str, plan: Plan) -> list[int]:
    """Sizes around every edge of a plan."""
    k, chunk = plan.ranks, plan.chunk
    loop = plan.channels * chunk * (k if collective == "all_reduce" else 1)
    edges = (0, 1, k - 1, k, k + 1, chunk - 1, chunk, chunk + 1, 97, loop - 1, loop, loop + 1)
    return sorted({n for n in (*edges, (8 if k <= 4 else 2) * loop + 7) if n >= 0})


def contributors(collective: str, plan: Plan, owner: int) -> tuple[int, ...]:
    """Who takes part in the chunk of a position, in order: the ranks after it, and it last."""
    k = plan.ranks
    if collective == "all_gather":
        return (plan.position(owner),)
    return tuple(plan.position((owner + 1 + hop) % k) for hop in range(k))


def expected_output(collective: str, plan: Plan, rank: int) -> list[Span]:
    """The spans that an output must hold at the end, by the chunk table, empty ones left out."""
    owners = [plan.position(rank)] if collective == "reduce_scatter" else range(plan.ranks)
    spans = []
    for channel, loop, owner in itertools.product(range(plan.channels), range(plan.loops), owners):
        _, out, count = plan.chunk_of(channel, loop, owner)
        if count:
            spans.append(Span(out, count, contributors(collective, plan, owner)))
    return sorted(spans)


def check_complete(spans: list[Span], length: int) -> None:
    """Spans lie end to end from 0 to `length`: each element once."""
    at = 0
    for span in spans:
        assert span.first == at, f"element {at} is missing or twice"
        at += span.count
    assert at == length


def check_run(collective: str, count: int, plan: Plan, runs: list[Run], out_length: int) -> None:
    """`runs`: one of each channel."""
    k = plan.ranks
    for rank in range(k):
        spans = sorted(s for run in runs for s in run.outputs[rank] if s.count)
        check_complete(spans, out_length)
        assert spans == expected_output(collective, plan, rank)
    reduced = [n for run in runs for n in run.reduced.values()]
    copied = [n for run in runs for n in run.copied.values()]
    assert all(n == k - 1 for n in reduced + copied)
    chunks = sum(
        plan.chunk_of(channel, loop, owner)[2] > 0
        for channel in range(plan.channels)
        for loop in range(plan.loops)
        for owner in range(k)
    )
    assert len(reduced) == (0 if collective == "all_gather" else chunks)
    assert len(copied) == (0 if collective == "reduce_scatter" else chunks)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("k", range(2, 17))
def test_every_chunk_goes_round(k: int, collective: str, protocol: str) -> None:
    """Reduced k-1 times, copied k-1 times, in order; outputs complete; no deadlock."""
    schedulers = itertools.cycle(SCHEDULERS)
    for g, reversed in itertools.product(GEOMETRIES, (False, True)):
        for count in counts_of(collective, make_plan(collective, protocol, k, 1, g)):
            plan = make_plan(collective, protocol, k, count, g, reversed)
            runs = [
                make_ring(plan, collective, count, g.slots, channel).run(next(schedulers), count)
                for channel in range(g.channels)
            ]
            out_length = count * k if collective == "all_gather" else count
            check_run(collective, count, plan, runs, out_length)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("k", [2, 3, 4, 7])
def test_no_order_of_the_ranks_deadlocks(k: int, collective: str) -> None:
    for g, protocol in itertools.product(GEOMETRIES, PROTOCOLS):
        parts = k if collective == "all_reduce" else 1
        count = 3 * parts * make_plan(collective, protocol, k, 1, g).chunk + 5
        ring = make_ring(make_plan(collective, protocol, k, count, g), collective, count, g.slots)
        runs = [ring.run(name, seed) for name in SCHEDULERS for seed in range(4)]
        assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_has_nothing_to_do_with_others(collective: str) -> None:
    for g, protocol in itertools.product(GEOMETRIES, PROTOCOLS):
        for count in counts_of(collective, make_plan(collective, protocol, 1, 1, g)):
            plan = make_plan(collective, protocol, 1, count, g)
            assert all(plan.trace(0, channel) == [] for channel in range(g.channels))
            check_complete(expected_output(collective, plan, 0), count)


def test_chunk_sizes_at_the_edge_of_32_bits() -> None:
    """Slots of gigabytes: the offsets of a short run are large."""
    for collective, protocol, count in itertools.product(
        COLLECTIVES, PROTOCOLS, (2**31 - 1, 2**31 + 1, 2**32 + 5, 2**40 + 3)
    ):
        plan = Plan(collective, protocol, 3, count, 1, slot_bytes=2**37, slots=3)
        run = make_ring(plan, collective, count, slots=3).run()
        check_run(
            collective, count, plan, [run], count * 3 if collective == "all_gather" else count
        )


def test_verbs_of_four_ranks() -> None:
    """The picture in csrc/core/schedule.h."""
    plan = Plan("all_reduce", "ll", 4, 16, 4)
    for rank in range(4):
        rows = plan.trace(rank)
        assert [verb for verb, *_ in rows] == [
            "send",
            "recv_reduce_send",
            "recv_reduce_send",
            "recv_reduce_copy_send",
            "recv_copy_send",
            "recv_copy_send",
            "recv",
        ]
        assert [at // 4 for _, at, *_ in rows] == [(rank - 1 - j) % 4 for j in range(7)]


# ---- the bench can fail -------------------------------------------------------------------------


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
        check_run("all_reduce", 72, plan, [run], 72)
