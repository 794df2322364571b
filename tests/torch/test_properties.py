"""Sequences of collectives over 1 to 4 ranks against Gloo and the model in tests/reference.py.

An example is a sequence of one to four calls that differ in collective, dtype, op, length, layout,
protocol and values, each made on fresh memory and made twice. Every result

- is bit-equal to the reference, integers and floats;
- is bit-equal to Gloo's for integers and all-gather, equal for min and max, and close for the other
  ops of floats; not for float8, which Gloo lacks, and not for floats with NaN or infinity, where
  Gloo's min and max depend on the order of the ranks;
- is the same, to the bit, on all ranks and the second time;
- leaves every byte outside the output unchanged, including those between its elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest
import torch
import torch.distributed as dist
from hypothesis import event, given, settings
from hypothesis import strategies as st

import ringkern
from ringkern import _C
from ringkern._C import Plan
from tests.ranks import RankError, Ranks
from tests.reference import DIRECT, DTYPES, FLOATS, PROTOCOLS, WAYS, Way, bits_of
from tests.torch.layouts import LAYOUTS
from tests.torch.sequences import Call, run_sequence

Pools = Callable[[int], Ranks]

EXAMPLES = 100  # for each number of ranks
MOST_ELEMENTS = 300_000


# Sizes in bytes: a line, its data, a slot of lines, and a slot (csrc/cpu/mesh.h).
DIRECT_EDGES = (56, 64, 64 * 56, 128 << 10)


@st.composite
def lengths(draw: st.DrawFn, collective: str, way: Way, width: int, size: int) -> int:
    """Returns 0, 1, small lengths, primes, and those around every edge of the plan, including
    several loops.
    """
    parts, most = (size, MOST_ELEMENTS)
    if collective != "all_reduce":
        parts, most = 1, MOST_ELEMENTS // size
    if way.algorithm == "ring":
        plan = Plan(collective, way.protocol, size, 1, width)
        loop = parts * plan.chunk
        edges = (size, 16 // width, plan.grain, plan.chunk // 2, plan.chunk, loop, 2 * loop)
    else:
        loop = DIRECT_EDGES[2 if way.protocol == "ll" else 3] // width
        edges = (size, *(n // width for n in DIRECT_EDGES), loop // size, 4 * loop)
    edge = st.sampled_from([n for n in edges if n <= most])
    length = draw(
        st.one_of(
            st.integers(0, 40),
            st.sampled_from([0, 1, 2, 97, 1009, 10_007]),
            st.builds(lambda n, d: max(0, n + d), edge, st.integers(-3, 3)),
            st.integers(min(loop, most), min(4 * loop, most)),
        )
    )
    return min(length, most)


@st.composite
def calls(draw: st.DrawFn, size: int) -> Call:
    collective = draw(st.sampled_from(["all_reduce", "all_reduce", "reduce_scatter", "all_gather"]))
    name = draw(st.sampled_from(sorted(DTYPES)))
    dtype = DTYPES[name]
    op = draw(st.sampled_from(_C.ops_of(name)))
    algorithm, protocol = draw(st.sampled_from(WAYS))
    every = [Way("ring", p) for p in PROTOCOLS if protocol in ("auto", p)]
    if collective == "all_reduce":
        every += [Way(*way) for way in DIRECT if protocol in ("auto", way[1])]
    edges_of = draw(st.sampled_from(every))
    return Call(
        collective=collective,
        op="sum" if collective == "all_gather" else op,
        dtype=name,
        length=draw(lengths(collective, edges_of, dtype.itemsize, size)),
        algorithm=algorithm,
        layouts=tuple(draw(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=size))),
        protocol=protocol,
        values=draw(st.sampled_from(["plain", "special", "bits"])),
        in_place=collective != "all_reduce" and draw(st.booleans()),
        async_op=draw(st.booleans()),
        seed=draw(st.integers(0, 2**20)),
        factor=draw(st.sampled_from([0.5, 1.7, -3.0, 0.1])) if op == "premul_sum" else 1.0,
    )


class Pool(Protocol):
    """All ranks, or some of them."""

    def outcomes(self, fn: Callable[..., Any], *args: Any, timeout_s: float) -> list[Any]: ...

    def kill(self) -> None: ...


def check(
    pool: Pool,
    sequence: list[Call],
    run: Callable[..., list[str]] = run_sequence,
    timeout_s: float = 30,
) -> None:
    """Runs a sequence on all ranks; it must succeed with the same results."""
    digests = pool.outcomes(run, sequence, timeout_s=timeout_s)
    errors = [digest for digest in digests if isinstance(digest, RankError)]
    if any(error.kind != "AssertionError" for error in errors):
        pool.kill()  # their neighbours may wait for them
    for error in errors:
        raise error
    for call, *results in zip(sequence, *digests):
        if call.collective != "reduce_scatter":
            assert len(set(results)) == 1, f"ranks have different results: {call}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_sequences_of_calls(ranks: Pools, size: int, data: st.DataObject) -> None:
    sequence = data.draw(st.lists(calls(size), min_size=1, max_size=4))
    event(f"{len(sequence)} calls")
    check(ranks(size), sequence)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("way", [*(("ring", p) for p in PROTOCOLS), *DIRECT], ids="-".join)
def test_every_dtype_and_op(ranks: Pools, way: tuple[str, str], size: int) -> None:
    """Each pair once, on random bits, over more than a loop of LL."""
    algorithm, protocol = way
    for collective in ("all_reduce", *(["reduce_scatter"] if algorithm == "ring" else [])):
        sequence = [
            Call(
                *(collective, op, name, 10_007, ("offset",), protocol, "bits"),
                seed=7,
                factor=1.7,
                algorithm=algorithm,
            )
            for name in DTYPES
            for op in _C.ops_of(name)
        ]
        check(ranks(size), sequence)


# ---- NaN, infinity, zero ------------------------------------------------------------------------


def reduce_rows(
    rank: int, size: int, rows: list[torch.Tensor], op: str, algorithm: str, protocol: str
) -> torch.Tensor:
    mine = rows[rank].clone()
    op_value = getattr(dist.ReduceOp, op)
    ringkern.ring_all_reduce(mine, op_value, protocol=protocol, algorithm=algorithm)
    return mine


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("op", ["MIN", "MAX"])
def test_nan_wins_whoever_holds_it(ranks: Pools, op: str, size: int) -> None:
    """Element i is NaN on rank i alone, the last on no rank; the result equals torch's amin and
    amax.
    """
    for dtype in FLOATS:
        for length in (size + 1, 4 * size + 1):
            rows = torch.arange(size * length, dtype=torch.float32).view(size, length) - length
            holders = torch.arange(length) % (size + 1)
            for rank in range(size):
                rows[rank][holders == rank] = float("nan")
            rows[:, holders == size] = 1.0
            given_ = [row.to(dtype) for row in rows]
            expected = (torch.amin if op == "MIN" else torch.amax)(rows, 0)
            for way in (*(("ring", p) for p in PROTOCOLS), *DIRECT):
                for result in ranks(size).run(reduce_rows, given_, op, *way):
                    assert torch.equal(torch.isnan(result.float()), holders < size), dtype
                    assert torch.equal(torch.isnan(expected), holders < size)
                    assert (result.float()[holders == size] == 1.0).all()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_infinities_and_zeros(ranks: Pools, size: int) -> None:
    """inf + -inf is NaN, -0 stays -0 among negative zeros, and -0 is less than +0."""
    inf, nan = float("inf"), float("nan")
    for dtype in FLOATS:
        if dtype == torch.float8_e4m3fn:
            continue  # it has no infinity
        for holder in range(size):
            rows = torch.tensor([[0.0, inf, -0.0, 1.0, 0.0]]).repeat(size, 1)
            rows[holder] = torch.tensor([-0.0, -inf, -0.0, -inf, nan])
            given_ = [row.to(dtype) for row in rows]
            for op, expected in (
                ("SUM", [0.0, nan, -0.0, -inf, nan]),
                ("MIN", [-0.0, -inf, -0.0, -inf, nan]),
                ("MAX", [0.0, inf, -0.0, 1.0, nan]),
            ):
                want = torch.tensor(expected)
                for result in ranks(size).run(reduce_rows, given_, op, "auto", "auto"):
                    got = result.float()
                    assert torch.equal(torch.isnan(got), torch.isnan(want)), (dtype, op)
                    number = ~torch.isnan(want)
                    assert torch.equal(bits_of(got)[number], bits_of(want)[number]), (dtype, op)


# ---- many calls ---------------------------------------------------------------------------------


def many_in_flight(rank: int, size: int, calls_: int) -> bool:
    """Makes asynchronous calls without waiting, then waits for them in reverse order."""
    tensors = [torch.full((37 * (i % 90),), rank + i, dtype=torch.int64) for i in range(calls_)]
    works = []
    for i, tensor in enumerate(tensors):
        algorithm, protocol = WAYS[i % len(WAYS)]
        works.append(
            ringkern.ring_all_reduce(tensor, async_op=True, protocol=protocol, algorithm=algorithm)
        )
    last = torch.ones(5)
    ringkern.ring_all_reduce(last)  # runs after all of them
    done = all(work.is_completed() for work in works)
    for work in reversed(works):
        assert work.wait()
    want = [sum(range(size)) + i * size for i in range(calls_)]
    return (
        done
        and bool((last == size).all())
        and all(bool((t == w).all()) for t, w in zip(tensors, want))
    )


@pytest.mark.parametrize("size", [2, 3, 4])
def test_many_calls_in_flight(ranks: Pools, size: int) -> None:
    assert ranks(size).run(many_in_flight, 300) == [True] * size
