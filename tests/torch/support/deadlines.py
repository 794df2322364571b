"""Probes of deadlines, and of other ends of a wait for a rank that does not come: rank 0."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tests.torch.support.groups import SOON, own_group
from tests.torch.support.registry import TORCH_ASKS, UnexpectedError, expect, row

SECTION = "Deadlines"
RESCUE_S = 4  # rank 0 joins after this time, for ranks that no deadline has ended


def _raises(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise UnexpectedError("no error")


def _ended(group: dist.ProcessGroup, rank: int) -> str:
    return f"{group.group_name}/ended/{rank}"


def _end(group: dist.ProcessGroup, call: Callable[[], Any]) -> None:
    """Makes a call that must end although rank 0 does not take part. Tells rank 0 when it has
    ended.
    """
    key = _ended(group, dist.get_rank())
    try:
        call()
    finally:
        c10d._get_default_store().set(key, "")


def _still_waiting(group: dist.ProcessGroup) -> list[int]:
    """Returns the ranks whose call has not ended after a while, so that rank 0 joins them after
    all.
    """
    store = c10d._get_default_store()
    limit = time.monotonic() + RESCUE_S
    waiting = [1, 2]
    while waiting and time.monotonic() < limit:
        time.sleep(0.05)
        waiting = [rank for rank in waiting if not store.check([_ended(group, rank)])]
    return waiting


def _expect_none(waiting: list[int]) -> None:
    expect(not waiting, f"still waiting after {RESCUE_S} s")


@row(SECTION, "ProcessGroup.set_timeout", "then a collective that a rank misses raises")
def collective(rank: int, size: int) -> None:
    with own_group(SOON) as group:
        if rank:
            _raises(lambda: dist.all_reduce(torch.zeros(1), group=group))


@row(SECTION, "ProcessGroup.set_timeout", "then a `recv` without a `send` raises")
def recv(rank: int, size: int) -> None:
    waiting = []
    with own_group(SOON) as group:
        if rank:
            _end(group, lambda: _raises(lambda: dist.recv(torch.zeros(1), 0, group=group)))
        else:
            waiting = _still_waiting(group)
            for other in waiting:
                dist.send(torch.zeros(1), other, group=group)
    _expect_none(waiting)


@row(SECTION, "new_group", "`timeout=` holds for a collective that a rank misses")
def of_new_group(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=3))
    dist.all_reduce(torch.ones(1), group=group)
    if rank:
        _raises(lambda: dist.all_reduce(torch.zeros(1), group=group))
    dist.barrier()
    dist.destroy_process_group(group)


@row(SECTION, "Work.wait", "`timeout=` of a collective that a rank misses")
def of_wait(rank: int, size: int) -> None:
    """The collective itself continues, and ends when the rank has come."""
    waiting = []
    with own_group() as group:
        x = torch.ones(1)
        if rank:
            work = dist.all_reduce(x, group=group, async_op=True)
            _end(group, lambda: _raises(lambda: work.wait(SOON)))
        else:
            waiting = _still_waiting(group)
            dist.all_reduce(x, group=group)
    _expect_none(waiting)


@row(SECTION, "Work.exception", "says why a collective failed")
def of_exception(rank: int, size: int) -> None:
    with own_group(SOON) as group:
        if rank:
            work = dist.all_reduce(torch.zeros(1), group=group, async_op=True)
            _raises(work.wait)
            expect(work.is_completed() and not work.is_success(), "is_success() after a failure")
            expect(work.exception() is not None, "exception() is None after a failure")


@row(SECTION, "barrier", "`timeout=` when a rank is missing")
def of_barrier(rank: int, size: int) -> None:
    with own_group() as group:
        if rank:
            _raises(lambda: dist.barrier(group=group, timeout=SOON))


def _missing(rank: int, barrier: Callable[[dist.ProcessGroup], Any]) -> None:
    with own_group() as group:
        if rank != 1:
            error = _raises(lambda: barrier(group))
            if "only implemented" in str(error):
                raise error
            expect(rank or re.search("Ranks? 1", str(error)), f"not named: {error}")


@row(SECTION, "monitored_barrier", "names the rank that is missing", remark=TORCH_ASKS)
def of_monitored_barrier(rank: int, size: int) -> None:
    _missing(rank, lambda group: dist.monitored_barrier(group, timeout=SOON))


@row(SECTION, "ProcessGroup.monitored_barrier", "names the rank that is missing")
def of_monitored_barrier_method(rank: int, size: int) -> None:
    _missing(rank, lambda group: group.monitored_barrier(SOON, wait_all_ranks=True))


@row(SECTION, "destroy_process_group", "does not wait for a collective that a rank misses")
def of_destroy(rank: int, size: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=4 * RESCUE_S))
    dist.all_reduce(torch.ones(1), group=group)
    waiting = []
    if rank:
        work = dist.all_reduce(torch.zeros(1), group=group, async_op=True)
        _end(group, lambda: dist.destroy_process_group(group))
        del work
    else:
        waiting = _still_waiting(group)
        if waiting:
            dist.all_reduce(torch.zeros(1), group=group)
        dist.destroy_process_group(group)
    dist.barrier()
    _expect_none(waiting)


@row(SECTION, "ProcessGroup.abort", "ends a collective that is under way")
def of_abort(rank: int, size: int) -> None:
    waiting = []
    with own_group(timedelta(seconds=4 * RESCUE_S)) as group:
        if rank:
            work = dist.all_reduce(torch.zeros(1), group=group, async_op=True)
            time.sleep(0.2)  # the call must be under way
            group.abort()
            _end(group, lambda: _raises(work.wait))
        else:
            waiting = _still_waiting(group)
            if waiting:
                dist.all_reduce(torch.zeros(1), group=group)
    _expect_none(waiting)
