"""Work of the backend: asynchronous calls, their futures, and coalesced calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import Pool, grid
from tests.torch.rings import CONVERTS_EXCEPTIONS, ring

Call = Callable[[], dist.Work]


def calls(
    rank: int, size: int, group: dist.ProcessGroup
) -> dict[str, tuple[Call, list[torch.Tensor], list[float]]]:
    """Yields every asynchronous collective: its call, outputs, and expected values."""
    mine = torch.full((5,), rank + 1.0)
    everyone, total = [r + 1.0 for r in range(size)], size * (size + 1) / 2
    root = rank == size - 1
    asynchronous: dict[str, Any] = {"group": group, "async_op": True}
    x, y, z = mine.clone(), mine.clone(), mine.clone()
    whole, single = torch.zeros(size, 5), torch.zeros(size, 5)
    gathered, at_root, exchanged = ([torch.zeros(5) for _ in range(size)] for _ in range(3))
    one, part, mine_of_list = torch.zeros(5), torch.zeros(5), torch.zeros(5)
    copies = [mine] * size
    return {
        "all_reduce": (lambda: dist.all_reduce(x, **asynchronous), [x], [total]),
        "broadcast": (lambda: dist.broadcast(y, 0, **asynchronous), [y], [1.0]),
        "reduce": (
            lambda: dist.reduce(z, size - 1, **asynchronous),
            [z],
            [total if root else rank + 1.0],
        ),
        "all_gather": (lambda: dist.all_gather(gathered, mine, **asynchronous), gathered, everyone),
        "all_gather_into_tensor": (
            lambda: dist.all_gather_into_tensor(whole, mine, **asynchronous),
            [whole],
            everyone,
        ),
        "reduce_scatter": (
            lambda: dist.reduce_scatter(part, copies, **asynchronous),
            [part],
            [total],
        ),
        "reduce_scatter_tensor": (
            lambda: dist.reduce_scatter_tensor(mine_of_list, torch.stack(copies), **asynchronous),
            [mine_of_list],
            [total],
        ),
        "gather": (
            lambda: dist.gather(mine, at_root if root else None, size - 1, **asynchronous),
            at_root if root else [],
            everyone if root else [],
        ),
        "scatter": (
            lambda: dist.scatter(one, copies if rank == 0 else None, 0, **asynchronous),
            [one],
            [1.0],
        ),
        "all_to_all": (
            lambda: dist.all_to_all(exchanged, copies, **asynchronous),
            exchanged,
            everyone,
        ),
        "all_to_all_single": (
            lambda: dist.all_to_all_single(single, torch.stack(copies), **asynchronous),
            [single],
            everyone,
        ),
        "barrier": (lambda: dist.barrier(**asynchronous), [], []),
    }


def check(outputs: list[torch.Tensor], wanted: list[float]) -> None:
    values = torch.cat([x.view(-1, 5) for x in outputs]) if outputs else torch.zeros(0, 5)
    assert values.tolist() == [[w] * 5 for w in wanted]


def _each(rank: int, size: int) -> None:
    for name, (call, outputs, wanted) in calls(rank, size, ring()).items():
        work = call()
        assert isinstance(work, dist.Work), name
        assert work.wait() is True, name
        assert work.is_completed(), name
        assert work.is_success(), name
        assert not CONVERTS_EXCEPTIONS or work.exception() is None, name
        assert work.wait() is True, "any number of times"
        check(outputs, wanted)
        result = work.result()
        future = work.get_future()
        assert future.done(), name
        for found in (result, future.value(), future.wait()):
            assert len(found) == len(outputs), name
            assert all(a.data_ptr() == b.data_ptr() for a, b in zip(found, outputs)), name


@grid(1, 2, 3, 4)
def test_the_work_of_every_collective(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_each)


def _together(rank: int, size: int) -> None:
    """Starts all at once, over the ring and between pairs; waits for the last first."""
    rounds = [calls(rank, size, ring()) for _ in range(4)]
    works = [call() for each in rounds for call, _, _ in each.values()]
    for work in reversed(works):
        work.wait()
    for each in rounds:
        for _, outputs, wanted in each.values():
            check(outputs, wanted)


@grid(2, 3, 4)
def test_all_at_once(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_together)


# Sends of rank 0 may end before the others receive.
GIVEN = ("broadcast", "reduce", "gather", "scatter")


def _incomplete(rank: int, size: int) -> None:
    """A call is not done before the others join; a wait may time out before the call."""
    group, store = ring(), dist.distributed_c10d._get_default_store()
    dist.barrier(group=group)
    for name, (call, outputs, wanted) in calls(rank, size, group).items():
        if rank != 0:
            store.wait([f"incomplete/{name}"])
        work = call()
        if rank == 0:
            if name not in GIVEN:
                assert not work.is_completed(), name
                assert not work.get_future().done(), name
                with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
                    work.wait(timedelta(milliseconds=20))
            store.set(f"incomplete/{name}", "go")
        assert work.wait() is True
        check(outputs, wanted)


@grid(2)
def test_a_wait_that_is_too_short(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_incomplete)


def _in_order(rank: int, size: int) -> None:
    group, done = ring(), []
    tensors = [torch.full((1000 * (i % 7) + 1,), i + rank, dtype=torch.int64) for i in range(200)]
    works = [dist.all_reduce(x, group=group, async_op=True) for x in tensors]
    futures = [
        work.get_future().then(lambda _, i=i: done.append(i)) for i, work in enumerate(works)
    ]
    torch.futures.wait_all(futures)
    assert all(work.is_completed() for work in works)
    assert all(bool((x == size * i + sum(range(size))).all()) for i, x in enumerate(tensors))
    # A callback added to a finished future runs at once, so only the order of the calls is certain.
    assert sorted(done) == list(range(200))


@grid(2, 3, 4)
def test_many_calls_in_flight(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_in_order)


def _mixed(rank: int, size: int) -> None:
    """Synchronous calls follow earlier asynchronous ones, and see their result."""
    group = ring()
    x = torch.ones(70_000, dtype=torch.int64)
    for _ in range(10):
        work = dist.all_reduce(x, group=group, async_op=True)
        dist.broadcast(x, size - 1, group=group)
        assert work is not None
        assert work.is_completed()
        y = torch.zeros(size, dtype=torch.int64)
        dist.all_to_all_single(y, x[:size].clone(), group=group)
        x[:] = x // size + (y[0] - x[0]) + 1
    assert torch.equal(x, torch.full_like(x, 11))


@grid(2, 3, 4)
def test_synchronous_calls_between_asynchronous_ones(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_mixed)


def _threads(rank: int, size: int) -> None:
    """One thread for each group; the groups do not wait for each other."""
    groups = [dist.new_group(backend="ringkern") for _ in range(3)]
    failed: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for n in range(30):
                x = torch.full((n + 1,), float(i))
                dist.all_reduce(x, group=groups[i])
                assert x.tolist() == [float(i * size)] * (n + 1)
                y = torch.zeros(size)
                dist.all_to_all_single(y, torch.full((size,), float(i)), group=groups[i])
                assert y.tolist() == [float(i)] * size
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    for group in groups:
        dist.destroy_process_group(group)


@grid(2)
def test_a_thread_for_each_group(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_threads)
