"""Ranks with several threads: results, and ranks that differ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.backend import Options
from tests.ranks import Pool
from tests.torch.rings import normal, same

# From 256 KiB on a call has several parts; these are elements of 4 bytes, on both sides of that.
COUNTS = (1000, (1 << 16) - 1, 1 << 16, 300_007)
CORES = len(os.sched_getaffinity(0))
TWO = min(2, CORES)  # the most of two threads that there can be here


@contextmanager
def _torch_threads(number: int) -> Iterator[None]:
    """Sets torch's threads, and afterwards one, as the ranks of all other tests have."""
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def _every_call(rank: int, size: int, threads: list[int]) -> int:
    with _torch_threads(threads[rank]):
        return _compare(rank, size)


def _compare(rank: int, size: int) -> int:
    one = ringkern.Communicator(threads=1)
    several = ringkern.Communicator(threads=2)
    group, group_of_one = (
        dist.new_group(backend="ringkern", pg_options=Options(threads=threads))
        for threads in (2, 1)
    )
    assert one.threads == 1
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for count in COUNTS:
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
                given = normal(torch.float32, (count,), rank, count).mul(50).to(dtype)
                wanted = given.clone()
                one.all_reduce(wanted, op)
                shared = ringkern.empty(count, dtype=dtype)
                plain, later, wrapped = (shared.copy_(given).clone() for _ in range(3))
                several.all_reduce(plain, op)
                several.all_reduce(shared, op)
                work = several.all_reduce(later, op, async_op=True)
                assert work is not None
                work.wait()
                dist.all_reduce(wrapped, op, group)
                for found in (plain, shared, later, wrapped):
                    assert same(found, wanted), (rank, dtype, count, op)
            for found, wanted in zip(
                _others(given, group, size), _others(given, group_of_one, size), strict=True
            ):
                assert same(found, wanted), (rank, dtype, count)
    torch.set_num_threads(1)  # one thread runs all parts now
    x = torch.ones(COUNTS[-1])
    several.all_reduce(x)
    assert x.eq(size).all()
    for ring in (one, several):
        ring.close()
    for made in (group, group_of_one):
        dist.destroy_process_group(made)
    return several.threads


def _others(given: torch.Tensor, group: dist.ProcessGroup, size: int) -> list[torch.Tensor]:
    """Returns the results of the collectives that take the ring."""
    gathered = given.new_empty(size * len(given))
    dist.all_gather_into_tensor(gathered, given, group)
    part = given.new_empty(len(given))
    dist.reduce_scatter_tensor(part, gathered + given.repeat(size), group=group)
    sent, sum_ = given.clone(), given.clone()
    dist.broadcast(sent, 1, group)
    dist.reduce(sum_, size - 1, group=group)
    return [gathered, part, sent, sum_ if dist.get_rank() == size - 1 else sent]


@pytest.mark.parametrize(
    ("threads", "expected"), [([2, 2, 2], TWO), ([3, 2, 4], TWO), ([2, 2, 1], 1)]
)
def test_every_call(ranks: Pool, threads: list[int], expected: int) -> None:
    """The bits are those of one thread; all ranks use the least number of threads."""
    assert ranks(3).run(_every_call, threads, timeout_s=150) == [expected] * 3


def _fewer_later(rank: int, size: int) -> float:
    with _torch_threads(2), ringkern.Communicator(threads=2) as ring:
        torch.set_num_threads(1 + rank)  # rank 0 runs its parts one after the other
        x = torch.full((COUNTS[-1],), rank + 1.0)
        ring.all_reduce(x)
        return x.mean().item()


def test_a_rank_may_have_fewer_threads_later(ranks: Pool) -> None:
    assert ranks(2).run(_fewer_later) == [3.0, 3.0]


def _shares(rank: int, size: int) -> tuple[int, int]:
    with (
        _torch_threads(CORES),
        ringkern.Communicator() as by_itself,
        ringkern.Communicator(threads=256) as asked,
    ):
        return by_itself.threads, asked.threads


def test_by_itself_a_rank_takes_its_share_of_the_cores(ranks: Pool) -> None:
    assert ranks(2).run(_shares) == [(max(1, CORES // 2), CORES)] * 2


def test_a_wrong_number_is_refused() -> None:
    store = dist.HashStore()
    for threads in (0, -1, 257):
        with pytest.raises(ValueError, match=f"threads is {threads}; give 1 to 256, or None"):
            ringkern.Communicator.from_store(store, 0, 1, threads=threads)
        with pytest.raises(ValueError, match="give 1 to 256"):
            Options(threads=threads)
