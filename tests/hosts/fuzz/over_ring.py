"""Kinds of call over the ring: ringkern's own, and collectives that reduce, spread or gather."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import ringkern
from tests import reference
from tests.hosts.fuzz.calls import LIMIT, Call, kind
from tests.hosts.fuzz.values import MOVED, NAMES, NUMBERS, Plain
from tests.torch.test_backend_coalescing import CPU, coalescing

# ---- ringkern's own functions -------------------------------------------------------------------


@kind("any")
def ring_all_reduce(c: Call) -> Any:
    r, n, way = c.reduction(numbers=True), c.length(), {}
    if c.random.random() < 0.5:
        way["algorithm"], way["protocol"] = c.random.choice(reference.WAYS)
    else:
        way["algorithm"] = c.random.choice(("auto", "one_shot", "two_shot"))
        way["deterministic"] = c.random.choice(("auto", "run_to_run", "size_invariant"))
        way["accumulate"] = c.random.choice(("auto", "dtype", "float32"))
    c.note(**way)
    values = r.input(c.me, 0, n)
    box = Plain.shared(values, n % 5) if c.own.random() < 0.2 else c.box(values)
    c.expect(box, r.output(0, n))
    given: Any = box.tensor
    if c.own.random() < 0.1 and hasattr(np, r.dtype) and given.data_ptr() % 8 == 0:
        given = given.numpy()
    return ringkern.ring_all_reduce(given, r.reduce_op, c.group, c.async_op, **way)


@kind("any")
def ring_reduce_scatter(c: Call) -> Any:
    r, n, protocol = c.reduction(numbers=True), c.length(), c.random.choice(reference.PROTOCOLS)
    whole = torch.cat([r.input(c.me, part, n) for part in range(c.size)])
    out, source = _out_of_whole(c, r.output(c.me, n), whole)
    options = {"group": c.group, "async_op": c.async_op, "protocol": protocol}
    return ringkern.ring_reduce_scatter(out, source, r.reduce_op, **options)


def _out_of_whole(c: Call, expected: torch.Tensor, whole: torch.Tensor) -> Any:
    """The tensors of a reduce-scatter, in place or not."""
    if c.own.random() < 0.3:
        source = c.box(whole, dense=True)
        out = source.part(c.me, c.size)
        c.expect(out, expected)
        return out.tensor, source.tensor
    source, out = c.box(whole), c.box(torch.zeros_like(expected))
    c.keep(source)
    c.expect(out, expected)
    return out.tensor, source.tensor


@kind("any")
def ring_all_gather(c: Call) -> Any:
    dtype, n = c.choose("dtype", NUMBERS), c.length()
    out, source = _whole_and_source(c, [c.bits(dtype, r, 0, n) for r in range(c.size)])
    options = {"async_op": c.async_op, "protocol": c.random.choice(reference.PROTOCOLS)}
    return ringkern.ring_all_gather(out, source, c.group, **options)


def _whole_and_source(c: Call, values: list[torch.Tensor]) -> Any:
    """The tensors of an all-gather, in place or not."""
    everyone = torch.cat(values)
    if c.own.random() < 0.3:
        before = torch.zeros_like(everyone)
        n = len(values[0])
        before[c.me * n : (c.me + 1) * n] = values[c.me]
        out = c.box(before, dense=True)
        c.expect(out, everyone, moved=True)
        return out.tensor, out.part(c.me, c.size).tensor
    out, source = c.box(torch.zeros_like(everyone)), c.box(values[c.me])
    c.expect(out, everyone, moved=True)
    c.keep(source)
    return out.tensor, source.tensor


@kind("any", "blocks")
def ring_functional(c: Call) -> Any:
    """With backward(), where the op has a gradient."""
    r, n = c.reduction(numbers=True), c.length()
    if r.op == "PREMUL_SUM":
        r = r._replace(op="SUM")
    differentiable = r.op in ("SUM", "AVG") and r.dtype in ("float32", "float64") and n > 0
    source = c.box(r.input(c.me, 0, n))
    x = source.tensor.requires_grad_(differentiable)
    y = ringkern.functional.all_reduce(x, NAMES[r.op], c.group)
    c.keep(source)
    c.expect(Plain(y), r.output(0, n))
    if differentiable:
        y.backward(r.input(c.me, 1, n).view(y.shape))
        c.expect(Plain(x.grad), r.output(1, n))


@kind("any", "blocks")
def ring_communicator(c: Call) -> Any:
    r, n, works = c.reduction(numbers=True), c.length(), []
    with ringkern.Communicator(c.group, timeout=LIMIT) as communicator:
        for part in range(c.random.randint(1, 3)):
            box = c.box(r.input(c.me, part, n))
            c.expect(box, r.output(part, n))
            works.append(communicator.all_reduce(box.tensor, r.reduce_op, c.async_op))
        dtype = c.choose("dtype", NUMBERS)
        out, source = _whole_and_source(c, [c.bits(dtype, k, 9, n) for k in range(c.size)])
        works.append(communicator.all_gather(out, source, c.async_op))
        for work in works:
            if work is not None:
                work.wait()


@kind("any", "blocks")
def ring_local(c: Call) -> Any:
    """All ranks of a ring in this process."""
    r, n = c.reduction(numbers=True), c.length()
    boxes = [c.box(r.input(k, 0, n)) for k in range(c.size)]
    for box in boxes:
        c.expect(box, r.output(0, n))
    ringkern.local.ring_all_reduce([box.tensor for box in boxes], r.reduce_op)


# ---- torch.distributed over the ring ------------------------------------------------------------


@kind()
def all_reduce(c: Call) -> Any:
    r, n = c.reduction(), c.length()
    box = c.box(r.input(c.me, 0, n))
    c.expect(box, r.output(0, n))
    return dist.all_reduce(box.tensor, r.reduce_op, c.group, c.async_op)


@kind()
def all_reduce_coalesced(c: Call) -> Any:
    r, tensors = c.reduction(), []
    for part in range(c.random.randint(1, 4)):
        n = c.length()
        box = c.box(r.input(c.me, part, n))
        c.expect(box, r.output(part, n))
        tensors.append(box.tensor)
    return dist.all_reduce_coalesced(tensors, r.reduce_op, c.group, c.async_op)


@kind()
def coalescing_manager(c: Call) -> Any:
    what = c.choose("what", ("all_reduce", "all_gather", "reduce_scatter", "others"))
    r, dtype, calls = c.reduction(), c.choose("dtype", MOVED), []
    device = CPU if what == "others" else c.choose("device", (None, CPU))
    for part in range(0, c.size * c.random.randint(1, 4), c.size):
        n = c.length()
        if what in ("all_reduce", "others"):
            box = c.box(r.input(c.me, part, n))
            c.expect(box, r.output(part, n))
            calls.append((dist.all_reduce, box.tensor, r.reduce_op))
        if what == "reduce_scatter":
            out, whole = c.box(r.input(c.me, 0, n)), range(part, part + c.size)
            source = c.box(torch.cat([r.input(c.me, p, n) for p in whole]))
            c.expect(out, r.output(part + c.me, n))
            calls.append((dist.reduce_scatter_tensor, out.tensor, source.tensor, r.reduce_op))
        if what == "all_gather":
            values = [c.bits(dtype, k, part, n) for k in range(c.size)]
            calls.append((dist.all_gather_into_tensor, *_whole_and_source(c, values)))
        if what == "others":
            box = c.box(c.bits(dtype, c.me, part, n))
            c.expect(box, c.bits(dtype, 0, part, n), moved=True)
            calls.append((dist.broadcast, box.tensor, c.ranks[0]))
    with coalescing(c.group, device, c.async_op) as manager:
        for call, *args in calls:
            call(*args, group=c.group, async_op=c.async_op)
    return manager if c.async_op else None


@kind()
def reduce(c: Call) -> Any:
    r, n, root = c.reduction(), c.length(), c.random.randrange(c.size)
    box = c.box(r.input(c.me, 0, n))
    if c.me == root:
        c.expect(box, r.output(0, n))
    else:
        c.keep(box)
    return dist.reduce(box.tensor, None, r.reduce_op, c.group, c.async_op, group_dst=root)


@kind()
def broadcast(c: Call) -> Any:
    dtype, n, root = c.choose("dtype", MOVED), c.length(), c.random.randrange(c.size)
    box = c.box(c.bits(dtype, c.me, 0, n))
    c.expect(box, c.bits(dtype, root, 0, n), moved=True)
    return dist.broadcast(box.tensor, None, c.group, c.async_op, group_src=root)


@kind()
def all_gather(c: Call) -> Any:
    dtype, n, even = c.choose("dtype", MOVED), c.length(), c.choose("even", (True, False))
    values = [c.bits(dtype, r, 0, n if even else c.length(1025)) for r in range(c.size)]
    outs, source = c.list_of([torch.zeros_like(x) for x in values]), c.box(values[c.me])
    c.expect(outs, values, moved=True)
    c.keep(source)
    return dist.all_gather(outs.tensors, source.tensor, c.group, c.async_op)


@kind()
def all_gather_coalesced(c: Call) -> Any:
    dtype, lengths = c.choose("dtype", MOVED), [c.length() for _ in range(c.random.randint(1, 3))]
    values = [[c.bits(dtype, k, i, n) for i, n in enumerate(lengths)] for k in range(c.size)]
    outs = [c.list_of([torch.zeros_like(x) for x in of_rank]) for of_rank in values]
    for boxes, of_rank in zip(outs, values):
        c.expect(boxes, of_rank, moved=True)
    source, lists = c.list_of(values[c.me]), [boxes.tensors for boxes in outs]
    return dist.all_gather_coalesced(lists, source.tensors, c.group, c.async_op)


@kind()
def all_gather_into_tensor(c: Call) -> Any:
    dtype, n = c.choose("dtype", MOVED), c.length()
    out, source = _whole_and_source(c, [c.bits(dtype, r, 0, n) for r in range(c.size)])
    return dist.all_gather_into_tensor(out, source, c.group, c.async_op)


@kind()
def reduce_scatter(c: Call) -> Any:
    r, n, even = c.reduction(), c.length(), c.choose("even", (True, False))
    lengths = [n if even else c.length(1025) for _ in range(c.size)]
    ins = c.list_of([r.input(c.me, part, k) for part, k in enumerate(lengths)])
    expected = r.output(c.me, lengths[c.me])
    out = c.box(torch.zeros_like(expected))
    c.expect(out, expected)
    c.keep(ins)
    return dist.reduce_scatter(out.tensor, ins.tensors, r.reduce_op, c.group, c.async_op)


@kind()
def reduce_scatter_tensor(c: Call) -> Any:
    r, n = c.reduction(), c.length()
    whole = torch.cat([r.input(c.me, part, n) for part in range(c.size)])
    out, source = _out_of_whole(c, r.output(c.me, n), whole)
    return dist.reduce_scatter_tensor(out, source, r.reduce_op, c.group, c.async_op)


@kind()
def functional_collectives(c: Call) -> Any:
    what = c.choose("what", ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
    r, dtype, n = c.reduction(), c.choose("dtype", MOVED), c.length()
    name = {**NAMES, "PRODUCT": "product"}.get(r.op)
    if what == "all_reduce" and name:
        y = functional.all_reduce(r.input(c.me, 0, n), name, c.group)
        return _when_waited_for(c, y, r.output(0, n))
    if what == "reduce_scatter" and name:
        whole = torch.cat([r.input(c.me, part, n) for part in range(c.size)])
        y = functional.reduce_scatter_tensor(whole, name, 0, c.group)
        return _when_waited_for(c, y, r.output(c.me, n))
    if what == "all_to_all":
        x = torch.cat([c.bits(dtype, c.me, k, n) for k in range(c.size)])
        y = functional.all_to_all_single(x, [n] * c.size, [n] * c.size, c.group)
        expected = torch.cat([c.bits(dtype, k, c.me, n) for k in range(c.size)])
        return _when_waited_for(c, y, expected, moved=True)
    y = functional.all_gather_tensor(c.bits(dtype, c.me, 0, n), 0, c.group)
    expected = torch.cat([c.bits(dtype, k, 0, n) for k in range(c.size)])
    return _when_waited_for(c, y, expected, moved=True)


class _Tensor(NamedTuple):
    """A functional collective's result as a Work."""

    result: torch.Tensor

    def wait(self) -> None:
        functional.wait_tensor(self.result)


def _when_waited_for(c: Call, y: Any, expected: torch.Tensor, moved: bool = False) -> _Tensor:
    result = y.elem if hasattr(y, "elem") else y
    c.expect(Plain(result), expected, moved)
    return _Tensor(result)


@kind()
def barrier(c: Call) -> Any:
    return dist.barrier(c.group, c.async_op)


@kind("blocks")
def monitored_barrier(c: Call) -> Any:
    assert c.group is not None
    c.group.monitored_barrier(LIMIT)


@kind("blocks")
def sparse_all_reduce(c: Call) -> Any:
    def of(rank: int) -> tuple[Any, Any]:
        random = np.random.default_rng([c.number, rank])
        n = int(random.integers(0, 9))
        return random.integers(0, 5, (2, n)), random.integers(-9, 9, n)

    kind = getattr(torch, c.choose("dtype", ("float32", "float64", "int64", "float16")))
    where, values = (torch.from_numpy(x) for x in of(c.me))
    x = torch.sparse_coo_tensor(where, values.to(kind), (5, 5))
    expected = np.zeros((5, 5), np.int64)
    for rank in range(c.size):
        np.add.at(expected, tuple(of(rank)[0]), of(rank)[1])
    dist.all_reduce(x, group=c.group, async_op=False)
    c.expect(Plain(x.to_dense()), torch.from_numpy(expected).to(kind))
