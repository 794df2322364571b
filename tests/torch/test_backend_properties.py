"""Random sequences of calls on all ranks give the same results by ringkern and by Gloo.

Values are whole numbers small enough that no dtype rounds their sums in any order; only the mean is
rounded, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import reference
from tests.ranks import Pool
from tests.torch.rings import GLOO_HAS_ALL_TO_ALL, ring
from tests.torch.sequences import gloo_has

DTYPES = {name: dtype for name, dtype in reference.DTYPES.items() if gloo_has(dtype)}
OPS = {name: getattr(dist.ReduceOp, name) for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG")}
BIT_OPS = {name: getattr(dist.ReduceOp, name) for name in ("BAND", "BOR", "BXOR")}
KINDS = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor"),
    *("reduce_scatter", "reduce_scatter_tensor", "gather", "scatter"),
    *("all_to_all", "all_to_all_single", "message", "barrier"),
)


@dataclass(frozen=True)
class Call:
    """One call; `root` is also the sender of the message to the rank `step` further on."""

    kind: str
    dtype: str
    op: str
    rows: int
    root: int
    step: int
    strided: bool
    async_op: bool
    seed: int

    def values(self, rank: int, part: int = 0, rows: int | None = None) -> torch.Tensor:
        random = torch.Generator().manual_seed((self.seed * 64 + rank) * 64 + part)
        dtype = getattr(torch, self.dtype)
        least = 0 if dtype == torch.uint8 else -2
        n = self.rows if rows is None else rows
        return self.laid_out(torch.randint(least, 3, (n, 3), generator=random).to(dtype))

    def empty(self, rows: int | None = None) -> torch.Tensor:
        n = self.rows if rows is None else rows
        return self.laid_out(torch.full((n, 3), 77, dtype=getattr(torch, self.dtype)))

    def laid_out(self, x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t() if self.strided else x

    def sent(self, a: int, b: int, size: int) -> int:
        """Returns the rows of an uneven all-to-all from one rank to another."""
        return (self.rows * (a + 1) + self.seed * b) % (self.rows + size)


@st.composite
def calls(draw: st.DrawFn, size: int) -> Call:
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    ops = (
        [*OPS]
        if DTYPES[dtype].is_floating_point
        else [*BIT_OPS, *(op for op in OPS if op != "AVG")]
    )
    return Call(
        kind=draw(st.sampled_from(KINDS)),
        dtype=dtype,
        op=draw(st.sampled_from(ops)),
        rows=draw(st.one_of(st.integers(0, 20), st.sampled_from([97, 1009, 20_011]))),
        root=draw(st.integers(0, size - 1)),
        step=draw(st.integers(1, max(1, size - 1))),
        strided=draw(st.booleans()),
        async_op=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


def start(
    call: Call, rank: int, size: int, group: dist.ProcessGroup | None, layouts: bool
) -> tuple[list[torch.Tensor], Any]:
    """Makes the call; returns its outputs, and the Work if it is asynchronous."""
    everyone, root = range(size), rank == call.root
    options: dict[str, Any] = {"group": group, "async_op": call.async_op}
    op = (OPS | BIT_OPS)[call.op]

    def own(x: torch.Tensor) -> torch.Tensor:
        return x if layouts else x.contiguous()  # Gloo accepts no others

    mine = own(call.values(rank))
    parts = [own(call.values(rank, r)) for r in everyone]
    out = own(call.empty())
    outs = [own(call.empty()) for _ in everyone]
    whole_out, whole_in = own(call.empty(size * call.rows)), own(torch.cat(parts))
    if call.kind == "all_reduce":
        return [mine], dist.all_reduce(mine, op, **options)
    if call.kind == "reduce":
        return [mine] if root else [], dist.reduce(mine, None, op, group_dst=call.root, **options)
    if call.kind == "broadcast":
        return [mine], dist.broadcast(mine, group_src=call.root, **options)
    if call.kind == "all_gather":
        return outs, dist.all_gather(outs, mine, **options)
    if call.kind == "all_gather_into_tensor":
        return [whole_out], dist.all_gather_into_tensor(whole_out, mine, **options)
    if call.kind == "reduce_scatter":
        return [out], dist.reduce_scatter(out, parts, op, **options)
    if call.kind == "reduce_scatter_tensor":
        return [out], dist.reduce_scatter_tensor(out, whole_in, op, **options)
    if call.kind == "gather":
        whole = outs if root else None
        return outs if root else [], dist.gather(mine, whole, group_dst=call.root, **options)
    if call.kind == "scatter":
        given_ = parts if root else None
        return [out], dist.scatter(out, given_, group_src=call.root, **options)
    if call.kind == "all_to_all" and not layouts and not GLOO_HAS_ALL_TO_ALL:
        found = list(whole_out.unflatten(0, (size, call.rows)).unbind())
        return found, dist.all_to_all_single(whole_out, whole_in, **options)
    if call.kind == "all_to_all":
        return outs, dist.all_to_all(outs, parts, **options)
    if call.kind == "all_to_all_single":
        gets = [call.sent(r, rank, size) for r in everyone]
        gives = [call.sent(rank, r, size) for r in everyone]
        out, source = own(call.empty(sum(gets))), own(call.values(rank, 1, sum(gives)))
        return [out], dist.all_to_all_single(out, source, gets, gives, **options)
    if call.kind == "message":
        to = (call.root + call.step) % size
        if root and to != rank:
            work = dist.isend(mine, group=group, tag=call.seed, group_dst=to)
        elif rank == to and not root:
            work = dist.irecv(out, group=group, tag=call.seed, group_src=call.root)
        else:
            return [], None
        if call.async_op:
            return [out] if rank == to else [], work
        assert work is not None
        work.wait()
        return [out] if rank == to else [], None
    return [], dist.barrier(**options)


def run_sequence(
    rank: int, size: int, sequence: list[Call], groups: tuple[Any, Any] | None = None
) -> list[str]:
    """Returns the differences. Checks only at the end, because the other ranks would wait for one
    that raised.

    ``groups``: ringkern's and Gloo's, of the same ranks with the same numbers; None: of all ranks.
    """
    results = []
    for layouts, group in zip((True, False), groups or (ring(), None)):
        made = [start(call, rank, size, group, layouts) for call in sequence]
        for _, work in made:
            if work is not None:
                work.wait()
        results.append([outputs for outputs, _ in made])
    return [
        f"rank {rank}: {call}"
        for call, ours, theirs in zip(sequence, *results)
        if len(ours) != len(theirs) or not all(torch.equal(x, y) for x, y in zip(ours, theirs))
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@given(data=st.data())
@settings(max_examples=40)
def test_sequences_of_calls(ranks: Pool, size: int, data: st.DataObject) -> None:
    sequence = data.draw(st.lists(calls(size), min_size=1, max_size=8))
    for differences in ranks(size).run(run_sequence, sequence):
        assert not differences
