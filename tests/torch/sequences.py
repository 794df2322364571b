"""Sequences of collectives that a rank runs and checks: the ranks' side of test_properties."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

import ringkern
from tests import reference
from tests.reference import bits_of
from tests.torch.layouts import DENSE, Memory

OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


@dataclass(frozen=True)
class Call:
    """A collective. Rank r lays its tensors out by the layout of index r, modulo their number."""

    collective: str
    op: str
    dtype: str
    length: int  # elements of an all-reduce, or of one rank's shard
    layouts: tuple[str, ...]
    protocol: str
    values: str = "plain"  # "special": with NaN, infinities and zeros; "bits": any bits
    in_place: bool = False  # reduce-scatter, all-gather: the shard is a part of the whole tensor
    async_op: bool = False
    seed: int = 0
    factor: float = 1.0  # for premul_sum
    algorithm: str = "auto"  # for an all-reduce

    @property
    def torch_dtype(self) -> torch.dtype:
        return reference.DTYPES[self.dtype]

    @property
    def reduce_op(self) -> dist.ReduceOp | dist.ReduceOp.RedOpType:
        return dist._make_nccl_premul_sum(self.factor) if self.op == "premul_sum" else OPS[self.op]


# ---- values -------------------------------------------------------------------------------------


def values_of(call: Call, rank: int, size: int) -> torch.Tensor:
    """Returns a rank's input, flat, reproducible on any rank."""
    count = call.length * (size if call.collective == "reduce_scatter" else 1)
    dtype = call.torch_dtype
    random = torch.Generator().manual_seed(call.seed * 1024 + rank)
    if call.values == "bits":
        most = 2 if dtype == torch.bool else 256
        raw = torch.randint(0, most, (count * dtype.itemsize,), dtype=torch.uint8, generator=random)
        return raw.view(dtype)
    if not dtype.is_floating_point:
        least = 0 if dtype == torch.uint8 else -100
        values = torch.randint(least, 100, (count,), generator=random)
        return (values % 2 if dtype == torch.bool else values).to(dtype)
    values = (2 * torch.randn(count, dtype=torch.float64, generator=random)).to(dtype)
    if call.values == "special":
        inf, info = float("inf"), torch.finfo(dtype)
        list_ = (float("nan"), inf, -inf, 0.0, -0.0, info.max, info.min, info.smallest_normal / 2)
        special = torch.tensor(list_, dtype=torch.float64).to(dtype)
        which = torch.randint(0, 4 * len(list_), (count,), generator=random)
        at = (which < len(list_)).nonzero().flatten()
        bits_of(values)[at] = bits_of(special)[which[at]]
    return values


# ---- calls --------------------------------------------------------------------------------------


class Attempt:
    """One call, on memory of its own."""

    def __init__(
        self, call: Call, rank: int, size: int, group: dist.ProcessGroup | None = None
    ) -> None:
        self.call, self.work, self.group = call, None, group
        layout = call.layouts[rank % len(call.layouts)]
        other_layout = call.layouts[(rank + 1) % len(call.layouts)]
        mine = values_of(call, rank, size)
        if call.collective == "all_reduce":
            self.input = self.output = Memory.of(mine, layout, call.seed)
            return
        if call.in_place and layout not in DENSE:
            layout = "contiguous"
        if call.collective == "reduce_scatter":
            result = torch.zeros(call.length, dtype=mine.dtype)
            self.input = Memory.of(mine, layout, call.seed)
            self.output = (
                self.input.part(rank, size)
                if call.in_place
                else Memory.of(result, other_layout, call.seed + 1)
            )
        else:
            result = torch.zeros(call.length * size, dtype=mine.dtype)
            if call.in_place:
                bits_of(result)[rank * call.length : (rank + 1) * call.length] = bits_of(mine)
            self.output = Memory.of(result, layout, call.seed)
            self.input = (
                self.output.part(rank, size)
                if call.in_place
                else Memory.of(mine, other_layout, call.seed + 1)
            )

    def start(self) -> None:
        call = self.call
        options = {"group": self.group, "async_op": call.async_op, "protocol": call.protocol}
        if call.collective == "all_reduce":
            self.work = ringkern.ring_all_reduce(
                self.output.tensor, call.reduce_op, algorithm=call.algorithm, **options
            )
        elif call.collective == "reduce_scatter":
            self.work = ringkern.ring_reduce_scatter(
                self.output.tensor, self.input.tensor, call.reduce_op, **options
            )
        else:
            self.work = ringkern.ring_all_gather(self.output.tensor, self.input.tensor, **options)

    def finish(self) -> None:
        assert (self.work is not None) == self.call.async_op
        if self.work is not None:
            self.work.wait()

    def check_memory(self) -> None:
        assert self.output.changed_outside(written=True) == 0, "bytes outside the output changed"
        if self.input.bytes is not self.output.bytes:
            assert self.input.changed_outside(written=False) == 0, "the input changed"


def run_sequence(rank: int, size: int, calls: list[Call]) -> list[str]:
    """Runs :func:`run_twice` on one host."""
    return run_twice(rank, size, calls, _check_result)


def run_twice(
    rank: int,
    size: int,
    calls: list[Call],
    check: Callable[[Call, int, int, torch.Tensor, torch.Tensor | None], None],
    ring: dist.ProcessGroup | None = None,
    gloo: dist.ProcessGroup | None = None,
) -> list[str]:
    """Makes the calls twice, and once with Gloo; checks them; returns digests of the results.

    Checks only after all calls: a rank that raised halfway would leave its neighbours waiting.
    ``check(call, rank, size, result, gloo's)``.
    """
    attempts = [[Attempt(call, rank, size, ring) for call in calls] for _ in range(2)]
    for round_ in attempts:
        for attempt in round_:
            attempt.start()
        for attempt in round_:
            attempt.finish()
    others = [by_gloo(call, rank, size, gloo) for call in calls]
    digests = []
    for call, first, again, other in zip(calls, *attempts, others):
        result = first.output.flat()
        first.check_memory()
        assert torch.equal(result, again.output.flat()), f"another result the second time: {call}"
        check(call, rank, size, result, other)
        digests.append(hashlib.sha256(result.numpy().tobytes()).hexdigest())
    return digests


def expected_of(call: Call, inputs: list[torch.Tensor], rank: int) -> torch.Tensor:
    """Returns the exact bits that the call must leave on a rank."""
    if call.collective == "all_gather":
        return reference.ring_all_gather(inputs)
    if call.collective == "reduce_scatter":
        return reference.ring_reduce_scatter(inputs, call.op, call.protocol, rank, call.factor)
    return reference.all_reduce(inputs, call.op, call.protocol, call.factor, call.algorithm)


@functools.cache
def gloo_has(dtype: torch.dtype) -> bool:
    """Returns whether Gloo reduces a dtype: a group of one rank refuses it like any other."""
    gloo = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=60))
    try:
        gloo.allreduce([torch.zeros(1, dtype=dtype)]).wait()
    except RuntimeError as error:
        if "Invalid scalar type" not in str(error):
            raise
        return False
    return True


def by_gloo(
    call: Call, rank: int, size: int, group: dist.ProcessGroup | None = None
) -> torch.Tensor | None:
    """Returns the result of the same call by torch.distributed; None where Gloo lacks the dtype."""
    mine = values_of(call, rank, size)
    if call.collective == "all_gather":
        everyone = torch.empty(call.length * size * mine.element_size(), dtype=torch.uint8)
        dist.all_gather_into_tensor(everyone, mine.view(torch.uint8), group)
        return everyone.view(mine.dtype)
    if not gloo_has(mine.dtype):
        return None
    if call.op == "premul_sum":
        mine = (mine.to(torch.float64) * call.factor).to(mine.dtype)
    dist.all_reduce(mine, OPS["sum" if call.op == "premul_sum" else call.op], group)
    if mine.dtype == torch.bool:
        return mine.view(torch.uint8) != 0  # Gloo adds bytes: true and true gives 2
    return mine


def _check_result(
    call: Call, rank: int, size: int, result: torch.Tensor, gloo: torch.Tensor | None
) -> None:
    if call.collective == "all_gather":
        everyone = expected_of(call, [values_of(call, r, size) for r in range(size)], rank)
        assert torch.equal(result, bits_of(everyone)), f"not what was sent: {call}"
        assert gloo is not None
        assert torch.equal(result, bits_of(gloo)), f"not what Gloo gathers: {call}"
        return
    scatter = call.collective == "reduce_scatter"
    # Results of an all-reduce are equal on all ranks: one rank compares with Gloo.
    if not scatter and rank != call.seed % size:
        return
    inputs = [values_of(call, r, size) for r in range(size)]
    mine = slice(rank * call.length, (rank + 1) * call.length) if scatter else slice(None)
    expected = expected_of(call, inputs, rank)
    if not torch.equal(result, bits_of(expected)):
        raise_difference(call, result, expected, [x[mine] for x in inputs])
    if gloo is not None:
        check_gloo(call, result, gloo[mine], [x[mine] for x in inputs])


def raise_difference(
    call: Call, result: torch.Tensor, expected: torch.Tensor, inputs: list[torch.Tensor]
) -> None:
    wrong = (result != bits_of(expected)).nonzero().flatten()
    i, width = int(wrong[0]), 2 * result.element_size()
    bits = [f"{int(bits_of(x)[i]) & (1 << 4 * width) - 1:0{width}x}" for x in (*inputs, expected)]
    got = f"{int(result[i]) & (1 << 4 * width) - 1:0{width}x}"
    raise AssertionError(
        f"{len(wrong)} of {len(result)} elements differ from the reference; element {i}: inputs "
        f"{' '.join(bits[:-1])}, expected {bits[-1]}, got {got}: {call}"
    )


def check_gloo(
    call: Call, result: torch.Tensor, gloo: torch.Tensor, inputs: list[torch.Tensor]
) -> None:
    dtype = call.torch_dtype
    if not dtype.is_floating_point:
        assert torch.equal(result, bits_of(gloo)), f"not what Gloo gives: {call}"
        return
    if call.values != "plain" or not result.numel():
        return  # Gloo's min and max lose a NaN, and its sums overflow in another order
    ours, theirs = result.view(dtype).to(torch.float64), gloo.to(torch.float64)
    x = torch.stack(inputs).to(torch.float64)
    if call.op in ("min", "max"):
        assert torch.equal(ours, theirs), f"not what Gloo gives: {call}"
        return
    size = abs(x.prod(0)) if call.op == "prod" else abs(x).sum(0)
    if call.op == "premul_sum":
        size = size * abs(call.factor)
    info = torch.finfo(dtype)
    # A value that is rounded below the smallest normal number may be multiplied again.
    least = info.smallest_normal * info.eps * abs(x).clamp(min=1).prod(0)
    bound = 2 * len(inputs) * (info.eps * size + least)
    off = abs(ours - theirs) > bound
    assert not off.any(), f"{int(off.sum())} elements are not close to Gloo's: {call}"
