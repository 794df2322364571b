"""Aids to find the rank at fault: monitored_barrier, and torch's own comparison of the ranks'
calls.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.ranks import Pool, Ranks
from tests.torch.rings import ring
from tests.torch.test_backend_groups import check
from tests.torch.test_backend_input import check_that_it_works


def _monitored(rank: int, size: int) -> list[str]:
    """Before torch 2.14, dist.monitored_barrier works with Gloo only. The group has the method."""
    group, texts = ring(), []
    if torch.__version__ < "2.14":
        with pytest.raises(ValueError, match="only implemented for GLOO"):
            dist.monitored_barrier(group)
    else:
        dist.monitored_barrier(group)
    for _ in range(3):
        group.monitored_barrier(timedelta(seconds=20))
    for wait_all_ranks in (False, True):
        if rank == 0:
            with pytest.raises(RuntimeError) as caught:
                group.monitored_barrier(timedelta(seconds=0.3), wait_all_ranks)
            texts.append(f"{type(caught.value).__name__}: {caught.value}")
        dist.barrier()
        # The late ranks get the error, too; then the ranks are in step again.
        if rank != 0:
            with pytest.raises(RuntimeError) as caught:
                group.monitored_barrier(timedelta(seconds=20), wait_all_ranks)
            texts.append(f"{type(caught.value).__name__}: {caught.value}")
        group.monitored_barrier(timedelta(seconds=20))
    check_that_it_works(rank, size, group)
    return texts


def test_monitored_barrier(ranks: Pool) -> None:
    (first, every), *late = ranks(3).run(_monitored)
    assert first == "CollectiveTimeoutError: Rank 1 failed to pass monitoredBarrier in 300 ms"
    assert every == "CollectiveTimeoutError: Ranks 1, 2 failed to pass monitoredBarrier in 300 ms"
    for texts in late:
        assert first.removeprefix("CollectiveTimeoutError: ") in texts[0]
        assert every.removeprefix("CollectiveTimeoutError: ") in texts[1]


def _monitored_without_rank_0(rank: int, size: int) -> str:
    group, text = ring(), ""
    if rank == 1:
        with pytest.raises(RuntimeError) as caught:
            group.monitored_barrier(timedelta(seconds=0.1))
        text = str(caught.value)
    dist.barrier()
    if rank == 0:
        group.monitored_barrier(timedelta(seconds=20))
    return text


def test_monitored_barrier_without_rank_0(ranks: Pool) -> None:
    assert "rank 0 did not come in 100 ms" in ranks(2).run(_monitored_without_rank_0)[1]


def _detail(rank: int, size: int) -> list[str]:
    """torch compares the calls of the ranks before it makes them."""
    texts = []
    for _ in range(2):
        check(dist.group.WORLD)
        dist.barrier()
        objects = [None] * size
        dist.all_gather_object(objects, rank)
    for call in (
        lambda: dist.all_reduce(torch.ones(3 + rank)),
        lambda: dist.all_reduce(torch.ones(3)) if rank else dist.broadcast(torch.ones(3), 0),
    ):
        with pytest.raises(RuntimeError) as caught:
            call()
        texts.append(str(caught.value))
    return texts


def test_torch_distributed_debug_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    own = Ranks(2, backend="ringkern")
    try:
        for shapes, kinds in own.run(_detail):
            assert "Detected mismatch between collectives on ranks" in shapes
            assert "TensorShape=[3]" in shapes
            assert "TensorShape=[4]" in shapes
            assert "Detected mismatch between collectives on ranks" in kinds
            assert "ALLREDUCE" in kinds
            assert "BROADCAST" in kinds
            # Sequence numbers come from the backend and are equal on both ranks.
            assert shapes.count("SequenceNumber=") == 2
            numbers = [part.split(",")[0] for part in shapes.split("SequenceNumber=")[1:]]
            assert len(set(numbers)) == 1
    finally:
        own.kill()
