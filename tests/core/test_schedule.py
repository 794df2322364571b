"""The schedule, proven without memory: what the ranks would do is run on a bench of FIFOs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from ringkern import _C
from ringkern._C import Plan
from tests.core.expected import (
    CHAINS,
    COLLECTIVES,
    check_complete,
    check_run,
    expected_output,
    make_ring,
)
from tests.core.simulator import SCHEDULERS

PROTOCOLS = _C.protocols
Orders = Sequence[Sequence[int]]
# On the wire; the smallest that hold 16 bytes of data, and some that no power of two divides.
SLOT_BYTES = {"simple": (16, 48), "ll": (32, 112), "ll128": (128, 384)}


@dataclass(frozen=True)
class Geometry:
    """Varied parameters of a plan besides its collective, protocol, ranks and count."""

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
    collective: str,
    protocol: str,
    ranks: int,
    count: int,
    g: Geometry,
    *,
    orders: Orders = (),
    root: int = 0,
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
        orders=orders,
        root=root,
    )


def counts_of(collective: str, plan: Plan) -> list[int]:
    """Sizes around every edge of a plan."""
    k, chunk = plan.ranks, plan.chunk
    loop = plan.channels * chunk * (k if collective == "all_reduce" else 1)
    edges = (0, 1, k - 1, k, k + 1, chunk - 1, chunk, chunk + 1, 97, loop - 1, loop, loop + 1)
    return sorted({n for n in (*edges, (8 if k <= 4 else 2) * loop + 7) if n >= 0})


def roots_of(collective: str, k: int) -> range:
    return range(k if collective in CHAINS else 1)


def orders_of(collective: str, k: int) -> list[Orders]:
    """None; and two, the second of them the first one's reverse, or one for a message."""
    order = random.Random(k).sample(range(k), k)
    return [(), (order,) if collective == "send_recv" else (order, order[::-1])]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("k", [2, 3, 4, 5, 7, 8, 16])
def test_every_chunk_goes_round(k: int, collective: str, protocol: str) -> None:
    """Reduced k-1 times, copied k-1 times, in order; outputs complete, and no others touched; no
    deadlock."""
    schedulers = itertools.cycle(SCHEDULERS)
    roots = roots_of(collective, k)
    for g, orders, root in itertools.product(GEOMETRIES, orders_of(collective, k), roots):
        for count in counts_of(collective, make_plan(collective, protocol, k, 1, g)):
            plan = make_plan(collective, protocol, k, count, g, orders=orders, root=root)
            runs = [
                make_ring(plan, collective, count, g.slots, channel).run(next(schedulers), count)
                for channel in range(g.channels)
            ]
            check_run(collective, count, plan, runs, root)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("k", [2, 3, 4, 7])
def test_no_order_of_the_ranks_deadlocks(k: int, collective: str) -> None:
    for g, protocol, root in itertools.product(GEOMETRIES, PROTOCOLS, roots_of(collective, k)):
        parts = k if collective == "all_reduce" else 1
        count = 3 * parts * make_plan(collective, protocol, k, 1, g).chunk + 5
        plan = make_plan(collective, protocol, k, count, g, root=root)
        ring = make_ring(plan, collective, count, g.slots)
        runs = [ring.run(name, seed) for name in SCHEDULERS for seed in range(4)]
        assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_has_nothing_to_do_with_others(collective: str) -> None:
    for g, protocol in itertools.product(GEOMETRIES, PROTOCOLS):
        for count in counts_of(collective, make_plan(collective, protocol, 1, 1, g)):
            plan = make_plan(collective, protocol, 1, count, g)
            assert all(plan.trace(0, channel) == [] for channel in range(g.channels))
            check_complete(expected_output(collective, plan, 0, root=0), count)


def test_chunk_sizes_at_the_edge_of_32_bits() -> None:
    """Slots of gigabytes: the offsets of a short run are large."""
    for collective, protocol, count in itertools.product(
        COLLECTIVES, PROTOCOLS, (2**31 - 1, 2**31 + 1, 2**32 + 5, 2**40 + 3)
    ):
        plan = Plan(collective, protocol, 3, count, 1, slot_bytes=2**37, slots=3, root=2)
        run = make_ring(plan, collective, count, slots=3).run()
        check_run(collective, count, plan, [run], root=2)


def test_verbs_of_four_ranks() -> None:
    """The pictures in csrc/core/schedule.h."""
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
    chains = {
        "broadcast": {1: "copy_send", 2: "recv_copy_send", 3: "recv_copy_send", 0: "recv"},
        "reduce": {2: "send", 3: "recv_reduce_send", 0: "recv_reduce_send", 1: "recv_reduce_copy"},
        "send_recv": {1: "send", 2: "recv", 3: None, 0: None},
    }
    for collective, verbs in chains.items():
        plan = Plan(collective, "simple", 4, 64, 4, slot_bytes=16, slots=8, root=1)
        for rank, verb in verbs.items():
            # One chunk of two slots a loop, wherever the rank stands.
            expected = [(verb, at, at, 8, 2) for at in range(0, 64, 8)] if verb else []
            assert plan.trace(rank) == expected
