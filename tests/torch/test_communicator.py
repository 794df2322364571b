"""Communicator, the object: its lifetime, any store for connecting, a world of one."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import CommUsageError
from tests.ranks import Pool
from tests.torch.test_api import summed, values

pytestmark = pytest.mark.quick

SECONDS = timedelta(seconds=30)


# ---- the object ---------------------------------------------------------------------------------


def _object(rank: int, size: int) -> None:
    with ringkern.Communicator(timeout=SECONDS) as communicator:
        assert (communicator.rank, communicator.size) == (rank, size)
        assert repr(communicator) == f"<ringkern.Communicator rank {rank} of {size}>"
        x, part, whole = values(rank, 10 * size), torch.empty(10), torch.empty(10 * size)
        assert communicator.all_reduce(x) is None
        assert torch.equal(x, summed(size, 10 * size))
        communicator.reduce_scatter(part, values(rank, 10 * size), dist.ReduceOp.SUM)
        communicator.all_gather(whole, part, protocol="simple")
        assert torch.equal(whole, x)
        array = values(rank).numpy()
        work = communicator.all_reduce(array, async_op=True)
        assert work is not None
        work.wait()
        assert torch.equal(torch.from_numpy(array), summed(size))
        last = values(size - 1)
        sent = values(rank)
        assert communicator.broadcast(sent, size - 1) is None
        assert torch.equal(sent, last)
        work = communicator.broadcast(array := values(rank).numpy(), 0, async_op=True)
        assert work is not None
        work.wait()
        assert torch.equal(torch.from_numpy(array), values(0))
        for src in (-1, size):
            with pytest.raises(ValueError, match=f"the root is rank {src}, which is not among"):
                communicator.broadcast(sent, src)
    communicator.close()  # any number of times
    communicator.close()
    for call in (
        lambda: communicator.all_reduce(x),
        lambda: communicator.all_reduce(x, async_op=True),
        lambda: communicator.reduce_scatter(part, x),
        lambda: communicator.all_gather(whole, part),
        lambda: communicator.broadcast(part, 0),
    ):
        with pytest.raises(CommUsageError, match=r"communicator 'ringkern/.*' is closed"):
            call()
    communicator.abort()  # too late, but harmless
    assert torch.equal(x, summed(size, 10 * size))
    ringkern.ring_all_reduce(values(rank))  # the group has a communicator of its own


def test_communicator_object(ranks: Pool) -> None:
    ranks(2).run(_object)


def _close_finishes(rank: int, size: int) -> None:
    communicator = ringkern.Communicator(timeout=SECONDS)
    tensors = [values(rank, 30_000) for _ in range(20)]
    works = [communicator.all_reduce(x, async_op=True) for x in tensors]
    communicator.close()
    assert all(work is not None and work.is_completed() for work in works)
    assert all(torch.equal(x, summed(size, 30_000)) for x in tensors)


def test_close_finishes_calls_in_flight(ranks: Pool) -> None:
    ranks(2).run(_close_finishes)


def _dropped(rank: int, size: int) -> None:
    communicator = ringkern.Communicator(timeout=SECONDS)
    x = values(rank, 30_000)
    work = communicator.all_reduce(x, async_op=True)
    assert work is not None
    # This callback needs the GIL while the communicator is being freed.
    mean = work.get_future().then(lambda future: future.value()[0] / size)
    del communicator
    assert torch.equal(mean.wait(), summed(size, 30_000) / size)


def test_dropped_with_a_call_in_flight(ranks: Pool) -> None:
    ranks(2).run(_dropped)


def _longest_timeout(rank: int, size: int) -> None:
    with ringkern.Communicator(timeout=timedelta.max) as communicator:
        x = values(rank)
        communicator.all_reduce(x)
        assert torch.equal(x, summed(size))


def test_the_longest_timeout(ranks: Pool) -> None:
    ranks(2).run(_longest_timeout)


# ---- stores -------------------------------------------------------------------------------------


def _over(store: dist.Store, rank: int, size: int, **kwargs: Any) -> None:
    for _ in range(2):  # twice over the same store: its old keys do no harm
        with ringkern.Communicator.from_store(
            store, rank, size, timeout=SECONDS, **kwargs
        ) as communicator:
            x = values(rank)
            communicator.all_reduce(x)
            assert torch.equal(x, summed(size))


def _file_store(rank: int, size: int, path: str) -> None:
    _over(dist.FileStore(path, size), rank, size)


def test_from_file_store(ranks: Pool, tmp_path: Path) -> None:
    ranks(3).run(_file_store, str(tmp_path / "store"))


def _tcp_store(rank: int, size: int) -> None:
    port = [dist.TCPStore("localhost", 0, size, True, wait_for_workers=False)] if rank == 0 else []
    numbers = [port[0].port if port else None]
    dist.broadcast_object_list(numbers)
    store = port[0] if port else dist.TCPStore("localhost", numbers[0], size, False)
    _over(store, rank, size)
    _over(dist.PrefixStore("of a job", store), rank, size)
    dist.barrier()  # rank 0 hosts the server


def test_from_tcp_store(ranks: Pool) -> None:
    ranks(3).run(_tcp_store)


def _names(rank: int, size: int, path: str) -> None:
    store = dist.FileStore(path, size)
    rings = [
        ringkern.Communicator.from_store(store, rank, size, name=name, timeout=SECONDS)
        for name in ("a", "b")
    ]
    tensors = [values(rank), values(rank)]
    works = [ring.all_reduce(x, async_op=True) for ring, x in zip(rings, tensors)]
    for work in works if rank == 0 else reversed(works):
        assert work is not None
        work.wait()
    assert all(torch.equal(x, summed(size)) for x in tensors)
    for ring in rings:
        ring.close()


def test_two_names_over_one_store(ranks: Pool, tmp_path: Path) -> None:
    ranks(2).run(_names, str(tmp_path / "store"))


def test_ranks_may_be_threads_of_one_process() -> None:
    store, size = dist.HashStore(), 3
    results: dict[int, torch.Tensor] = {}

    def rank_of(rank: int) -> None:
        with ringkern.Communicator.from_store(store, rank, size, timeout=SECONDS) as communicator:
            x = values(rank, 10_000)
            communicator.all_reduce(x)
            results[rank] = x

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2]
    assert all(torch.equal(x, summed(size, 10_000)) for x in results.values())


# ---- the world of one ---------------------------------------------------------------------------


def test_a_world_of_one() -> None:
    ops = dist.ReduceOp
    with ringkern.Communicator.from_store(dist.HashStore(), 0, 1) as alone:
        for protocol in ("auto", "simple", "ll", "ll128"):
            for op in (ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX, ops.AVG):
                x = values(0)
                assert alone.all_reduce(x, op, protocol=protocol) is None
                assert torch.equal(x, values(0))
            for op in (ops.BAND, ops.BOR, ops.BXOR):
                y = values(0, dtype=torch.int32)
                alone.all_reduce(y, op, protocol=protocol)
                assert torch.equal(y, values(0, dtype=torch.int32))
            x = values(0)
            alone.all_reduce(x, dist._make_nccl_premul_sum(3.0), protocol=protocol)
            assert torch.equal(x, 3 * values(0))
            part, whole = torch.empty(1000), torch.empty(1000)
            alone.reduce_scatter(part, x, ops.AVG, protocol=protocol)
            alone.all_gather(whole, part, protocol=protocol)
            assert torch.equal(whole, 3 * values(0))
        x = values(0).view(10, 100).t()
        work = alone.all_reduce(x, async_op=True)
        assert work is not None
        work.wait()
        assert torch.equal(x, values(0).view(10, 100).t())
        alone.all_reduce(torch.empty(0))


# ---- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timeout", [timedelta(0), timedelta(seconds=-1), timedelta(microseconds=9)]
)
def test_timeout_must_be_positive(timeout: timedelta) -> None:
    with pytest.raises(ValueError, match=r"timeout is .*; give a millisecond or more"):
        ringkern.Communicator.from_store(dist.HashStore(), 0, 1, timeout=timeout)


@pytest.mark.parametrize(
    ("rank", "size", "text"),
    [
        (2, 2, "rank 2 is not among the 2 ranks"),
        (-1, 2, "rank -1 is not among the 2 ranks"),
        (0, 0, "1 to 1024 ranks, not 0"),
        (0, 1025, "1 to 1024 ranks, not 1025"),
    ],
)
def test_rank_and_size(rank: int, size: int, text: str, tmp_path: Path) -> None:
    for store in (dist.HashStore(), dist.FileStore(str(tmp_path / "store"), -1)):
        with pytest.raises(CommUsageError, match=text):
            ringkern.Communicator.from_store(store, rank, size, timeout=SECONDS)
