"""Coalesced calls, and calls with several tensors."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from ringkern.errors import CollectiveTimeoutError
from tests.ranks import Pool, grid
from tests.torch.rings import CONVERTS_EXCEPTIONS, ring

CPU = torch.device("cpu")
coalescing = dist.distributed_c10d._coalescing_manager


def _manager(rank: int, size: int, device: torch.device | None, async_ops: bool) -> None:
    group, total = ring(), size * (size + 1) / 2
    lengths = (3, 0, 70_000, 1)

    def mine() -> list[torch.Tensor]:
        return [torch.full((n,), rank + 1.0) for n in lengths]

    xs = mine()
    with coalescing(group, device, async_ops) as manager:
        for x in xs:
            dist.all_reduce(x, group=group)
    if async_ops:
        manager.wait()
    assert all(torch.equal(x, torch.full_like(x, total)) for x in xs)

    outs = [torch.zeros(size, n) for n in lengths]
    with coalescing(group, device, async_ops) as manager:
        for out, x in zip(outs, mine()):
            dist.all_gather_into_tensor(out, x, group=group)
    if async_ops:
        manager.wait()
    for out in outs:
        assert all(torch.equal(x, torch.full_like(x, r + 1.0)) for r, x in enumerate(out))

    parts = mine()
    with coalescing(group, device, async_ops) as manager:
        for part, x in zip(parts, mine()):
            dist.reduce_scatter_tensor(part, x.repeat(size), group=group)
    if async_ops:
        manager.wait()
    assert all(torch.equal(x, torch.full_like(x, total)) for x in parts)


@grid(1, 2, 3, 4)
@pytest.mark.parametrize("async_ops", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("device", [None, CPU], ids=["no device", "cpu"])
def test_the_coalescing_manager(
    ranks: Pool, hosts: str, device: torch.device | None, async_ops: bool
) -> None:
    ranks(hosts).run(_manager, device, async_ops)


def _ops_of_the_manager(rank: int, size: int) -> None:
    xs = [torch.tensor([rank + 1.0]), torch.tensor([5.0 - rank])]
    with coalescing(ring()):
        for x in xs:
            dist.all_reduce(x, dist.ReduceOp.MAX, group=ring())
    assert [x.item() for x in xs] == [2.0, 5.0]


@grid(2)
def test_the_op_of_coalesced_calls(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_ops_of_the_manager)


def _what_the_manager_takes_not(rank: int, size: int) -> None:
    """With a device, the end of the manager waits for all calls of any kind inside."""
    group, total = ring(), size * (size + 1) / 2
    x, y, z = (torch.full((5,), rank + 1.0) for _ in range(3))
    out = torch.zeros(size)
    with coalescing(group, CPU, async_ops=True) as manager:
        dist.broadcast(x, 0, group=group, async_op=True)
        dist.reduce(y, 0, group=group, async_op=True)
        dist.all_to_all_single(out, torch.full((size,), float(rank)), group=group, async_op=True)
    manager.wait()
    assert x.tolist() == [1.0] * 5
    assert y.tolist() == [total if rank == 0 else rank + 1.0] * 5
    assert out.tolist() == [float(r) for r in range(size)]
    # Later calls are not counted as coalesced.
    work = dist.all_reduce(z, group=group, async_op=True)
    assert work is not None
    work.wait()
    assert work.result()[0].data_ptr() == z.data_ptr()
    assert z.tolist() == [total] * 5


@grid(1, 2, 3, 4)
def test_other_calls_inside_the_manager(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_what_the_manager_takes_not)


def _joint_work(rank: int, size: int) -> None:
    group = ring()
    xs = [torch.full((n,), rank + 1.0) for n in (3, 70_000)]
    with coalescing(group, CPU, async_ops=True) as manager:
        for x in xs:
            dist.broadcast(x, size - 1, group=group, async_op=True)
    (work,) = manager.works
    assert isinstance(work, dist.Work)
    future = work.get_future()
    found = future.wait()
    assert work.wait() is True
    assert work.is_completed()
    assert work.is_success()
    assert not CONVERTS_EXCEPTIONS or work.exception() is None
    for results in (found, work.result()):
        assert [x.data_ptr() for x in results] == [x.data_ptr() for x in xs]
    assert all(torch.equal(x, torch.full_like(x, float(size))) for x in xs)
    with coalescing(group, CPU):
        pass  # no call at all


@grid(2)
def test_the_work_of_coalesced_calls(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_joint_work)


def _pending(rank: int, size: int) -> None:
    """One of the calls is done long before the other."""
    group, store = ring(), dist.distributed_c10d._get_default_store()
    xs = [torch.full((3,), rank + 1.0) for _ in range(2)]
    if rank == 0:
        with coalescing(group, CPU, async_ops=True) as manager:
            dist.isend(xs[0], 1, group)
            dist.all_reduce(xs[1], group=group, async_op=True)
    else:
        with coalescing(group, CPU, async_ops=True) as manager:
            dist.irecv(xs[0], 0, group)
        manager.wait()
        store.wait(["coalesced"])
        with coalescing(group, CPU, async_ops=True) as manager:
            dist.all_reduce(xs[1], group=group, async_op=True)
    (work,) = manager.works
    if rank == 0:
        assert not work.is_completed()
        assert not work.get_future().done()
        with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
            work.wait(timedelta(milliseconds=20))
        store.set("coalesced", "go")
    assert work.wait() is True
    assert work.is_completed()
    assert [x.tolist() for x in xs] == [[1.0] * 3, [3.0] * 3]


@grid(2)
def test_coalesced_calls_are_done_when_all_are(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_pending)


LATE = r"nothing came for|waited for 0\.3 s \(timed out\)"


def _failing(rank: int, size: int) -> None:
    """One of the calls fails."""
    group = dist.new_group(backend="ringkern")
    dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()
    group.set_timeout(timedelta(seconds=0.3))
    if rank == 0:
        with coalescing(group, CPU, async_ops=True) as manager:
            dist.isend(torch.ones(3), 1, group)
            dist.all_reduce(torch.ones(3), group=group, async_op=True)
        (work,) = manager.works
        with pytest.raises(CollectiveTimeoutError, match=LATE):
            work.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert not CONVERTS_EXCEPTIONS or re.search(LATE, str(work.exception()))
        with pytest.raises(RuntimeError, match=LATE):
            work.get_future().wait()
    else:
        dist.recv(torch.ones(3), 0, group)
    dist.barrier()
    dist.destroy_process_group(group)


@grid(2)
def test_a_coalesced_call_that_fails(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_failing)


@pytest.mark.filterwarnings("ignore:.*will be deprecated")
def _lists(rank: int, size: int) -> None:
    group, total = ring(), size * (size + 1) / 2
    xs = [torch.full((2, 3), rank + 1.0), torch.full((70_000,), rank + 1.0)]
    dist.all_reduce_coalesced(xs, group=group)
    assert all(torch.equal(x, torch.full_like(x, total)) for x in xs)
    mine = [torch.full((2, 3), rank + 1.0), torch.full((5,), rank + 1.0)]
    outs = [[torch.zeros(2, 3), torch.zeros(5)] for _ in range(size)]
    dist.all_gather_coalesced(outs, mine, group=group)
    for r, of_rank in enumerate(outs):
        assert all(torch.equal(x, torch.full_like(x, r + 1.0)) for x in of_rank)
    work = dist.all_gather_coalesced(outs, mine, group=group, async_op=True)
    assert work is not None
    work.wait()


@grid(1, 2, 3, 4)
@pytest.mark.filterwarnings("ignore")
def test_calls_of_several_tensors(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_lists)


def _functional(rank: int, size: int) -> None:
    """The collectives of torch.compile, DTensor and FSDP."""
    group, total = ring(), size * (size + 1) / 2
    mine = torch.full((4, 3), rank + 1.0)
    assert torch.equal(functional.all_reduce(mine, "sum", group), torch.full((4, 3), total))
    assert torch.equal(functional.all_reduce(mine, "avg", group), torch.full((4, 3), total / size))
    complex_ = functional.all_reduce(torch.complex(mine, -mine), "sum", group)
    assert torch.equal(complex_.imag, torch.full((4, 3), -total))
    whole = functional.all_gather_tensor(mine, 0, group)
    assert torch.equal(whole[:, 0], torch.arange(1.0, size + 1).repeat_interleave(4))
    wide = functional.all_gather_tensor(mine, 1, group)
    assert torch.equal(wide[0], torch.arange(1.0, size + 1).repeat_interleave(3))
    part = functional.reduce_scatter_tensor(whole, "sum", 0, group)
    assert torch.equal(part, torch.full((4, 3), size * (rank + 1.0)))
    assert torch.equal(functional.broadcast(mine, size - 1, group), torch.full((4, 3), size * 1.0))
    exchanged = functional.all_to_all_single(whole, None, None, group)
    assert torch.equal(exchanged, torch.full_like(exchanged, rank + 1.0))
    many = functional.all_reduce_coalesced([mine, 2 * mine], "sum", group)
    assert [x.unique().tolist() for x in many] == [[total], [2 * total]]
    for out in functional.all_gather_into_tensor_coalesced([mine, mine], group):
        assert torch.equal(out, whole)
    for out in functional.reduce_scatter_tensor_coalesced([whole, whole], "sum", [0, 0], group):
        assert torch.equal(out, part)


@grid(1, 2, 3, 4)
def test_functional_collectives(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_functional)
