"""Messages and exchanges between hosts end by the group's timeout of the moment, or by their own,
and not by the one that the group was made with."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ringkern.errors import CollectiveTimeoutError, CommAbortedError, RingKernError
from tests.ranks import Pool, grid
from tests.torch.test_backend_failures import NEVER, made

pytestmark = [pytest.mark.slow, pytest.mark.alone]

LIMIT = timedelta(seconds=1)
EVER = timedelta(days=365_000)  # in nanoseconds it is more than 64 bits hold
MAKING_S = 300.0  # of which Gloo's messages have a fifth
PATIENCE_S = 20.0  # far more than the timeout takes, and far less than the one of making
LARGE = 1_000_000  # elements: their data follow a slot

Start = Callable[[int, dist.ProcessGroup, Any], Any]


class Exchange(NamedTuple):
    options: Callable[[], Any]
    start: Start  # on any rank but the last, which is missed


def _ones(size: int) -> list[torch.Tensor]:
    return [torch.ones(5) for _ in range(size)]


# In which the ranks before the last wait for it.
EXCHANGES = {
    "gather": Exchange(
        c10d.GatherOptions,
        lambda k, g, o: g.gather([_ones(k)] if g.rank() == 0 else [], [torch.ones(5)], o),
    ),
    "scatter": Exchange(c10d.ScatterOptions, lambda k, g, o: g.scatter([torch.ones(5)], [], o)),
    "all_to_all": Exchange(
        c10d.AllToAllOptions,
        lambda k, g, o: g.alltoall_base(torch.ones(k), torch.ones(k), [], [], o),
    ),
}


def _begin(name: str, size: int, group: dist.ProcessGroup, limit: timedelta | None = None) -> Any:
    """An exchange that lacks the last rank; `limit`: its own."""
    options = EXCHANGES[name].options()
    if name == "scatter":
        options.rootRank = size - 1
    if limit is not None:
        options.timeout = limit
    return EXCHANGES[name].start(size, group, options)


# Messages that rank 0 begins with the last rank.
MESSAGES: dict[str, Callable[[int, dist.ProcessGroup], Any]] = {
    "recv": lambda k, g: dist.irecv(torch.ones(5), k - 1, g),
    "large recv": lambda k, g: dist.irecv(torch.ones(LARGE), k - 1, g),
    "recv from anybody": lambda k, g: dist.irecv(torch.ones(5), None, g),
    "large send": lambda k, g: dist.isend(torch.ones(LARGE), k - 1, g),
}


def _ends_late(call: Callable[[], object], about: int | None, least_s: float = 1) -> str:
    """Raises what it raises on one host, within the patience; returns the text."""
    start = time.monotonic()
    with pytest.raises(CollectiveTimeoutError) as caught:
        call()
    assert time.monotonic() - start < PATIENCE_S
    assert time.monotonic() - start >= least_s
    assert getattr(caught.value, "rank", None) == about
    return str(caught.value)


def _is_over(begin: Callable[[], object], why: str) -> None:
    """The messages of this group are of no use any more: said at once, and why."""
    with pytest.raises(CommAbortedError) as caught:
        begin()
    assert why in str(caught.value), (why, str(caught.value))


def _late(rank: int, size: int, hosts: str, own: bool) -> dict[str, str]:
    """The last rank makes no call."""
    texts = {}
    names = [*EXCHANGES] if own else [*MESSAGES, *EXCHANGES]
    for name in names:
        group = made(NEVER if own else LIMIT, MAKING_S)
        waits = rank == 0 if name in (*MESSAGES, "gather") else rank < size - 1
        about = None if name == "recv from anybody" else size - 1

        def begin(name: str = name, group: dist.ProcessGroup = group) -> Any:
            if name in MESSAGES:
                return MESSAGES[name](size, group)
            return _begin(name, size, group, LIMIT if own else None)

        if waits:
            texts[name] = _ends_late(lambda begin=begin: begin().wait(), about)
            # its own, or that of the first rank that reported
            _is_over(begin, "for 1.0 s (timed out)")
        elif name == "gather" and rank < size - 1:
            begin().wait()
        dist.barrier()
        dist.destroy_process_group(group)
    return texts


@pytest.mark.parametrize("own", [False, True], ids=["of the group", "of the call"])
@pytest.mark.parametrize("hosts", ["ab", "aabb"])
def test_a_rank_that_is_late(ranks: Pool, hosts: str, own: bool) -> None:
    found = ranks(hosts).run(_late, hosts, own)
    assert found[0].keys() == ({*EXCHANGES} if own else {*MESSAGES, *EXCHANGES})
    for texts in found:
        for name, text in texts.items():
            assert "for 1.0 s (timed out)" in text, (name, text)


# ---- waits that are not late ---------------------------------------------------------------------


def _in_time(rank: int, size: int, limit: timedelta) -> None:
    """Rank 1 comes when an engine of the timeout of making would have given up."""
    group = made(limit, 3)
    dist.barrier()
    time.sleep(4 * rank)
    if rank == 0:
        works = [dist.irecv(torch.zeros(n), 1, group, tag=n) for n in (5, LARGE)]
    else:
        works = [dist.isend(torch.ones(n), 0, group, tag=n) for n in (5, LARGE)]
    works.append(dist.all_to_all_single(torch.ones(2), torch.ones(2), group=group, async_op=True))
    for work in works:
        assert work is not None
        work.wait()
    dist.destroy_process_group(group)


@pytest.mark.parametrize("limit", [NEVER, EVER], ids=["600 s", "1000 years"])
def test_a_timeout_longer_than_that_of_making(ranks: Pool, limit: timedelta) -> None:
    ranks("ab").run(_in_time, limit)


def _own_is_longer(rank: int, size: int) -> None:
    group = made(LIMIT, MAKING_S)
    dist.barrier()
    time.sleep(2 * LIMIT.total_seconds() * rank)
    _begin("all_to_all", size, group, NEVER).wait()
    dist.destroy_process_group(group)


def test_a_call_has_more_time_than_the_group(ranks: Pool) -> None:
    ranks("ab").run(_own_is_longer)


def _asked_for_later(rank: int, size: int) -> str:
    """Nobody waits while the time of two messages passes: only one of them comes."""
    group = made(LIMIT, MAKING_S)
    text = ""
    if rank == 0:
        come, missed = (torch.zeros(5) for _ in range(2))
        works = [dist.irecv(come, 1, group, tag=1), dist.irecv(missed, 1, group, tag=2)]
        time.sleep(2 * LIMIT.total_seconds())
        assert works[0] is not None
        assert works[1] is not None
        works[0].wait()
        assert bool((come == 1).all())
        text = _ends_late(works[1].wait, 1, least_s=0)
    else:
        dist.send(torch.ones(5), 0, group, tag=1)
    dist.barrier()
    dist.destroy_process_group(group)
    return text


def test_a_late_wait_gets_only_messages_that_came(ranks: Pool) -> None:
    text = ranks("ab").run(_asked_for_later)[0]
    assert "Timed out waiting 1ms" in text, "its time had passed"


def _data_come_later(rank: int, size: int) -> None:
    """Rank 1 stops when it has said what it sends."""
    group = made(timedelta(seconds=4), MAKING_S)
    x = torch.full((10 * LARGE,), float(rank))  # more than the network holds
    if rank == 1:
        goes_on = f"sleep 5; kill -CONT {os.getpid()}"
        with subprocess.Popen(["sh", "-c", goes_on]):
            dist.barrier()
            time.sleep(2)
            work = dist.isend(x, 0, group)
            os.kill(os.getpid(), signal.SIGSTOP)
        assert work is not None
        work.wait()
    else:
        dist.barrier()
        start = time.monotonic()
        dist.recv(x, 1, group)
        assert time.monotonic() - start > 4
        assert bool((x == 1).all())
    dist.destroy_process_group(group)


def test_data_have_a_time_of_their_own(ranks: Pool) -> None:
    """From when it is known that they come."""
    ranks("ab").run(_data_come_later)


# ---- waits, and several messages -----------------------------------------------------------------


def _short_wait(rank: int, size: int) -> None:
    """It ends as torch ends it, and the message is under way as before."""
    group = made(timedelta(seconds=60))
    x = torch.full((5,), float(rank))
    if rank == 0:
        work = dist.irecv(x, 1, group)
        assert work is not None
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Operation timed out"):
                work.wait(timedelta(seconds=0.2))
        dist.barrier()
        work.wait()
        assert bool((x == 1).all())
        dist.recv(x, 1, group)
    else:
        dist.barrier()
        dist.send(x, 0, group)
        dist.send(x, 0, group)
    dist.destroy_process_group(group)


@grid(2)
def test_a_wait_of_its_own_timeout(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_short_wait)


def _several(rank: int, size: int) -> list[str]:
    """Two messages are waited for; the first that is late ends the other, which has more time."""
    group = made(NEVER, MAKING_S)
    texts = []
    if rank == 0:
        later = dist.irecv(torch.zeros(5), 1, group, tag=1)
        group.set_timeout(LIMIT)
        first = dist.irecv(torch.zeros(5), 1, group, tag=2)
        assert first is not None
        assert later is not None
        assert not later.is_completed()  # a wait begins here
        texts.append(_ends_late(first.wait, 1))
        with pytest.raises(RingKernError) as caught:
            later.wait()
        assert type(caught.value) is CommAbortedError
        texts.append(str(caught.value))
    dist.barrier()
    dist.destroy_process_group(group)
    return texts


def test_one_that_is_late_ends_the_others(ranks: Pool) -> None:
    late, other = ranks("ab").run(_several)[0]
    assert late in other, (late, other)


def _both_wait(rank: int, size: int) -> tuple[str, int | None, int | None]:
    """Rank 0 gives up first."""
    group = made(NEVER if rank else LIMIT, MAKING_S)
    x = torch.zeros(5)
    with pytest.raises(RingKernError) as caught:
        dist.recv(x, 1 - rank, group)
    assert type(caught.value) is (CommAbortedError if rank else CollectiveTimeoutError)
    text = str(caught.value)
    _is_over(lambda: dist.recv(x, 1 - rank, group), "waited for a message from rank 1")
    dist.barrier()
    dist.destroy_process_group(group)
    assert caught.value.fault is not None
    return text, caught.value.rank, caught.value.fault.reporter


@grid(2)
def test_the_others_are_told_that_one_was_late(ranks: Pool, hosts: str) -> None:
    """The rank that has given up is alive: it is not lost."""
    (late, *facts), (other, *told) = ranks(hosts).run(_both_wait)
    first = late.partition(",")[0]
    assert first in other, (late, other)
    assert facts == told == [1, 0], "rank 0 has waited for rank 1, as both say"
