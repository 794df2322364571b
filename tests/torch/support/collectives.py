"""Probes of collectives: one function for each, called in every form that a row names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.support.data import DTYPES, OPS, Call, digits, same
from tests.torch.support.groups import own_group
from tests.torch.support.registry import ROWS, TORCH_ASKS, Row, expect, row

SECTION = "Collectives"
ROOT_ALONE = timedelta(seconds=2)  # time that the others wait where only the root raises


def all_reduce(c: Call) -> None:
    x = c.piece(c.rank)
    c.wait(dist.all_reduce(x, op=c.reduce_op(), async_op=c.async_op, group=c.group))
    c.check(x, c.reduced([c.piece(s) for s in range(c.size)]))


def all_reduce_coalesced(c: Call) -> None:
    pieces = [[c.piece(s, d) for s in range(c.size)] for d in range(2)]
    tensors = [p[c.rank].clone() for p in pieces]
    c.wait(dist.all_reduce_coalesced(tensors, op=c.reduce_op(), async_op=c.async_op, group=c.group))
    for x, p in zip(tensors, pieces):
        c.check(x, c.reduced(p))


def broadcast(c: Call) -> None:
    for root in range(c.size):
        x = c.piece(c.rank)
        c.wait(dist.broadcast(x, src=root, async_op=c.async_op, group=c.group))
        c.check(x, c.piece(root), f"from rank {root}")


def reduce(c: Call) -> None:
    for root in range(c.size):
        x = c.piece(c.rank)
        c.wait(dist.reduce(x, dst=root, op=c.reduce_op(), async_op=c.async_op, group=c.group))
        if c.rank == root:
            c.check(x, c.reduced([c.piece(s) for s in range(c.size)]), f"at rank {root}")


def all_gather(c: Call) -> None:
    expected = [c.piece(s, varies=s) for s in range(c.size)]
    out = [c.blank(p) for p in expected]
    c.wait(dist.all_gather(out, c.piece(c.rank, varies=c.rank), async_op=c.async_op, group=c.group))
    for s in range(c.size):
        c.check(out[s], expected[s], f"the part of rank {s}")


def all_gather_coalesced(c: Call) -> None:
    expected = [[c.piece(s, d) for d in range(2)] for s in range(c.size)]
    out = [[c.blank(p) for p in pieces] for pieces in expected]
    c.wait(dist.all_gather_coalesced(out, expected[c.rank], async_op=c.async_op, group=c.group))
    for got, pieces in zip(out, expected):
        for x, p in zip(got, pieces):
            c.check(x, p)


def all_gather_single(c: Call) -> None:
    expected = c.joined([c.piece(s) for s in range(c.size)])
    for function in (dist.all_gather_single, dist.all_gather_into_tensor):
        out = c.blank(expected)
        c.wait(function(out, c.piece(c.rank), async_op=c.async_op, group=c.group))
        c.check(out, expected)


def gather(c: Call) -> None:
    for root in range(c.size):
        expected = [c.piece(s, varies=s) for s in range(c.size)]
        out = [c.blank(p) for p in expected] if c.rank == root else None
        mine = c.piece(c.rank, varies=c.rank)
        c.wait(dist.gather(mine, out, dst=root, async_op=c.async_op, group=c.group))
        for s, got in enumerate(out or ()):
            c.check(got, expected[s], f"the part of rank {s}")


def scatter(c: Call) -> None:
    for root in range(c.size):
        expected = c.piece(root, c.rank, varies=c.rank)
        parts = [c.piece(root, d, varies=d) for d in range(c.size)] if c.rank == root else None
        out = c.blank(expected)
        c.wait(dist.scatter(out, parts, src=root, async_op=c.async_op, group=c.group))
        c.check(out, expected, f"from rank {root}")


def reduce_scatter(c: Call) -> None:
    expected = c.reduced([c.piece(s, c.rank, varies=c.rank) for s in range(c.size)])
    out = c.blank(expected)
    mine = [c.piece(c.rank, d, varies=d) for d in range(c.size)]
    c.wait(dist.reduce_scatter(out, mine, op=c.reduce_op(), async_op=c.async_op, group=c.group))
    c.check(out, expected)


def reduce_scatter_single(c: Call) -> None:
    expected = c.reduced([c.piece(s, c.rank) for s in range(c.size)])
    for function in (dist.reduce_scatter_single, dist.reduce_scatter_tensor):
        out = c.blank(expected)
        mine = c.joined([c.piece(c.rank, d) for d in range(c.size)])
        c.wait(function(out, mine, op=c.reduce_op(), async_op=c.async_op, group=c.group))
        c.check(out, expected)


def all_to_all(c: Call) -> None:
    expected = [c.piece(s, c.rank, varies=c.size * s + c.rank) for s in range(c.size)]
    out = [c.blank(p) for p in expected]
    mine = [c.piece(c.rank, d, varies=c.size * c.rank + d) for d in range(c.size)]
    c.wait(dist.all_to_all(out, mine, async_op=c.async_op, group=c.group))
    for s in range(c.size):
        c.check(out[s], expected[s], f"the part of rank {s}")


def all_to_all_single(c: Call) -> None:
    expected = [c.piece(s, c.rank, varies=c.size * s + c.rank) for s in range(c.size)]
    mine = [c.piece(c.rank, d, varies=c.size * c.rank + d) for d in range(c.size)]
    out = c.blank(c.joined(expected))
    splits = [[len(p) for p in pieces] if c.uneven else None for pieces in (expected, mine)]
    c.wait(dist.all_to_all_single(out, c.joined(mine), *splits, async_op=c.async_op, group=c.group))
    c.check(out, c.joined(expected))


WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "`async_op=True`": {"async_op": True},
    "strided tensors": {"layout": "strided"},
    "tensors of 0 elements": {"layout": "empty"},
    "uneven sizes": {"uneven": True},
    "uneven splits": {"uneven": True},
}
PLAIN = ("", "`async_op=True`", "strided tensors", "tensors of 0 elements", "dtypes")
FEATURES: dict[Callable[[Call], None], tuple[str, ...]] = {
    all_reduce: (*PLAIN, "ops"),
    all_reduce_coalesced: ("", "`async_op=True`"),
    broadcast: PLAIN,
    reduce: (*PLAIN, "ops"),
    all_gather: (*PLAIN, "uneven sizes"),
    all_gather_coalesced: ("", "`async_op=True`"),
    all_gather_single: PLAIN,
    gather: (*PLAIN, "uneven sizes"),
    scatter: (*PLAIN, "uneven sizes"),
    reduce_scatter: (*PLAIN, "ops", "uneven sizes"),
    reduce_scatter_single: (*PLAIN, "ops"),
    all_to_all: (*PLAIN, "uneven sizes"),
    all_to_all_single: (*PLAIN, "uneven splits"),
}
ALSO_NAMED = {
    all_gather_single: ("all_gather_into_tensor",),
    reduce_scatter_single: ("reduce_scatter_tensor",),
}


def call(rank: int, size: int, name: str, ways: dict[str, Any]) -> None:
    with own_group(ROOT_ALONE) if ways.get("uneven") else nullcontext() as group:
        c = Call(rank, size, group=group, **ways)
        globals()[name](c)
        c.end()


def _dtype_of(op: str) -> str:
    return "int32" if op in ("BAND", "BOR", "BXOR") else "float32"


def _cases(name: str, feature: str) -> dict[str, tuple[Any, ...]]:
    if feature == "dtypes":
        return {dtype: (name, {"dtype": dtype}) for dtype in DTYPES}
    if feature == "ops":
        return {op: (name, {"op": op, "dtype": _dtype_of(op)}) for op in OPS}
    return {"": (name, WAYS[feature])}


for function, features in FEATURES.items():
    own = function.__name__
    names = (own, *ALSO_NAMED.get(function, ()))
    ROWS.extend(Row(SECTION, names, f, call, _cases(own, f), "") for f in features)


# ---- Forms of one collective alone ---------------------------------------------------------------


@row(SECTION, "all_gather_single all_gather_into_tensor", "output stacked")
def stacked_gather(rank: int, size: int) -> None:
    out = torch.zeros(size, 27)
    dist.all_gather_into_tensor(out, digits(rank).float())
    same(out, torch.stack([digits(s).float() for s in range(size)]))


@row(SECTION, "reduce_scatter_single reduce_scatter_tensor", "input stacked")
def stacked_scatter(rank: int, size: int) -> None:
    out = torch.zeros(27)
    dist.reduce_scatter_tensor(out, torch.stack([digits(rank, shift=d).float() for d in range(3)]))
    same(out, torch.stack([digits(s, shift=rank).float() for s in range(size)]).sum(0))


@row(SECTION, "all_reduce", "sparse tensor")
def sparse(rank: int, size: int) -> None:
    x = torch.sparse_coo_tensor(torch.tensor([[rank, rank + 1]]), torch.ones(2), (size + 1,))
    dist.all_reduce(x)
    same(x.to_dense(), torch.tensor([1.0, 2.0, 2.0, 1.0]))


@row(SECTION, "barrier")
def barrier(rank: int, size: int) -> None:
    """Checks that no rank leaves the barrier before all have come."""
    store = dist.distributed_c10d._get_default_store()
    for turn in range(3):
        base = int(store.add("barrier", 0))
        dist.all_reduce(torch.zeros(1))  # everybody has read the base
        store.add("barrier", 1)
        dist.barrier()
        expect(store.add("barrier", 0) == base + size, f"turn {turn}: passed before all had come")
        dist.barrier()


@row(SECTION, "barrier", "`async_op=True`")
def barrier_async(rank: int, size: int) -> None:
    dist.barrier(async_op=True).wait()


@row(SECTION, "monitored_barrier", remark=TORCH_ASKS)
def monitored_barrier(rank: int, size: int) -> None:
    dist.monitored_barrier()


@row(SECTION, "ProcessGroup.monitored_barrier")
def monitored_barrier_method(rank: int, size: int) -> None:
    dist.distributed_c10d._get_default_group().monitored_barrier(wait_all_ranks=True)


# ---- Coalescing manager --------------------------------------------------------------------------

MANAGER = "in a coalescing manager"


def _coalesced(collective: Callable[[Call], None], rank: int, size: int, **how: Any) -> None:
    call_of = Call(rank, size)
    many = [[call_of.piece(s, d) for s in range(size)] for d in range(4)]
    async_ops = bool(how.get("async_ops"))
    try:
        with dist._coalescing_manager(**how) as manager:
            checks = [_start(collective, call_of, pieces, async_ops) for pieces in many]
        if async_ops:
            manager.wait()
    finally:
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # an error leaves calls there
    for got, expected in checks:
        same(got, expected)


def _start(
    collective: Callable[[Call], None], c: Call, pieces: list[torch.Tensor], async_op: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Starts a collective whose result is checked later."""
    if collective is all_reduce:
        x = pieces[c.rank].clone()
        dist.all_reduce(x, async_op=async_op)
        return x, c.reduced(pieces)
    if collective is all_gather_single:
        expected = torch.cat(pieces)
        out = torch.zeros_like(expected)
        dist.all_gather_into_tensor(out, pieces[c.rank], async_op=async_op)
        return out, expected
    if collective is broadcast:
        x = pieces[c.rank].clone()
        dist.broadcast(x, src=0, async_op=async_op)
        return x, pieces[0]
    out = torch.zeros(9)
    dist.reduce_scatter_tensor(out, pieces[c.rank], async_op=async_op)
    return out, c.reduced(pieces).view(c.size, 9)[c.rank]


@row(SECTION, "all_reduce", MANAGER)
def all_reduce_in_manager(rank: int, size: int) -> None:
    _coalesced(all_reduce, rank, size)
    _coalesced(all_reduce, rank, size, async_ops=True)


@row(SECTION, "all_gather_single all_gather_into_tensor", MANAGER)
def all_gather_in_manager(rank: int, size: int) -> None:
    _coalesced(all_gather_single, rank, size)
    _coalesced(all_gather_single, rank, size, async_ops=True)


@row(SECTION, "reduce_scatter_single reduce_scatter_tensor", MANAGER)
def reduce_scatter_in_manager(rank: int, size: int) -> None:
    _coalesced(reduce_scatter_single, rank, size)
    _coalesced(reduce_scatter_single, rank, size, async_ops=True)


@row(SECTION, "broadcast", "in a coalescing manager with `device=`")
def broadcast_in_manager(rank: int, size: int) -> None:
    _coalesced(broadcast, rank, size, device=torch.device("cpu"), async_ops=True)
