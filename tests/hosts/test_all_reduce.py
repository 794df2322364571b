"""ring_all_reduce, ring_reduce_scatter and ring_all_gather on several hosts, against Gloo and the
exact result, in namespaces and on hosts by name: what tests/hosts/calls.py checks."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import event, given, settings
from hypothesis import strategies as st

import ringkern
from ringkern import _C
from ringkern.comm import communicator_for
from tests.hosts.calls import digest, integral, run_sequence, total
from tests.hosts.groups import LAYOUTS, NAMES, NAMESPACES, Groups, Members
from tests.reference import DTYPES, FLOATS, WAYS
from tests.torch.rings import normal, same
from tests.torch.sequences import Call
from tests.torch.test_properties import calls, check

Pools = Callable[[str], Members]

EXAMPLES = int(os.environ.get("RK_TEST_HOSTS_EXAMPLES", "8"))  # for each layout
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
# Where it matters how many hosts there are, but not which: one of each kind.
SOME = ("2 hosts x 2", "3 hosts x 2", "3 + 2", "named, a b a a b")
some_layouts = pytest.mark.parametrize("layout", SOME)


def _found(rank: int, size: int, groups: Groups) -> tuple[tuple[str, ...], tuple[int, ...]]:
    found = communicator_for(groups.ring).hosts
    return found.names, found.host_of


@every_layout
def test_the_hosts_are_found(members: Pools, layout: str) -> None:
    """Or all of the following would be tested on one."""
    pool, ranks = LAYOUTS[layout]
    spaces = "".join(name * count for name, count in zip("abc", NAMESPACES))
    host_of = [(NAMES if pool == "names" else spaces)[rank] for rank in ranks]
    names = tuple(dict.fromkeys(host_of))
    assert len(names) > 1
    expected = (names, tuple(names.index(name) for name in host_of))
    assert members(layout).run(_found) == [expected] * len(ranks)


@pytest.mark.timeout(900)
@every_layout
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_sequences_of_calls(members: Pools, layout: str, data: st.DataObject) -> None:
    group = members(layout)
    sequence = data.draw(st.lists(calls(group.size), min_size=1, max_size=4))
    event(f"{len(sequence)} calls")
    check(group, sequence, run_sequence, 60)


@some_layouts
def test_every_dtype_and_op(members: Pools, layout: str) -> None:
    """Each pair once, with any bits for values."""
    for collective in ("all_reduce", "reduce_scatter"):
        sequence = [
            Call(collective, op, name, 10_007, ("offset",), "auto", "bits", seed=7, factor=1.7)
            for name in DTYPES
            for op in _C.ops_of(name)
        ]
        check(members(layout), sequence, run_sequence, 60)


# Elements: up to many pieces over all rails.
SIZES = (1, 63, 64, 65, 4095, 65_537, 262_144, 1_048_577, 5_000_001)


def _sizes(rank: int, size: int, groups: Groups) -> str:
    results = []
    for n in SIZES:
        for dtype in (torch.uint8, torch.float32)[: 1 if n > 2_000_000 else 2]:
            x = integral(rank, n, dtype, n)
            ringkern.ring_all_reduce(x, group=groups.ring)
            assert same(x, total(size, n, dtype, n)), (n, dtype)
            results.append(x)
    return digest(results)


@some_layouts
def test_sizes(members: Pools, layout: str) -> None:
    assert len(set(members(layout).run(_sizes))) == 1


def _rounded(rank: int, size: int, groups: Groups) -> str:
    """Sums that another order would round in another way."""
    results = []
    for dtype in FLOATS:
        for n in (1000, 400_001):
            x = normal(dtype, (n,), rank, n)
            ringkern.ring_all_reduce(x, group=groups.ring)
            results.append(x)
    return digest(results)


@every_layout
def test_all_ranks_of_all_hosts_have_the_same_bits(members: Pools, layout: str) -> None:
    assert len(set(members(layout).run(_rounded))) == 1


def _in_flight(rank: int, size: int, groups: Groups, count: int) -> bool:
    """Makes asynchronous calls without waiting, then waits for them in reverse order."""
    tensors = [torch.full((997 * (i % 90),), rank + i, dtype=torch.int64) for i in range(count)]
    works = []
    for i, tensor in enumerate(tensors):
        algorithm, protocol = WAYS[i % len(WAYS)]
        way: dict[str, Any] = {"protocol": protocol, "algorithm": algorithm}
        works.append(ringkern.ring_all_reduce(tensor, group=groups.ring, async_op=True, **way))
    last = torch.ones(5)
    ringkern.ring_all_reduce(last, group=groups.ring)  # in order, after all of them
    done = all(work.is_completed() for work in works)
    for work in reversed(works):
        work.wait()
    want = [sum(range(size)) + i * size for i in range(count)]
    return (
        done
        and bool((last == size).all())
        and all(bool((t == w).all()) for t, w in zip(tensors, want))
    )


@some_layouts
def test_many_calls_in_flight(members: Pools, layout: str) -> None:
    group = members(layout)
    assert group.run(_in_flight, 100) == [True] * group.size


def _two_threads(rank: int, size: int, groups: Groups) -> None:
    """A communicator each, whose calls meet in whatever order."""
    limit = timedelta(seconds=60)
    communicators = [ringkern.Communicator(groups.gloo, timeout=limit) for _ in range(2)]
    wrong: list[object] = []

    def work(thread: int) -> None:
        try:
            for call in range(60):
                n = 500 + 40_000 * thread
                x = integral(rank, n, seed=call)
                communicators[thread].all_reduce(x)
                if not same(x, total(size, n, seed=call)):
                    wrong.append((thread, call))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == [], wrong
    for communicator in communicators:
        communicator.close()


def test_two_threads(members: Pools) -> None:
    members("2 hosts x 2").run(_two_threads, timeout_s=120)


def _threads_of_one(rank: int, size: int, groups: Groups) -> None:
    """Makes equal calls on two threads, which take turns."""
    with ringkern.Communicator(groups.gloo, timeout=timedelta(seconds=60)) as communicator:

        def work(_: int) -> int:
            right = 0
            for _ in range(60):
                x = integral(rank, 5000)
                communicator.all_reduce(x)
                right += same(x, total(size, len(x)))
            return right

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(work, range(2))) == [60, 60]


def test_two_threads_of_one_communicator(members: Pools) -> None:
    members("2 hosts x 2").run(_threads_of_one, timeout_s=120)


def _special(rank: int, size: int, groups: Groups) -> None:
    """NaN wins in MIN and MAX whoever has it; -0 is less than +0; inf and -inf are NaN; and a sum
    that is too large is infinity, or the largest of a dtype without infinity.
    """
    nan, inf = float("nan"), float("inf")
    for dtype in FLOATS:
        for holder in range(size):
            mine = [nan, -0.0, -inf] if rank == holder else [1.0, 0.0, inf]
            if dtype == torch.float8_e4m3fn:
                mine[2] = 1.0  # it has no infinity
            for op, third in (("MIN", -inf), ("MAX", inf), ("SUM", nan)):
                x = torch.tensor(mine).to(dtype)
                ringkern.ring_all_reduce(x, getattr(dist.ReduceOp, op), group=groups.ring)
                got = x.float()
                assert got[0].isnan(), (dtype, op)
                assert got[1] == 0, (dtype, op)
                assert bool(got[1].signbit()) == (op == "MIN"), (dtype, op)
                if dtype != torch.float8_e4m3fn:
                    assert same(got[2:], torch.tensor([third])) or (
                        op == "SUM" and got[2].isnan()
                    ), (dtype, op)
        largest = torch.finfo(dtype).max
        x = torch.full((2,), largest, dtype=torch.float64).to(dtype)
        ringkern.ring_all_reduce(x, group=groups.ring)
        assert x.tolist() == [largest if dtype == torch.float8_e4m3fn else inf] * 2, dtype


@some_layouts
def test_special_values(members: Pools, layout: str) -> None:
    members(layout).run(_special)


# ---- options of calls ---------------------------------------------------------------------------


def _in_order(inputs: list[torch.Tensor], host_of: tuple[int, ...]) -> torch.Tensor:
    """The ranks of each host after each other, and then the hosts."""
    hosts = [
        functools.reduce(torch.add, (x for x, host in zip(inputs, host_of) if host == one))
        for one in range(max(host_of) + 1)
    ]
    return functools.reduce(torch.add, hosts)


def _size_invariant(rank: int, size: int, groups: Groups) -> str:
    """An element's bits depend on the ranks' values of it alone."""
    results = []
    host_of = communicator_for(groups.ring).hosts.host_of
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        whole = normal(dtype, (300_000,), rank)
        reduced = whole.clone()
        fixed: dict[str, Any] = {"group": groups.ring, "deterministic": "size_invariant"}
        ringkern.ring_all_reduce(reduced, **fixed)
        for part in (slice(7, 30_000), slice(299_999, None), slice(100_000, 250_001)):
            x = whole[part].clone()
            ringkern.ring_all_reduce(x, **fixed)
            assert same(x, reduced[part]), (dtype, part)
        if dtype != torch.bfloat16:  # whose partial sums are rounded
            inputs = [normal(dtype, (300_000,), r) for r in range(size)]
            assert same(reduced, _in_order(inputs, host_of)), dtype
        results.append(reduced)
    return digest(results)


@some_layouts
def test_size_invariant(members: Pools, layout: str) -> None:
    assert len(set(members(layout).run(_size_invariant))) == 1


def _accumulate(rank: int, size: int, groups: Groups) -> str:
    """Keeps partial sums in float32: the error is at most one rounding to the dtype, and a few of
    float32. A rank's input is rounded, including its product with a factor.
    """
    results = []
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e5m2):
        for factor in (1.0, 1.7):
            inputs = [normal(dtype, (50_000,), r) for r in range(size)]
            x = inputs[rank].clone()
            op = dist.ReduceOp.SUM if factor == 1 else dist._make_nccl_premul_sum(factor)
            ringkern.ring_all_reduce(x, op, group=groups.ring, accumulate="float32")
            given = torch.stack([(y.float() * factor).to(dtype).double() for y in inputs])
            exact = given.sum(0)
            info = torch.finfo(dtype)
            few = size * torch.finfo(torch.float32).eps * given.abs().sum(0)
            bound = 0.5 * info.eps * exact.abs() + few
            off = (x.double() - exact).abs() > bound * 1.01 + info.smallest_normal * info.eps
            assert not off.any(), (dtype, factor, int(off.sum()))
            results.append(x)
    return digest(results)


@some_layouts
def test_accumulate_in_float32(members: Pools, layout: str) -> None:
    assert len(set(members(layout).run(_accumulate))) == 1
