"""Booleans: every op gives Gloo's result, and each byte in memory is 0 or 1."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import _C
from ringkern.errors import CollectiveMismatchError
from ringkern.local import Ring
from tests.ranks import Pool
from tests.reference import DIRECT, PROTOCOLS
from tests.torch.sequences import OPS

N = 10_007


def bools(rank: int, n: int = N) -> torch.Tensor:
    """Returns all combinations of the ranks' values, in every position of a line."""
    return torch.arange(n) // 2**rank % 2 == 1


def _as_gloo(rank: int, size: int) -> None:
    gloo: Any = dist.new_group(backend="gloo")
    for op in _C.ops_of("bool"):
        expected = bools(rank)
        dist.all_reduce(expected, OPS[op], gloo)
        expected = expected.view(torch.uint8) != 0  # Gloo adds bytes: a sum of two is 2
        for algorithm, protocol in (("auto", "auto"), *(("ring", p) for p in PROTOCOLS), *DIRECT):
            x = bools(rank)
            ringkern.ring_all_reduce(x, OPS[op], algorithm=algorithm, protocol=protocol)
            assert torch.equal(x, expected), (op, algorithm, protocol)
            assert x.view(torch.uint8).max() <= 1, (op, algorithm, protocol)
        shard = torch.empty(N, dtype=torch.bool)
        ringkern.ring_reduce_scatter(shard, bools(rank).repeat(size), OPS[op])
        assert torch.equal(shard, expected), op


@pytest.mark.parametrize("size", [2, 3])
def test_each_op_is_as_in_gloo(ranks: Pool, size: int) -> None:
    ranks(size).run(_as_gloo)


def _one_gives_bytes(rank: int, size: int) -> None:
    comm = ringkern.Communicator(timeout=timedelta(seconds=30))
    x = bools(rank).view(torch.uint8) if rank == 1 else bools(rank)
    with pytest.raises(CollectiveMismatchError, match="disagree on dtype: rank 0 has bool"):
        comm.all_reduce(x, OPS["max"])
    comm.close()


def test_a_byte_is_no_boolean(ranks: Pool) -> None:
    ranks(2).run(_one_gives_bytes)


def test_more_ranks_than_a_byte_counts() -> None:
    """A sum of bytes would wrap to 0."""
    with Ring(["cpu"] * 256) as ring:
        tensors = [torch.ones(1, dtype=torch.bool) for _ in range(256)]
        ring.all_reduce(tensors)
        assert all(x.item() for x in tensors)


def test_no_mean() -> None:
    with Ring(["cpu"] * 2) as ring, pytest.raises(TypeError, match="bool: convert to a float"):
        ring.all_reduce([torch.ones(3, dtype=torch.bool)] * 2, dist.ReduceOp.AVG)
