"""All-reduce of sparse tensors."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.ranks import Pool, grid
from tests.torch.rings import ring
from tests.torch.test_backend_input import check_that_it_works

pytestmark = pytest.mark.quick


def _sparse(rank: int, size: int) -> None:
    def make(r: int, dtype: torch.dtype, dense: int) -> torch.Tensor:
        n = [0, 3, 7, 2][r]
        random = torch.Generator().manual_seed(r)
        where = torch.randint(0, 5, (2, n), generator=random)  # with duplicates
        values = torch.randint(0, 9, (n, *[2] * dense), generator=random).to(dtype)
        return torch.sparse_coo_tensor(where, values, (5, 5, *[2] * dense))

    for dtype in (torch.float32, torch.float64, torch.int64, torch.float16):
        for dense in (0, 1):
            x = make(rank, dtype, dense)
            dist.all_reduce(x, group=ring())
            assert x.is_sparse
            assert x.is_coalesced()
            want = sum(make(r, torch.float64, dense).to_dense() for r in range(size))
            assert torch.equal(x.to_dense().double(), want), (dtype, dense)
            work = dist.all_reduce(x, group=ring(), async_op=True)
            assert work is not None
            work.wait()
            assert torch.equal(x.to_dense().double(), want * size), (dtype, dense)


@grid(1, 2, 3, 4)
def test_sparse_all_reduce(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_sparse)


def _sparse_tensors_differ(rank: int, size: int) -> str:
    x = torch.eye(3, dtype=torch.float32 if rank == 0 else torch.float64).to_sparse()
    with pytest.raises(ValueError, match="sparse tensors that differ") as caught:
        dist.all_reduce(x, group=ring())
    check_that_it_works(rank, size, ring())
    return str(caught.value)


@grid(2)
def test_sparse_tensors_that_differ(ranks: Pool, hosts: str) -> None:
    """Every rank finds the difference before anything is added."""
    assert "rank 1 and rank 0 have" in ranks(hosts).run(_sparse_tensors_differ)[0]
