"""A rank that gives up, fails, or never comes: no rank waits forever, and every rank gets the
reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import CollectiveTimeoutError, CommAbortedError, RendezvousError, RingKernError
from tests.ranks import Pool
from tests.torch.test_api import summed, values

pytestmark = pytest.mark.quick

# Longer than the ranks' time limit: an earlier end was not caused by this timeout.
NEVER = timedelta(seconds=600)
SOON = timedelta(seconds=1)


def connected(size: int, timeout: timedelta) -> ringkern.Communicator:
    dist.barrier()  # the timeout also limits the connecting
    communicator = ringkern.Communicator(timeout=timeout)
    x = torch.ones(10)
    communicator.all_reduce(x)
    assert torch.equal(x, torch.full((10,), float(size)))
    dist.barrier()  # an early abort would end this call of the others
    return communicator


def said(error: type[BaseException], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert isinstance(caught.value, RingKernError)
    return str(caught.value)


# ---- abort --------------------------------------------------------------------------------------


def _abort_from_a_thread(rank: int, size: int, async_op: bool) -> list[str]:
    communicator = connected(size, NEVER)
    if rank == 1:  # does not call before all others have failed
        dist.barrier()
        return [said(CommAbortedError, lambda: communicator.all_reduce(torch.ones(1000)))]
    if rank == 0:
        threading.Timer(0.2, communicator.abort, ["out of patience"]).start()
    if async_op:
        work = communicator.all_reduce(torch.ones(1000), async_op=True)
        assert work is not None
        texts = [said(CommAbortedError, work.wait), said(CommAbortedError, work.wait)]
        assert work.is_completed()
        with pytest.raises(RuntimeError):
            work.get_future().wait()
    else:
        texts = [said(CommAbortedError, lambda: communicator.all_reduce(torch.ones(1000)))]
    texts.append(said(CommAbortedError, lambda: communicator.all_reduce(torch.ones(3))))
    dist.barrier()
    communicator.abort("again")  # any number of times
    communicator.close()
    return texts


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_abort_ends_the_calls_of_all_ranks(ranks: Pool, async_op: bool) -> None:
    texts = ranks(3).run(_abort_from_a_thread, async_op)
    assert all("aborted" in text for rank in texts for text in rank)
    assert all("aborted by rank 0: out of patience" in text for text in texts[0])
    assert "became unusable" in texts[0][-1]
    ranks(3).run(_still_works)


def _still_works(rank: int, size: int) -> None:
    x = values(rank)
    ringkern.ring_all_reduce(x)
    assert torch.equal(x, summed(size))


def _abort_while_connecting(rank: int, size: int) -> str:
    communicator = ringkern.Communicator(timeout=NEVER)
    if rank == 1:  # comes when no rank waits any more
        dist.barrier()
        return said(RendezvousError, lambda: communicator.all_reduce(torch.ones(3)))
    threading.Timer(0.2, communicator.abort, ["changed my mind"]).start()
    text = said(CommAbortedError, lambda: communicator.all_reduce(torch.ones(3)))
    dist.barrier()
    return text


def test_abort_ends_the_search_for_neighbours(ranks: Pool) -> None:
    assert all("changed my mind" in text for text in ranks(2).run(_abort_while_connecting))
    ranks(2).run(_connect_again)


def _abort_before_the_first_call(rank: int, size: int) -> None:
    communicator = ringkern.Communicator(timeout=NEVER)
    communicator.abort()
    text = said(CommAbortedError, lambda: communicator.all_reduce(torch.ones(3)))
    assert f"aborted by rank {rank}: abort() was called" in text


def test_abort_before_the_first_call(ranks: Pool) -> None:
    ranks(2).run(_abort_before_the_first_call)
    ranks(2).run(_still_works)


def _exception_inside_with(rank: int, size: int) -> str:
    communicator = connected(size, NEVER)
    if rank == 1:
        with pytest.raises(KeyError, match="lost"), communicator:
            raise KeyError("lost")
        dist.barrier()
        return ""
    with communicator:
        text = said(CommAbortedError, lambda: communicator.all_reduce(torch.ones(1000)))
        dist.barrier()
        return text


def test_an_exception_inside_with_aborts(ranks: Pool) -> None:
    texts = ranks(3).run(_exception_inside_with)
    assert all("aborted" in text for text in (texts[0], texts[2]))
    ranks(3).run(_still_works)


def _queued_behind_a_failure(rank: int, size: int) -> None:
    communicator = connected(size, NEVER)
    if rank == 0:
        tensors = [torch.ones(100) for _ in range(5)]
        works = [communicator.all_reduce(x, async_op=True) for x in tensors]
        communicator.abort("enough")
        for work in works:
            assert work is not None
            said(CommAbortedError, work.wait)
    dist.barrier()
    communicator.close()


def test_calls_behind_one_that_failed_fail(ranks: Pool) -> None:
    ranks(2).run(_queued_behind_a_failure)


# ---- a rank that does not come ------------------------------------------------------------------


def _never_called(rank: int, size: int, protocol: str, n: int) -> list[str]:
    communicator = connected(size, SOON)
    texts: list[str] = []
    if rank == 0:
        call = lambda: communicator.all_reduce(torch.ones(n), protocol=protocol)  # noqa: E731
        with pytest.raises(CollectiveTimeoutError) as caught:
            call()
        assert isinstance(caught.value, TimeoutError)
        texts = [str(caught.value), said(CommAbortedError, call), said(CommAbortedError, call)]
    dist.barrier()
    if rank == 1:  # too late
        texts = [said(CommAbortedError, lambda: communicator.all_reduce(torch.ones(n)))]
    return texts


@pytest.mark.parametrize(("protocol", "n"), [("simple", 5), ("ll", 5), ("ll128", 3_000_000)])
def test_a_rank_that_never_calls(ranks: Pool, protocol: str, n: int) -> None:
    (first, second, third), (late,) = ranks(2).run(_never_called, protocol, n)
    assert f"all_reduce sum float32[{n}] over {protocol}: rank 0 waited for" in first
    assert "rank 1" in first
    assert "nothing came for 1.0 s" in first
    assert "Waiting for rank 1 (pid " in first
    assert "has not made this call; its last was" in first
    for later in (second, third):
        assert "became unusable" in later
        assert first in later, "the first reason is the cause of all others"
    assert first in late
    ranks(2).run(_still_works)


def _never_called_async(rank: int, size: int) -> None:
    communicator = connected(size, SOON)
    if rank == 0:
        work = communicator.all_reduce(torch.ones(100), async_op=True)
        behind = communicator.all_reduce(torch.ones(100), async_op=True)
        assert work is not None
        assert behind is not None
        first = said(CollectiveTimeoutError, work.wait)
        assert first in said(CommAbortedError, behind.wait)
        with pytest.raises(RuntimeError, match="nothing came for"):
            work.get_future().value()
    dist.barrier()


def test_a_rank_that_never_calls_async(ranks: Pool) -> None:
    ranks(2).run(_never_called_async)


def _comes_late(rank: int, size: int) -> str:
    dist.barrier()
    communicator = ringkern.Communicator(timeout=SOON)
    if rank == 1:
        dist.barrier()
    with pytest.raises(RendezvousError) as caught:
        communicator.all_reduce(torch.ones(3))
    assert str(caught.value) in said(
        CommAbortedError, lambda: communicator.all_reduce(torch.ones(3))
    )
    if rank != 1:
        dist.barrier()
    return str(caught.value)


def test_a_rank_that_is_late_for_the_first_call(ranks: Pool) -> None:
    texts = ranks(3).run(_comes_late)
    assert len(set(texts)) == 1, "all ranks are told the same, the late one too"
    assert "no ring of 3 ranks within 1.0 s (timed out); did not come: rank 1" in texts[0]
    ranks(3).run(_connect_again)


def _connect_again(rank: int, size: int) -> None:
    """A failed attempt does not prevent the next one."""
    connected(size, timedelta(seconds=30)).close()


def _wait_with_a_timeout(rank: int, size: int) -> None:
    x = values(rank)
    if rank == 0:
        work = ringkern.ring_all_reduce(x, async_op=True)
        assert work is not None
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait(timedelta(milliseconds=50))
        dist.barrier()
        assert work.wait() is True  # only the wait ended, not the call
    else:
        dist.barrier()
        ringkern.ring_all_reduce(x)
    assert torch.equal(x, summed(size))


def test_wait_with_a_timeout(ranks: Pool) -> None:
    ranks(2).run(_wait_with_a_timeout)
