"""Ranks that do not come, give up or die: the others get an error in time that names the rank."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ringkern.errors import CollectiveTimeoutError, CommAbortedError, RingKernError
from tests.ranks import Pool, Ranks, grid
from tests.torch.rings import ring
from tests.torch.test_backend_input import check_that_it_works

NEVER = timedelta(seconds=600)  # an event earlier than this was not caused by it
SOON = timedelta(seconds=1)
LATE = r"(nothing came|waited) for 0\.3 s"

# Calls of rank 0 while rank 1 does not come. A send, and the root's part, may end without it.
CALLS: dict[str, Callable[[int, dist.ProcessGroup], Any]] = {
    "all_reduce": lambda k, g: dist.all_reduce(torch.ones(5), group=g),
    "barrier": lambda k, g: dist.barrier(group=g),
    "broadcast": lambda k, g: dist.broadcast(torch.ones(5), 1, group=g),
    "reduce": lambda k, g: dist.reduce(torch.ones(5), 0, group=g),
    "all_gather": lambda k, g: dist.all_gather([torch.ones(5) for _ in range(k)], torch.ones(5), g),
    "reduce_scatter": lambda k, g: dist.reduce_scatter_tensor(
        torch.ones(5), torch.ones(5 * k), group=g
    ),
    "gather": lambda k, g: dist.gather(
        torch.ones(5), [torch.ones(5) for _ in range(k)], 0, group=g
    ),
    "scatter": lambda k, g: dist.scatter(torch.ones(5), None, 1, group=g),
    "all_to_all": lambda k, g: dist.all_to_all_single(torch.ones(k), torch.ones(k), group=g),
    "recv": lambda k, g: dist.recv(torch.ones(5), 1, g),
    "recv from anybody": lambda k, g: dist.recv(torch.ones(5), None, g),
    "large send": lambda k, g: dist.send(torch.ones(4_000_000), 1, g),
    "sparse all_reduce": lambda k, g: dist.all_reduce(torch.eye(3).to_sparse(), group=g),
}


def made(timeout: timedelta, of_making: float = 60) -> dist.ProcessGroup:
    """Makes a group that the test may break. Its ranks have connected, which may take longer than
    `timeout`.
    """
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=of_making))
    check_that_it_works(dist.get_rank(), dist.get_world_size(), group)
    dist.barrier()
    group.set_timeout(timeout)
    return group


def failed(error: type[BaseException], call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(error) as caught:
        call(*arguments)
    assert type(caught.value) is error
    return str(caught.value)


# ---- a rank that does not come ------------------------------------------------------------------


def _missing(rank: int, size: int, names: list[str]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for name in names:
        group = made(timedelta(seconds=0.3))
        if rank == 0:
            call = CALLS[name]
            first = failed(CollectiveTimeoutError, call, size, group)
            again = failed(CommAbortedError, call, size, group)
            texts[name] = [first, again]
        dist.barrier()
        dist.destroy_process_group(group)
    check_that_it_works(rank, size, ring())
    return texts


def test_a_rank_that_does_not_come(ranks: Pool) -> None:
    found = ranks(2).run(_missing, list(CALLS))[0]
    assert found.keys() == CALLS.keys()
    for name, (first, again) in found.items():
        assert "rank 0 waited" in first, name
        assert ("rank 1" in first) or name == "recv from anybody", (name, first)
        assert "0.3 s" in first, name
        assert first in again, "says again what went wrong first"


def _missing_async(rank: int, size: int) -> None:
    for start in (
        lambda g: dist.all_reduce(torch.ones(5), group=g, async_op=True),
        lambda g: dist.all_to_all_single(torch.ones(2), torch.ones(2), group=g, async_op=True),
        lambda g: dist.irecv(torch.ones(2), 1, g),
    ):
        group = made(timedelta(seconds=0.3))
        if rank == 0:
            work, behind = start(group), start(group)
            first = failed(CollectiveTimeoutError, work.wait)
            assert failed(CollectiveTimeoutError, work.wait) == first
            assert work.is_completed()
            assert not work.is_success()
            with pytest.raises(RuntimeError, match=LATE):
                work.get_future().wait()
            with pytest.raises(RuntimeError, match=LATE):
                work.get_future().then(lambda f: f.value()).wait()
            with pytest.raises(RingKernError, match=LATE):
                behind.wait()
        dist.barrier()
        dist.destroy_process_group(group)
    check_that_it_works(rank, size, ring())


@grid(2)
def test_the_work_of_a_call_that_failed(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_missing_async)


def _own_timeout(rank: int, size: int) -> list[str]:
    texts = []
    reduce, exchange, late = dist.AllreduceOptions(), c10d.AllToAllOptions(), c10d.BarrierOptions()
    for options in (reduce, exchange, late):
        options.timeout = timedelta(seconds=0.3)
    calls: list[Callable[[dist.ProcessGroup], object]] = [
        lambda g: g.allreduce([torch.ones(3)], reduce).wait(),
        lambda g: g.barrier(late).wait(),
        lambda g: g.alltoall_base(torch.ones(2), torch.ones(2), [], [], exchange).wait(),
    ]
    for call in calls:
        group = made(NEVER)
        if rank == 0:
            texts.append(failed(CollectiveTimeoutError, call, group))
        dist.barrier()
        dist.destroy_process_group(group)
    return texts


@grid(2)
def test_timeouts_of_single_calls(ranks: Pool, hosts: str) -> None:
    texts = ranks(hosts).run(_own_timeout)[0]
    assert len(texts) == 3
    assert all(re.search(LATE, text) for text in texts), texts


def _never_met(rank: int, size: int) -> list[str]:
    """No rank has ever joined the group."""
    texts = []
    for name in ("all_reduce", "all_to_all"):
        dist.barrier()
        group = dist.new_group(backend="ringkern", timeout=SOON)
        if rank == 0:
            with pytest.raises(RingKernError) as caught:
                CALLS[name](size, group)
            texts.append(f"{type(caught.value).__name__}: {caught.value}")
        dist.barrier()
        dist.destroy_process_group(group)
    return texts


def test_ranks_that_have_never_met(ranks: Pool) -> None:
    ring_text, pair_text = ranks(2).run(_never_met)[0]
    assert "did not come: rank 1" in ring_text
    assert "rank 1" in pair_text


# ---- abort --------------------------------------------------------------------------------------


def _abort(rank: int, size: int, how: str) -> list[str]:
    texts = []
    for name in ("all_reduce", "all_to_all"):
        group = made(NEVER)
        if rank == 0 and how == "torch":
            c10d._abort_process_group(group)
            dist.barrier()
            continue
        if rank == 0:
            threading.Timer(0.2, group.abort).start()
        if rank < 2:
            texts.append(failed(CommAbortedError, CALLS[name], size, group))
        dist.barrier()
        if rank == 2:  # comes after the failure
            texts.append(failed(CommAbortedError, CALLS[name], size, group))
        dist.destroy_process_group(group)
    check_that_it_works(rank, size, ring())
    return texts


# Not on three hosts: a rank alone on its host may receive the others' data, and be told later.
@pytest.mark.parametrize("hosts", ["aaa", "abb", "aba"])
@pytest.mark.parametrize("how", ["method", "torch"])
def test_abort(ranks: Pool, how: str, hosts: str) -> None:
    """One rank aborts: all ranks' calls end."""
    for rank, texts in enumerate(ranks(hosts).run(_abort, how)):
        assert len(texts) == (0 if (rank, how) == (0, "torch") else 2)
        assert all("aborted" in text for text in texts), texts
        if texts:
            assert "the process group was aborted" in texts[1], texts
            assert rank > 0 or "the process group was aborted" in texts[0], texts


def _in_no_call(rank: int, size: int) -> str:
    group, text = made(NEVER), ""
    if rank == 1:
        group.abort()
    dist.barrier()
    if rank == 2:
        time.sleep(2)  # time in which its ring is told
        text = failed(CommAbortedError, CALLS["all_reduce"], size, group)
    dist.barrier()
    dist.destroy_process_group(group)
    return text


def test_abort_while_a_rank_is_in_no_call(ranks: Pool) -> None:
    text = ranks("abb").run(_in_no_call)[2]
    assert text == (
        "aborted by rank 1 on host b: the process group was aborted. Here: rank 2 on host b was in "
        "no call"
    )


def _abort_at_first(rank: int, size: int) -> None:
    """Aborts while this rank's first call waits for the other, which comes after it."""
    group = dist.new_group(backend="ringkern", timeout=timedelta(seconds=60))
    if rank == 0:
        threading.Timer(0.3, group.abort).start()
        failed(CommAbortedError, CALLS["all_reduce"], size, group)
    dist.barrier()
    if rank > 0:
        start = time.monotonic()
        with pytest.raises(RingKernError, match="the process group was aborted"):
            CALLS["all_reduce"](size, group)
        assert time.monotonic() - start < 20
    dist.destroy_process_group(group)


@grid(2)
def test_abort_of_a_first_call(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_abort_at_first)


def _abort_in_flight(rank: int, size: int) -> None:
    group = made(NEVER)
    if rank == 0:
        works = [dist.all_reduce(torch.ones(5), group=group, async_op=True) for _ in range(3)]
        works += [dist.irecv(torch.ones(5), 1, group, tag=t) for t in range(3)]
        group.abort()
        for work in works:
            assert work is not None
            assert "the process group was aborted" in failed(CommAbortedError, work.wait)
        failed(CommAbortedError, dist.irecv, torch.ones(5), 1, group)
        group.abort()  # any number of times
    dist.barrier()
    dist.destroy_process_group(group)
    check_that_it_works(rank, size, ring())


@grid(2)
def test_abort_of_calls_in_flight(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_abort_in_flight)


# ---- destroyed while in use ---------------------------------------------------------------------


def _finishes(rank: int, size: int) -> None:
    """destroy_process_group finishes earlier calls."""
    group = made(NEVER)
    tensors = [torch.full((100_000,), rank + 1.0) for _ in range(10)]
    received = [torch.zeros(100_000) for _ in range(10)]
    for x, y in zip(tensors, received):
        dist.isend(torch.full((100_000,), float(rank)), 1 - rank, group)
        dist.irecv(y, 1 - rank, group)
        dist.all_reduce(x, group=group, async_op=True)
    dist.destroy_process_group(group)
    assert all(bool((x == 3).all()) for x in tensors)
    assert all(bool((y == 1 - rank).all()) for y in received)


@grid(2)
def test_destroying_finishes_what_was_called(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_finishes)


def _never_comes(rank: int, size: int) -> list[str]:
    group = made(NEVER)
    works, kinds = [], []
    if rank == 0:
        works = [dist.irecv(torch.ones(n), 1, group, tag=n) for n in (5, 5000)]
        dist.destroy_process_group(group)
    dist.barrier()
    for work in works:
        assert work is not None
        with pytest.raises(RingKernError) as caught:
            work.wait()
        kinds.append(type(caught.value).__name__)
    if rank > 0:
        dist.destroy_process_group(group)
    return kinds


@grid(2)
def test_destroying_ends_what_does_not_come(ranks: Pool, hosts: str) -> None:
    assert ranks(hosts).run(_never_comes)[0] == ["CommAbortedError"] * 2


# No rank waits for its timeout.
GONE = {"all_reduce": NEVER, "all_to_all": NEVER, "recv": NEVER}


def _destroyed(rank: int, size: int) -> list[str]:
    """A rank destroys the group while another uses it, or starts a call up to a second later."""
    texts = []
    for name, later_s in itertools.product(GONE, (0, 1)):
        group = made(GONE[name])
        if rank == 0:
            time.sleep(later_s)
            with pytest.raises(RingKernError) as caught:
                CALLS[name](size, group)
            texts.append(str(caught.value))
        dist.destroy_process_group(group)
        dist.barrier()
    return texts


@grid(2)
def test_a_rank_that_has_left(ranks: Pool, hosts: str) -> None:
    texts = ranks(hosts).run(_destroyed)[0]
    assert len(texts) == 6
    assert all("rank 1" in text for text in texts), texts


# ---- parts of a collective ----------------------------------------------------------------------


def _parts_of_two_sizes(rank: int, size: int) -> str:
    dist.barrier()
    group = made(timedelta(seconds=30))
    parts = [torch.ones(10 + rank) for _ in range(size)]
    with pytest.raises(RingKernError) as caught:
        dist.all_to_all([torch.empty(10 + rank) for _ in range(size)], parts, group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    return str(caught.value)


def test_parts_of_two_sizes_are_told_without_a_tag(ranks: Pool) -> None:
    texts = ranks(2).run(_parts_of_two_sizes)
    # Either rank may find it first.
    wanted = (
        r"sent 4[04] bytes of float32 to rank [01] \(in a collective\), which expects 4[04] bytes"
    )
    assert any(re.search(wanted, text) for text in texts), texts
    assert not any("tag" in text for text in texts), texts


# ---- a rank that dies ---------------------------------------------------------------------------


def _dies(rank: int, size: int, name: str, file: str) -> None:
    check_that_it_works(rank, size, ring())
    group = made(GONE[name])
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RingKernError) as caught:
        CALLS[name](size, group)
    Path(f"{file}{rank}").write_text(f"{type(caught.value).__name__}: {caught.value}")


@pytest.mark.parametrize(("name", "size"), [("all_reduce", 3), ("all_to_all", 3), ("recv", 2)])
def test_a_rank_that_dies(tmp_path: Path, name: str, size: int) -> None:
    own = Ranks(size)
    try:
        with pytest.raises((EOFError, OSError)):
            own.run(_dies, name, str(tmp_path / "said"))
    finally:
        own.kill()
    texts = [(tmp_path / f"said{rank}").read_text() for rank in range(size - 1)]
    assert all(text.startswith("PeerLostError: ") for text in texts), texts
    assert all(f"rank {size - 1}" in text for text in texts), texts
