"""Operations in a callback of a backend call's future."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ranks import Pool, grid
from tests.torch.rings import ring

pytestmark = pytest.mark.quick


def _held_back(rank: int, size: int) -> None:
    """Starts calls of rank 0 that cannot end before rank 1 makes them, and attaches callbacks."""
    group, store = ring(), dist.distributed_c10d._get_default_store()
    done: list[int] = []
    if rank == 1:
        store.wait(["held back"])
    tensors = [torch.full((10,), i) for i in range(50)]
    works = [dist.all_reduce(x, group=group, async_op=True) for x in tensors]

    def note(future: torch.futures.Future[Any], i: int) -> None:
        assert future.value()[0].tolist() == [i * size] * 10
        done.append(i)

    futures = [
        work.get_future().then(lambda future, i=i: note(future, i)) for i, work in enumerate(works)
    ]
    if rank == 0:
        assert done == []
        store.set("held back", "go")
    torch.futures.wait_all(futures)
    assert sorted(done) == list(range(50))


@grid(2)
def test_callbacks_of_many_calls(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_held_back)


def _callbacks(rank: int, size: int) -> None:
    x = torch.full((3,), rank + 1.0)
    work = dist.all_reduce(x, group=ring(), async_op=True)
    assert work is not None
    mean = work.get_future().then(lambda future: future.value()[0] / size)
    assert mean.wait().tolist() == [(size + 1) / 2] * 3

    def broken(future: torch.futures.Future[Any]) -> None:
        raise KeyError("in the callback")

    work = dist.all_reduce(x, group=ring(), async_op=True)
    assert work is not None
    with pytest.raises(RuntimeError, match="in the callback"):
        work.get_future().then(broken).wait()
    work.wait()


@grid(2)
def test_callbacks(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_callbacks)


def _own_wait(rank: int, size: int) -> None:
    """A callback waits for its own work, which has ended."""
    group, store = ring(), dist.distributed_c10d._get_default_store()
    for n in (3, 5000):
        x, y = torch.full((n,), rank + 1.0), torch.zeros(n * size)
        starts = (
            lambda x=x: dist.all_reduce(x, group=group, async_op=True),
            lambda y=y: dist.all_to_all_single(y, torch.ones_like(y), group=group, async_op=True),
            lambda x=x: (dist.isend if rank else dist.irecv)(x, 1 - rank, group),
        )
        for i, start in enumerate(starts):
            if rank == 1:
                store.wait([f"own wait/{n}/{i}"])
            work = start()
            future = work.get_future().then(lambda _, work=work: work.wait())
            if rank == 0:
                store.set(f"own wait/{n}/{i}", "go")
            assert future.wait() is True
            assert work.wait() is True


@grid(2)
def test_a_callback_waits_for_its_own_call(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_own_wait, timeout_s=30)


def _calls_in_callbacks(rank: int, size: int) -> list[str]:
    """On rank 0 the callbacks run on the ring's own thread."""
    group, store = ring(), dist.distributed_c10d._get_default_store()
    texts = []
    x, y, z = torch.ones(3), torch.ones(3), torch.ones(3)
    if rank == 1:
        store.wait(["calls in callbacks"])
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    assert work is not None
    if rank == 0:
        more = work.get_future().then(lambda _: dist.all_reduce(x, group=group, async_op=True))
        sync = more.then(lambda _: dist.all_reduce(y, group=group))
        store.set("calls in callbacks", "go")
        more.wait().wait()
        with pytest.raises(RuntimeError) as caught:
            sync.wait()
        texts.append(str(caught.value))
        wait = work.get_future().then(lambda _: dist.isend(z, 1, group))
        wait.wait().wait()
    else:
        dist.all_reduce(x, group=group)
        dist.recv(z, 0, group)
    assert x.tolist() == [float(size)] * 3
    dist.all_reduce(y, group=group)
    assert y.tolist() == [float(size)] * 3
    return texts


@grid(2)
def test_calls_in_a_callback(ranks: Pool, hosts: str) -> None:
    """Asynchronous calls are allowed there; a synchronous one is refused, and nothing is lost."""
    (text,), _ = ranks(hosts).run(_calls_in_callbacks)
    assert "would wait for itself" in text


def _waiting_in_a_callback(rank: int, size: int) -> None:
    store = dist.distributed_c10d._get_default_store()

    def recv(group: dist.ProcessGroup) -> None:
        dist.recv(torch.ones(3), 1 - rank, group)

    def send(group: dist.ProcessGroup) -> None:
        dist.send(torch.ones(3), 1 - rank, group)

    def exchange(group: dist.ProcessGroup) -> None:
        dist.all_to_all_single(torch.ones(2), torch.ones(2), group=group)

    for i, calls in enumerate([(recv, send), (send, recv), (exchange, exchange)]):
        group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=5))
        if rank == 1:
            store.wait([f"waiting in callbacks/{i}"])
            send(group)
            with contextlib.suppress(RuntimeError):  # rank 0 may have refused it
                calls[1](group)
        else:
            work = dist.irecv(torch.zeros(3), 1, group)
            assert work is not None
            future = work.get_future().then(lambda _, call=calls[0], group=group: call(group))
            store.set(f"waiting in callbacks/{i}", "go")
            try:
                future.wait()
            except RuntimeError as error:
                if "would wait for itself" not in str(error):
                    raise
        dist.destroy_process_group(group)


@grid(2)
def test_waiting_in_the_callback_of_a_message(ranks: Pool, hosts: str) -> None:
    """A wait that cannot end is refused, because no timeout would end it."""
    ranks(hosts).run(_waiting_in_a_callback, timeout_s=40)
