"""Plans of collectives of any size: no element is missing, duplicated or out of bounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringkern._C import Plan
from tests.core.expected import CHAINS, COLLECTIVES

pytestmark = pytest.mark.quick

LINE_BYTES = {"simple": 16, "ll": 32, "ll128": 128}  # what slot_bytes is a multiple of
GRAIN_BYTES = {"simple": 8, "ll": 16, "ll128": 120}  # for one worker


@dataclass(frozen=True)
class Case:
    collective: str
    protocol: str
    ranks: int
    count: int
    element_bytes: int
    options: dict[str, Any]

    def plan(self) -> Plan:
        return Plan(
            self.collective,
            self.protocol,
            self.ranks,
            self.count,
            self.element_bytes,
            **self.options,
        )

    @property
    def slot_elements(self) -> int:
        wire: int = self.options["slot_bytes"]
        data = {"simple": wire, "ll": wire // 2, "ll128": wire // 128 * 120}
        return data[self.protocol] // self.element_bytes


def near(value: int) -> st.SearchStrategy[int]:
    return st.integers(max(0, value - 70), value + 70)


def orders_of(collective: str, ranks: int) -> st.SearchStrategy[list[list[int]]]:
    """None, or of so few ranks some: one, where there must be one next rank."""
    if ranks > 16:
        return st.just([])
    most = 1 if collective == "send_recv" else 8
    return st.lists(st.permutations(range(ranks)), max_size=most)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    collective = draw(st.sampled_from(COLLECTIVES))
    protocol = draw(st.sampled_from(sorted(LINE_BYTES)))
    ranks = draw(st.one_of(st.integers(1, 16), st.sampled_from([64, 1000, 1024])))
    options = {
        "workers": draw(st.sampled_from([1, 32, 96, 512, 640])),
        "channels": draw(st.sampled_from([1, 2, 3, 16, 64] if ranks <= 16 else [1, 2])),
        "slots": draw(st.sampled_from([2, 3, 8, 64])),
        "slot_bytes": LINE_BYTES[protocol]
        * draw(st.one_of(st.integers(1, 40), st.sampled_from([512, 4800, 2**15]))),
        "orders": draw(orders_of(collective, ranks)),
        "root": draw(st.integers(0, ranks - 1)),
    }
    element_bytes = draw(st.sampled_from([1, 2, 4, 8]))
    case = Case(collective, protocol, ranks, 1, element_bytes, options)
    plan = case.plan()
    loop = plan.chunk * plan.channels * (ranks if case.collective == "all_reduce" else 1)
    count = draw(
        st.one_of(
            st.integers(0, 5 * loop),
            *(near(n) for n in (0, ranks, plan.chunk, loop, 3 * loop, 2**31, 2**32, 2**40)),
        )
    )
    return Case(case.collective, protocol, ranks, count, element_bytes, options)


def some_loops(loops: int) -> list[int]:
    """Returns the first few loops, the last few and one between; all if they are few."""
    return sorted({n for n in (0, 1, loops // 2, loops - 2, loops - 1) if 0 <= n < loops})


@given(cases())
@settings(max_examples=300)
def test_chunks_tile_the_tensor(case: Case) -> None:
    plan, k, count = case.plan(), case.ranks, case.count
    whole = case.collective == "all_reduce"
    span = plan.chunk * plan.channels * (k if whole else 1)
    assert plan.loops == -(-count // span)
    for loop in some_loops(plan.loops):
        first, last = loop * span, min(count, (loop + 1) * span)
        # An all-reduce cuts the tensor once; the others cut each rank's shard in the same way. A
        # chain cuts one tensor, which all ranks use.
        for shard in range(1 if whole else k):
            at = first
            for channel in range(plan.channels):
                for owner in range(k) if whole else [plan.position(shard, channel)]:
                    in_, out, n = plan.chunk_of(channel, loop, owner)
                    in_ -= shard * count if case.collective == "reduce_scatter" else 0
                    out -= shard * count if case.collective == "all_gather" else 0
                    assert in_ == out
                    assert 0 <= n <= plan.chunk
                    assert n == 0 or in_ == at, "a gap or an overlap"
                    assert in_ >= at or n == 0
                    at += n
            assert at == last


@given(cases())
@settings(max_examples=300)
def test_chunks_fit_their_slots(case: Case) -> None:
    plan = case.plan()
    slots = 2 if case.protocol == "simple" and case.options["slots"] > 2 else 1
    assert 1 <= plan.chunk <= slots * case.slot_elements
    assert plan.chunk % plan.grain == 0
    # A rank sends a whole chunk and one slot more before its own FIFO is drained.
    assert slots + 1 <= case.options["slots"]


@given(cases())
@settings(max_examples=300)
def test_short_chunks_are_whole_grains(case: Case) -> None:
    """But for the last: so that the chunks of a short loop start where a chunk may start."""
    plan = case.plan()
    if case.options["workers"] == 1:
        grain = max(1, GRAIN_BYTES[case.protocol] // case.element_bytes)
        assert plan.grain <= grain
    for loop in some_loops(plan.loops):
        chunks = [
            plan.chunk_of(channel, loop, owner)
            for channel in range(plan.channels)
            for owner in range(case.ranks if case.collective == "all_reduce" else 1)
        ]
        lengths = [n for _, _, n in chunks if n]
        assert all(n == lengths[0] and n % plan.grain == 0 for n in lengths[:-1])
        assert lengths[-1] <= lengths[0]


@given(cases())
@settings(max_examples=100)
def test_a_chain_is_cut_alike_for_every_root(case: Case) -> None:
    plan = Case(**(vars(case) | {"collective": "broadcast"})).plan()
    for collective, root in itertools.product(CHAINS, {0, case.ranks // 2, case.ranks - 1}):
        most = 1 if collective == "send_recv" else 8
        options = case.options | {"root": root, "orders": case.options["orders"][:most]}
        other = Case(**(vars(case) | {"collective": collective, "options": options})).plan()
        assert (other.loops, other.chunk) == (plan.loops, plan.chunk)
        for loop in some_loops(plan.loops):
            for channel, owner in itertools.product(
                range(plan.channels), {0, case.ranks // 2, case.ranks - 1}
            ):
                assert other.chunk_of(channel, loop, owner) == plan.chunk_of(channel, loop, 0)


@given(cases())
@settings(max_examples=100)
def test_the_ring_is_a_ring(case: Case) -> None:
    plan, k = case.plan(), case.ranks
    orders = case.options["orders"] or [range(k)]
    for channel in range(plan.channels):
        order = list(orders[channel % len(orders)])
        assert [plan.rank_at(position, channel) for position in range(k)] == order
        for position, rank in enumerate(order):
            assert plan.position(rank, channel) == position
            assert plan.next(rank, channel) == order[(position + 1) % k]
            assert plan.prev(rank, channel) == order[position - 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": 1}, "slots 2 to 64"),
        ({"slots": 0}, "slots 2 to 64"),
        ({"slots": 65}, "slots 2 to 64"),
        ({"channels": 0}, "channels must be 1 to 64"),
        ({"channels": 65}, "channels must be 1 to 64"),
        ({"slot_bytes": 24}, "slot_bytes a multiple"),
        ({"protocol": "ll", "slot_bytes": 16}, "slot_bytes a multiple"),
        ({"protocol": "ll128", "slot_bytes": 192}, "slot_bytes a multiple"),
        ({"protocol": "tree"}, "unknown protocol 'tree'; choose one of simple, ll, ll128"),
        ({"collective": "scan"}, "unknown collective 'scan'"),
        ({"ranks": 0}, "ranks must be 1 to 1024"),
        ({"ranks": 1025}, "ranks must be 1 to 1024"),
        ({"count": -1}, "count must not be negative"),
        ({"root": -1}, "root must be one of the ranks"),
        ({"root": 4}, "root must be one of the ranks"),
        ({"orders": [[0, 1, 2]]}, "every rank, of at most 16, once"),
        ({"orders": [[0, 1, 2, 3], [0, 1, 2, 2]]}, "every rank, of at most 16, once"),
        ({"orders": [[0, 1, 2, 4]]}, "every rank, of at most 16, once"),
        ({"orders": [[0, 1, 2, 3]] * 9}, "orders must be at most 8"),
        ({"orders": [list(range(17))], "ranks": 17}, "of at most 16"),
        ({"orders": [[0, 1, 2, 3]] * 2, "collective": "send_recv"}, "send_recv takes one order"),
        ({"element_bytes": 0}, "element_bytes must be 1 to 8"),
        ({"element_bytes": 16}, "element_bytes must be 1 to 8"),
    ],
)
def test_plans_that_cannot_be(change: dict[str, Any], message: str) -> None:
    """One slot above all: ranks that all hold a full one wait for each other for ever."""
    arguments: dict[str, Any] = {
        "collective": "all_reduce",
        "protocol": "simple",
        "ranks": 4,
        "count": 100,
        "element_bytes": 4,
    }
    Plan(**arguments)
    with pytest.raises(ValueError, match=message):
        Plan(**(arguments | change))


@pytest.mark.parametrize("place", [(1, 0, 0), (0, 1, 0), (0, 0, 4), (-1, 0, 0), (0, -1, 0)])
def test_no_such_chunk(place: tuple[int, int, int]) -> None:
    with pytest.raises(IndexError):
        Plan("all_reduce", "simple", 4, 100, 4).chunk_of(*place)


@pytest.mark.parametrize("place", [(4, 0), (-1, 0), (0, 1), (0, -1)])
@pytest.mark.parametrize("ask", [Plan.trace, Plan.next, Plan.prev, Plan.position, Plan.rank_at])
def test_no_such_place(ask: Callable[..., Any], place: tuple[int, int]) -> None:
    with pytest.raises(IndexError):
        ask(Plan("all_reduce", "simple", 4, 100, 4), *place)
