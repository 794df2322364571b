"""The contract of the collectives: they behave like torch.distributed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.ranks import Pool

pytestmark = pytest.mark.quick

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX


def values(rank: int, n: int = 1000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns small whole numbers, whose sums are exact in every dtype and order."""
    return ((torch.arange(n) + 3 * rank) % 5).to(dtype)


def summed(size: int, n: int = 1000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return sum(values(rank, n, torch.int64) for rank in range(size)).to(dtype)


class Calls:
    """The three collectives on fresh tensors, with the expected ``output``."""

    def __init__(self, rank: int, size: int, n: int = 600) -> None:
        self.whole, self.shard = values(rank, n), values(rank, n // size)
        self.gathered = torch.cat([values(r, n // size) for r in range(size)])
        self.reduced = summed(size, n)
        self.part = self.reduced.chunk(size)[rank]
        self.size = size

    def start(self, name: str, **kwargs: Any) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """(what the call returned, its output, the expected output)"""
        if name == "all_reduce":
            return ringkern.ring_all_reduce(self.whole, **kwargs), self.whole, self.reduced
        if name == "reduce_scatter":
            out = torch.full_like(self.part, -1)
            return ringkern.ring_reduce_scatter(out, self.whole, **kwargs), out, self.part
        out = torch.full_like(self.gathered, -1)
        return ringkern.ring_all_gather(out, self.shard, **kwargs), out, self.gathered


COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")


# ---- synchronous calls --------------------------------------------------------------------------


def _equals_torch(rank: int, size: int, dtype: torch.dtype) -> None:
    x, y = values(rank, 12 * size, dtype), values(rank, 12 * size, dtype)
    assert ringkern.ring_all_reduce(x) is None
    assert dist.all_reduce(y) is None
    assert torch.equal(x, y)

    whole, mine, theirs = values(rank, 12 * size, dtype), *torch.empty(2, 12, dtype=dtype)
    assert ringkern.ring_reduce_scatter(mine, whole, dist.ReduceOp.MIN) is None
    assert dist.reduce_scatter_tensor(theirs, whole, dist.ReduceOp.MIN) is None
    assert torch.equal(mine, theirs)
    assert torch.equal(whole, values(rank, 12 * size, dtype)), "the input is changed"

    shard, mine, theirs = values(rank, 12, dtype), *torch.empty(2, 12 * size, dtype=dtype)
    assert ringkern.ring_all_gather(mine, shard) is None
    assert dist.all_gather_into_tensor(theirs, shard) is None
    assert torch.equal(mine, theirs)
    assert torch.equal(shard, values(rank, 12, dtype)), "the input is changed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_equals_torch_distributed(ranks: Pool, dtype: torch.dtype) -> None:
    ranks(3).run(_equals_torch, dtype)


def _in_place_shards(rank: int, size: int) -> None:
    whole = values(rank, 10 * size)
    shard = whole[10 * rank : 10 * (rank + 1)]
    ringkern.ring_reduce_scatter(shard, whole)
    assert torch.equal(shard, summed(size, 10 * size)[10 * rank : 10 * (rank + 1)])
    ringkern.ring_all_gather(whole, shard)
    assert torch.equal(whole, summed(size, 10 * size))


def test_a_shard_may_be_this_ranks_part_of_the_whole(ranks: Pool) -> None:
    ranks(3).run(_in_place_shards)


def _layouts(rank: int, size: int) -> None:
    def check(make: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]) -> None:
        n = int(np.prod(shape))
        x = make(values(rank, n).reshape(shape))
        strides = x.stride()
        ringkern.ring_all_reduce(x)
        assert x.stride() == strides
        assert torch.equal(x, summed(size, n).reshape(shape))

    def transposed(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t()

    check(lambda x: x, ())
    check(lambda x: x, (0,))
    check(lambda x: x, (3, 0, 2))
    check(transposed, (7, 5))
    check(lambda x: x.contiguous(memory_format=torch.channels_last), (2, 3, 4, 5))
    check(lambda x: x.repeat_interleave(2)[::2], (50,))
    check(lambda x: torch.cat([torch.zeros(1), x])[1:], (33,))  # not aligned to a word
    # Elements correspond by their index in the tensor, not in memory.
    check(transposed if rank == 0 else lambda x: x, (4, 6))


def test_any_dense_layout(ranks: Pool) -> None:
    ranks(3).run(_layouts)


def _negated_view(rank: int, size: int) -> torch.Tensor:
    # torch stores the minus sign as a flag: the memory holds 1 + rank.
    x = torch.tensor([complex(0, 1 + rank)]).conj().imag
    ringkern.ring_all_reduce(x, MAX)
    return x.clone()


def test_a_view_whose_sign_is_not_in_its_memory(ranks: Pool) -> None:
    assert ranks(2).run(_negated_view) == [torch.tensor([-1.0])] * 2


# ---- asynchronous calls -------------------------------------------------------------------------


def _returns_work(rank: int, size: int, name: str) -> None:
    work, output, expected = Calls(rank, size).start(name, async_op=True)
    assert isinstance(work, dist.Work)
    assert work.wait() is True
    assert work.is_completed()
    assert torch.equal(output, expected)
    future = work.get_future()
    future.wait()
    assert future.done()
    assert [t.data_ptr() for t in future.value()] == [output.data_ptr()]
    assert work.wait() is True  # any number of times


@pytest.mark.parametrize("name", COLLECTIVES)
def test_async_op_returns_a_work(ranks: Pool, name: str) -> None:
    ranks(2).run(_returns_work, name)


def _not_completed_alone(rank: int, size: int) -> None:
    x = values(rank)
    if rank == 0:
        work = ringkern.ring_all_reduce(x, async_op=True)
        assert work is not None
        assert not work.is_completed()
        assert not work.get_future().done()
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        ringkern.ring_all_reduce(x)  # blocks in this thread, asynchronous in the other
    assert torch.equal(x, summed(size))


def test_async_call_returns_before_the_others_come(ranks: Pool) -> None:
    ranks(2).run(_not_completed_alone)


def _call_order(rank: int, size: int) -> None:
    # None of these commutes with the next, so that the result shows the order.
    ops = (SUM, dist.ReduceOp.BXOR, MAX, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN)
    x, y = values(rank, 300, torch.int64) + rank, values(rank, 300, torch.int64) + rank
    works = []
    for i in range(40):
        work = ringkern.ring_all_reduce(x, ops[i % 5], async_op=(i // 2) % 2 == 0)
        assert (work is None) == ((i // 2) % 2 == 1)
        works.append(work)
        dist.all_reduce(y, ops[i % 5])
        if i % 5 == 0:
            y += rank  # ranks differ again
            if work is not None:
                work.wait()
            x += rank
    for work in works:
        if work is not None:
            work.wait()
    assert torch.equal(x, y)


def test_sync_and_async_calls_keep_their_order(ranks: Pool) -> None:
    ranks(2).run(_call_order)


def _many_in_flight(rank: int, size: int) -> None:
    started = []
    for i in range(60):
        n = size * (1, 40, 3000, 70_000)[i % 4]
        started.append(Calls(rank, size, n).start(COLLECTIVES[i % 3], async_op=True))
    for work, output, expected in reversed(started):
        work.wait()
        assert torch.equal(output, expected)


def test_many_calls_in_flight(ranks: Pool) -> None:
    ranks(3).run(_many_in_flight)


def _outlives_its_tensor(rank: int, size: int) -> None:
    works = []
    for _ in range(10):
        x = values(rank, 900).reshape(30, 30).t()
        works.append(ringkern.ring_all_reduce(x, async_op=True))
        del x
    for work in works:
        assert work is not None
        work.wait()
        result = work.get_future().value()[0]
        assert torch.equal(result, summed(size, 900).reshape(30, 30).t())


def test_a_call_in_flight_keeps_its_tensor(ranks: Pool) -> None:
    ranks(2).run(_outlives_its_tensor)


def _threads_wait(rank: int, size: int) -> None:
    x, seen = values(rank, 100_000), []
    work = ringkern.ring_all_reduce(x, async_op=True)
    assert work is not None
    threads = [threading.Thread(target=lambda: seen.append(work.wait())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4
    assert torch.equal(x, summed(size, 100_000))


def test_several_threads_may_wait(ranks: Pool) -> None:
    ranks(2).run(_threads_wait)


# ---- protocols and ops --------------------------------------------------------------------------


def _protocols(rank: int, size: int) -> None:
    for n in (size, 60 * size, 9000 * size):
        for protocol in ("auto", "simple", "ll", "ll128"):
            for name in COLLECTIVES:
                returned, output, expected = Calls(rank, size, n).start(name, protocol=protocol)
                assert returned is None
                assert torch.equal(output, expected), (n, protocol, name)


def test_every_protocol(ranks: Pool) -> None:
    ranks(3).run(_protocols)


def _scaled_ops(rank: int, size: int) -> None:
    x = values(rank)
    ringkern.ring_all_reduce(x, dist.ReduceOp.AVG)
    assert torch.allclose(x, summed(size) / size)
    for factor in (0.5, torch.tensor([0.5])):
        x = values(rank)
        ringkern.ring_all_reduce(x, dist._make_nccl_premul_sum(factor))
        assert torch.equal(x, summed(size) / 2)


def test_avg_and_premul_sum(ranks: Pool) -> None:
    ranks(2).run(_scaled_ops)
