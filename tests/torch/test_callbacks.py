"""Operations in callbacks, which run on the communicator's thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.ranks import Pool, grid
from tests.torch.test_abort import NEVER, connected
from tests.torch.test_api import summed, values


def _callbacks(rank: int, size: int) -> None:
    x = values(rank)
    work = ringkern.ring_all_reduce(x, async_op=True)
    assert work is not None
    early = work.get_future().then(lambda future: future.value()[0] / size)
    twice = early.then(lambda future: future.value() * 2)
    assert torch.equal(twice.wait(), summed(size) / size * 2)
    late = work.get_future().then(lambda future: int(future.value()[0].sum()))
    assert late.wait() == int(summed(size).sum())

    def broken(future: torch.futures.Future[Any]) -> None:
        raise KeyError("in the callback")

    work = ringkern.ring_all_reduce(values(rank), async_op=True)
    assert work is not None
    with pytest.raises(RuntimeError, match="in the callback"):
        work.get_future().then(broken).wait()
    work.wait()
    ringkern.ring_all_reduce(values(rank))


@grid(2)
def test_future_callbacks(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_callbacks)


def _call_in_callback(rank: int, size: int) -> None:
    x = values(rank)
    work = ringkern.ring_all_reduce(values(rank), async_op=True)
    assert work is not None
    start = work.get_future().then(lambda _: ringkern.ring_all_reduce(x, async_op=True))
    start.wait().wait()
    assert torch.equal(x, summed(size))


@grid(2)
def test_a_callback_may_start_another_call(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_call_in_callback)


def _slow_enough(rank: int, size: int) -> tuple[ringkern.Communicator, dist.Work]:
    """Keeps a call in flight on rank 0, so that functions added to its future run as callbacks."""
    communicator = connected(size, NEVER)
    if rank == 1:
        dist.barrier()
    work = communicator.all_reduce(values(rank), async_op=True)
    assert work is not None
    return communicator, work


def _sync_call_in_callback(rank: int, size: int) -> None:
    communicator, work = _slow_enough(rank, size)
    if rank == 0:
        call = work.get_future().then(lambda _: communicator.all_reduce(values(rank)))
        close = work.get_future().then(lambda _: communicator.close())
        dist.barrier()
        for future in (call, close):
            with pytest.raises(RuntimeError, match="would wait for itself"):
                future.wait()
    work.wait()
    dist.barrier()
    communicator.close()


@grid(2)
def test_a_call_that_would_wait_for_its_own_callback(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_sync_call_in_callback)


def _async_call_in_callback(rank: int, size: int) -> None:
    communicator, work = _slow_enough(rank, size)
    x, y = values(rank), values(rank)
    if rank == 0:
        more = work.get_future().then(lambda _: communicator.all_reduce(x, async_op=True))
        threading.Timer(0.1, dist.barrier).start()
        communicator.all_reduce(y)  # waits its turn until the callback has ended
        more.wait().wait()
    else:
        work.wait()
        communicator.all_reduce(x)
        communicator.all_reduce(y)
    assert torch.equal(x, summed(size))
    assert torch.equal(y, summed(size))
    communicator.close()


@grid(2)
def test_an_async_call_in_a_callback_during_a_sync_one(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_async_call_in_callback)


def _freed_by_its_callback(rank: int, size: int) -> None:
    communicator, work = _slow_enough(rank, size)
    tensors = [values(rank) for _ in range(3)]
    works = [communicator.all_reduce(x, async_op=True) for x in tensors]
    if rank == 0:
        held = [communicator]
        freed = work.get_future().then(lambda _: held.clear())
        del communicator
        dist.barrier()
        freed.wait()
    for other in works:
        assert other is not None
        other.wait()
    assert all(torch.equal(x, summed(size)) for x in tensors)


@grid(2)
def test_a_callback_may_be_the_last_to_hold_a_communicator(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_freed_by_its_callback)
