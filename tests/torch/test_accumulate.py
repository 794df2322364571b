"""``accumulate="float32"``: sums of small floats are rounded once, for every form of the request;
ranks that do not all request it get an error.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import local
from ringkern.errors import CollectiveMismatchError
from tests import reference
from tests.ranks import Pool
from tests.reference import DIRECT, SMALL_FLOATS
from tests.torch.rings import normal, same

pytestmark = pytest.mark.quick

FACTOR = 0.3
OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "premul_sum": dist._make_nccl_premul_sum(FACTOR),
}
WAYS = [{"algorithm": a, "protocol": p} for a, p in (("auto", "auto"), *DIRECT)]


def rounded_once(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """Adds in the order of the ranks, in float32; products with the factor have the dtype."""
    dtype = inputs[0].dtype
    if op == "premul_sum":
        inputs = [(x.float() * FACTOR).to(dtype) for x in inputs]
    result = inputs[0].float()
    for x in inputs[1:]:
        result = result * x.float() if op == "product" else result + x.float()
    return (result / len(inputs) if op == "avg" else result).to(dtype)


def _every_way(rank: int, size: int) -> None:
    other = ringkern.Communicator()
    for dtype in SMALL_FLOATS:
        for n, (op, reduce_op) in zip((7, 256, 5000, 60_001), OPS.items(), strict=True):
            inputs = [normal(dtype, (n,), r, n) for r in range(size)]
            if op == "product":  # stays in the range of every dtype
                inputs = [(x.float().abs() / 8 + 0.75).to(dtype) for x in inputs]
            expected = rounded_once(inputs, op)
            assert n < 100 or not same(expected, reference.direct_all_reduce(inputs, op, FACTOR))
            for way in WAYS:
                x, y = inputs[rank].clone(), inputs[rank].clone()
                shared = ringkern.empty(n, dtype=dtype)
                shared.copy_(x)
                ringkern.ring_all_reduce(x, reduce_op, accumulate="float32", **way)
                other.all_reduce(y, reduce_op, accumulate="float32", **way)
                ringkern.ring_all_reduce(shared, reduce_op, accumulate="float32", **way)
                for z in (x, y, shared):
                    assert same(z, expected), (dtype, n, op, way)
    other.close()


def test_every_way_from_every_call(ranks: Pool) -> None:
    ranks(3).run(_every_way)


@pytest.mark.parametrize("size", [2, 4, 5])
def test_local_rings(size: int) -> None:
    for dtype in SMALL_FLOATS:
        inputs = [normal(dtype, (3000,), r) for r in range(size)]
        for op in ("sum", "avg"):
            tensors = [x.clone() for x in inputs]
            local.ring_all_reduce(tensors, OPS[op], accumulate="float32")
            for x in tensors:
                assert same(x, rounded_once(inputs, op)), (dtype, op)


def test_accumulate_changes_nothing_without_rounding() -> None:
    for dtype in (torch.float32, torch.float64, torch.int32):
        inputs = [normal(dtype, (3000,), r) for r in range(3)]
        results = []
        for accumulate in ("dtype", "float32"):
            tensors = [x.clone() for x in inputs]
            local.ring_all_reduce(tensors, algorithm="two_shot", accumulate=accumulate)
            results.append(tensors[0])
        assert same(*results)


def test_the_ring_is_refused() -> None:
    tensors = [torch.ones(10, dtype=torch.bfloat16) for _ in range(2)]
    with pytest.raises(ValueError, match="accumulate='float32'"):
        local.ring_all_reduce(tensors, algorithm="ring", accumulate="float32")


def _one_asks(rank: int, size: int) -> None:
    comm = ringkern.Communicator(timeout=timedelta(seconds=30))
    x = torch.ones(100, dtype=torch.bfloat16)
    with pytest.raises(CollectiveMismatchError) as error:
        comm.all_reduce(x, algorithm="one_shot", accumulate="float32" if rank == 1 else "dtype")
    text = str(error.value)
    assert "ranks disagree on accumulate: rank 0 has bfloat16 (seq=1 " in text
    assert "all_reduce sum bfloat16[100] in float32)" in text
    comm.close()


def test_a_rank_that_alone_sets_accumulate_is_named(ranks: Pool) -> None:
    ranks(2).run(_one_asks)
