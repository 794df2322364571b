"""The collectives over the ring through torch.distributed, with every dtype, op, root and form,
against results that a rank computes by itself. test_backend_exchanges.py has those between pairs.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import Pool, grid, roots
from tests.reference import FLOATS, INTEGERS
from tests.torch.rings import (
    any_bits,
    bytes_of,
    in_models_order,
    normal,
    reduced,
    ring,
    same,
    whole,
)

OPS = dist.ReduceOp
FLOAT_OPS: dict[str, Any] = {
    "sum": OPS.SUM,
    "prod": OPS.PRODUCT,
    "min": OPS.MIN,
    "max": OPS.MAX,
    "avg": OPS.AVG,
    "premul_sum": None,  # by `_op`
}
BIT_OPS: dict[str, Any] = {"band": OPS.BAND, "bor": OPS.BOR, "bxor": OPS.BXOR}
WHOLE_OPS = {op: FLOAT_OPS[op] for op in ("sum", "prod", "min", "max")} | BIT_OPS
COMPLEX_OPS = {op: FLOAT_OPS[op] for op in ("sum", "avg", "premul_sum")}
REDUCTIONS = (
    [(dtype, op) for dtype in FLOATS for op in FLOAT_OPS]
    + [(dtype, op) for dtype in (*INTEGERS, torch.bool) for op in WHOLE_OPS]
    + [(dtype, op) for dtype in (torch.complex64, torch.complex128) for op in COMPLEX_OPS]
)
ALL_OPS = FLOAT_OPS | BIT_OPS


def _factor(size: int) -> float:
    """Returns the factor of "premul_sum"; the products of `whole` numbers stay exact."""
    return 0.3 if in_models_order(size) else 0.25


def _op(name: str, size: int) -> Any:
    premul = name == "premul_sum"
    return dist._make_nccl_premul_sum(_factor(size)) if premul else ALL_OPS[name]


# All dtypes that torch can copy: it cannot copy integers of some widths.
DTYPES = sorted(
    {
        dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and not re.match(r"torch\.(q|u?int[1-7]$)", str(dtype))
    },
    key=str,
)


def digest(tensors: list[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(bytes_of(tensor).numpy().tobytes())
    return found.hexdigest()


# ---- reductions ---------------------------------------------------------------------------------


def _values(dtype: torch.dtype, op: str, n: int, seed: int, size: int) -> list[torch.Tensor]:
    bitwise = op in BIT_OPS or dtype == torch.bool
    plain = normal if in_models_order(size) else whole
    make = any_bits if bitwise and not dtype.is_floating_point else plain
    return [make(dtype, (n,), r, seed) for r in range(size)]


def _all_reductions(rank: int, size: int) -> str:
    group, results = ring(), []
    for seed, (dtype, op) in enumerate(REDUCTIONS):
        inputs = _values(dtype, op, 257, seed, size)
        x = inputs[rank].clone()
        assert dist.all_reduce(x, _op(op, size), group=group) is None
        assert same(x, reduced(inputs, op, factor=_factor(size))), (dtype, op)
        results.append(x)
    return digest(results)


@grid(1, 2, 3, 4)
def test_all_reduce_of_every_dtype_and_op(ranks: Pool, hosts: str) -> None:
    assert len(set(ranks(hosts).run(_all_reductions))) == 1, "to the bit, on all ranks"


def _two(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        for n in (1, 1000, 70_001):
            a, b = (normal(dtype, (n,), r, n) for r in range(2))
            x = (a, b)[rank].clone()
            dist.all_reduce(x, group=ring())
            assert same(x, a + b), (dtype, n)
            x = (a, b)[rank].clone()
            dist.all_reduce(x, OPS.AVG, group=ring())
            assert same(x, (a + b) / 2), (dtype, n)


@grid(2)
def test_two_ranks_give_what_torch_adds(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_two)


def _booleans(rank: int, size: int) -> None:
    """A sum of booleans is "any", a product "all", like with NCCL."""
    one, both, none = rank == 0, True, False
    for op, want in {
        OPS.SUM: [True, True, False],
        OPS.MAX: [True, True, False],
        OPS.BOR: [True, True, False],
        OPS.PRODUCT: [False, True, False],
        OPS.MIN: [False, True, False],
        OPS.BAND: [False, True, False],
        OPS.BXOR: [True, size % 2 == 1, False],
    }.items():
        x = torch.tensor([one, both, none])
        dist.all_reduce(x, op, group=ring())
        assert x.tolist() == want, op
        assert x.view(torch.uint8).max() <= 1


@grid(2, 3, 4)
def test_booleans(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_booleans)


def _premul_by_a_tensor(rank: int, size: int) -> None:
    x = torch.full((5,), rank + 1.0)
    dist.all_reduce(x, dist._make_nccl_premul_sum(torch.tensor(2.0)), group=ring())
    assert x.tolist() == [size * (size + 1.0)] * 5


@grid(2)
def test_the_factor_may_be_a_tensor(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_premul_by_a_tensor)


def _reduce(rank: int, size: int, root: int) -> None:
    group = ring()
    for seed, (dtype, op) in enumerate(REDUCTIONS):
        inputs = _values(dtype, op, 131, seed, size)
        x = inputs[rank].clone()
        dist.reduce(x, root, _op(op, size), group=group)
        want = reduced(inputs, op, root, _factor(size)) if rank == root else inputs[rank]
        assert same(x, want), (dtype, op)


@pytest.mark.parametrize(("hosts", "root"), roots(1, 2, 3, 4))
def test_reduce_to_every_root(ranks: Pool, hosts: str, root: int) -> None:
    """The other ranks keep what they have."""
    ranks(hosts).run(_reduce, root)


def _nan_wins(rank: int, size: int) -> None:
    for n in (3, 1000):
        for holder in range(size):
            for root in range(size):
                x = torch.full((n,), float("nan") if rank == holder else 1.0)
                dist.reduce(x, root, OPS.MAX if n % 2 else OPS.MIN, group=ring())
                assert rank != root or bool(x.isnan().all()), (n, holder, root)


@grid(2, 3, 4)
def test_a_nan_wins_a_reduce(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_nan_wins)


def _reduce_scatters(rank: int, size: int) -> None:
    group = ring()
    for seed, (dtype, op) in enumerate(REDUCTIONS):
        parts = [
            [x.clone() for x in p.chunk(size)] for p in _values(dtype, op, 97 * size, seed, size)
        ]
        want = reduced([of_rank[rank] for of_rank in parts], op, rank, _factor(size))
        mine = torch.stack(parts[rank])
        for given in (mine, mine.view(-1)):  # stacked, and concatenated
            out = torch.empty_like(want)
            dist.reduce_scatter_tensor(out, given, _op(op, size), group=group)
            assert same(out, want), (dtype, op)
        out = torch.empty_like(want)
        dist.reduce_scatter(out, parts[rank], _op(op, size), group=group)
        assert same(out, want), (dtype, op)
        dist.reduce_scatter_tensor(mine[rank], mine, _op(op, size), group=group)  # in place
        assert same(mine[rank], want), (dtype, op)


@grid(1, 2, 3, 4)
def test_reduce_scatter_of_every_dtype_and_op(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_reduce_scatters)


def _uneven_reduce_scatter(rank: int, size: int) -> None:
    make = normal if in_models_order(size) else whole
    for lengths in ([3, 0, 70_000, 1, 5], [0, 0, 0, 0, 2]):
        parts = [[make(torch.float32, (n,), r, n) for n in lengths[:size]] for r in range(size)]
        out = torch.full((lengths[rank],), -1.0)
        dist.reduce_scatter(out, parts[rank], OPS.SUM, group=ring())
        assert same(out, reduced([of_rank[rank] for of_rank in parts], "sum", rank))
        for tensor, before in zip(parts[rank], parts[rank]):
            assert same(tensor, before)


@grid(1, 2, 3, 4)
def test_uneven_reduce_scatter(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_uneven_reduce_scatter)


# ---- movement -----------------------------------------------------------------------------------


def _broadcasts(rank: int, size: int) -> None:
    for root in range(size):
        for seed, dtype in enumerate(DTYPES):
            for shape in ((), (0,), (2, 3, 5), (4097,)):
                x = any_bits(dtype, shape, rank, seed)
                dist.broadcast(x, root, group=ring())
                assert same(x, any_bits(dtype, shape, root, seed)), (root, dtype, shape)


@grid(1, 2, 3, 4)
def test_broadcast_of_every_dtype_from_every_root(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_broadcasts)


def _all_gathers(rank: int, size: int) -> None:
    group = ring()
    for seed, dtype in enumerate(DTYPES):
        for shape in ((3, 7), (2, 0), (1025,)):
            everyone = [any_bits(dtype, shape, r, seed) for r in range(size)]
            stacked = any_bits(dtype, (size, *shape), 99)
            dist.all_gather_into_tensor(stacked, everyone[rank], group=group)
            assert all(same(x, y) for x, y in zip(stacked, everyone)), dtype
            joined = any_bits(dtype, (size * shape[0], *shape[1:]), 99)
            dist.all_gather_into_tensor(joined, everyone[rank], group=group)
            assert same(joined.view(stacked.shape), stacked), dtype
            in_place = any_bits(dtype, (size, *shape), 99)
            in_place[rank].copy_(everyone[rank])
            dist.all_gather_into_tensor(in_place, in_place[rank], group=group)
            assert same(in_place, stacked), dtype
            apart = [any_bits(dtype, shape, 99) for _ in range(size)]
            dist.all_gather(apart, everyone[rank], group=group)
            assert all(same(x, y) for x, y in zip(apart, everyone)), dtype
            together = list(any_bits(dtype, (size, *shape), 99))
            dist.all_gather(together, everyone[rank], group=group)
            assert all(same(x, y) for x, y in zip(together, everyone)), dtype


@grid(1, 2, 3, 4)
def test_all_gather_of_every_dtype(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_all_gathers)


def _uneven_all_gather(rank: int, size: int) -> None:
    for lengths in ([3, 0, 70_000, 1, 5], [0, 0, 0, 0, 2]):
        everyone = [any_bits(torch.int16, (n,), r, n) for r, n in enumerate(lengths[:size])]
        out = [torch.zeros(n, dtype=torch.int16) for n in lengths[:size]]
        dist.all_gather(out, everyone[rank], group=ring())
        assert all(same(x, y) for x, y in zip(out, everyone))
        out = [x.clone() for x in everyone]
        dist.all_gather(out, out[rank], group=ring())  # in place
        assert all(same(x, y) for x, y in zip(out, everyone))


@grid(1, 2, 3, 4)
def test_uneven_all_gather(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_uneven_all_gather)


def _shapes_differ(rank: int, size: int) -> None:
    """Only the number of elements must agree, like with Gloo."""
    out = [torch.zeros(2, 3), torch.zeros(6)]
    dist.all_gather(out, torch.full((6,) if rank == 0 else (2, 3), rank + 1.0), group=ring())
    assert [x.shape for x in out] == [(2, 3), (6,)]
    assert [x.unique().tolist() for x in out] == [[1.0], [2.0]]


@grid(2)
def test_all_gather_of_shapes_that_differ(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_shapes_differ)


# ---- shapes -------------------------------------------------------------------------------------


def _shapes(rank: int, size: int) -> None:
    group, total = ring(), size * (size + 1) / 2
    for shape in ((), (0,), (3, 0, 2), (1,), (2, 1, 3)):
        for async_op in (False, True):
            options: dict[str, Any] = {"group": group, "async_op": async_op}
            x, y = (torch.full(shape, rank + 1.0) for _ in range(2))
            part, mine = torch.zeros(shape), [torch.full(shape, rank + 1.0)] * size
            works = [
                dist.all_reduce(x, **options),
                dist.reduce(y, size - 1, **options),
                dist.reduce_scatter(part, mine, **options),
                dist.reduce_scatter_tensor(torch.zeros(shape), torch.stack(mine), **options),
                dist.all_gather_into_tensor(torch.stack(mine), torch.zeros(shape), **options),
            ]
            for work in works:
                assert (work is not None) == async_op
                if work is not None:
                    work.wait()
            for result in (x, part, *([y] if rank == size - 1 else [])):
                assert same(result, torch.full(shape, total))


@grid(1, 2, 3, 4)
def test_shapes(ranks: Pool, hosts: str) -> None:
    """Includes zero-dimensional tensors and tensors without elements."""
    ranks(hosts).run(_shapes)
