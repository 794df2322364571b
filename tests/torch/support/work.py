"""Probes of Work, the result of a call with `async_op=True`."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tests.torch.support.data import digits, same
from tests.torch.support.registry import expect, row

SECTION = "Work"


def _started(rank: int) -> tuple[torch.Tensor, dist.Work]:
    x = digits(rank).float()
    return x, dist.all_reduce(x, async_op=True)


def _sum(size: int) -> torch.Tensor:
    return torch.stack([digits(s).float() for s in range(size)]).sum(0)


@row(SECTION, "Work.wait Work.is_completed Work.is_success Work.exception")
def wait(rank: int, size: int) -> None:
    x, work = _started(rank)
    expect(work.wait() is True, "wait() is not True")
    same(x, _sum(size))
    expect(work.is_completed(), "not completed after wait()")
    expect(work.is_success(), "no success after wait()")
    expect(work.exception() is None, f"an exception: {work.exception()}")


@row(SECTION, "Work.is_completed", "becomes true without `wait`")
def polled(rank: int, size: int) -> None:
    x, work = _started(rank)
    while not work.is_completed():  # the ranks' time limit ends it
        time.sleep(0.001)
    same(x, _sum(size))


@row(SECTION, "Work.wait", "waits for what comes later only")
def not_at_once(rank: int, size: int) -> None:
    x = torch.zeros(27)
    store = c10d._get_default_store()
    if rank == 0:
        work = dist.irecv(x, 1)
        expect(not work.is_completed(), "completed before anything was sent")
        store.set("works/posted", "1")
        work.wait()
        same(x, digits(1).float())
    if rank == 1:
        store.wait(["works/posted"])
        dist.send(digits(1).float(), 0)
    dist.barrier()
    if rank == 0:
        store.delete_key("works/posted")


@row(SECTION, "Work.synchronize")
def synchronize(rank: int, size: int) -> None:
    x, work = _started(rank)
    work.synchronize()
    work.wait()
    same(x, _sum(size))


@row(SECTION, "Work.result")
def result(rank: int, size: int) -> None:
    _, work = _started(rank)
    work.wait()
    (got,) = work.result()
    same(got, _sum(size))


@row(SECTION, "Work.source_rank", "of `irecv(src=None)`")
def source_rank(rank: int, size: int) -> None:
    if rank == 1:
        dist.send(digits(1).float(), 0)
    if rank == 0:
        work = dist.irecv(torch.zeros(27))
        work.wait()
        expect(work.source_rank() == 1, f"the source is {work.source_rank()}")


@row(SECTION, "Work.get_future", "of a collective")
def get_future(rank: int, size: int) -> None:
    x, work = _started(rank)
    future = work.get_future()
    future.wait()
    (got,) = future.value()
    expect(future.done() and got.data_ptr() == x.data_ptr(), "the value is not the tensor")
    same(got, _sum(size))


@row(SECTION, "Work.get_future", "`then`")
def then(rank: int, size: int) -> None:
    _, work = _started(rank)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    same(doubled, _sum(size) * 2)


@row(SECTION, "Work.get_future", "of `barrier`")
def future_of_barrier(rank: int, size: int) -> None:
    dist.barrier(async_op=True).get_future().wait()


@row(SECTION, "Work.get_future", "of `irecv`")
def future_of_irecv(rank: int, size: int) -> None:
    got = torch.zeros(27)
    works = [dist.irecv(got, (rank - 1) % size), dist.isend(digits(rank).float(), (rank + 1) % 3)]
    futures = error = None
    try:
        futures = [work.get_future() for work in works]
    except RuntimeError as raised:
        error = raised
    for waited in futures or works:
        waited.wait()
    if error:
        raise error
    same(got, digits((rank - 1) % size).float())


@row(SECTION, "Work.get_future_result")
def future_result(rank: int, size: int) -> None:
    _, work = _started(rank)
    work.wait()
    expect(work.get_future_result().wait() == 0, "not WorkResult.SUCCESS")


@row(SECTION, "Work.boxed Work.unbox", "as an argument of an operator")
def boxed(rank: int, size: int) -> None:
    x, work = _started(rank)
    dist.Work.unbox(work.boxed()).wait()
    same(x, _sum(size))
