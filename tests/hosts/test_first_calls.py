"""What a communicator does before it knows on which hosts its ranks are: the first calls."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import CommAbortedError, CommUsageError, RendezvousError
from ringkern.hosts import search
from ringkern.hosts.early import EarlyWork

LONG = timedelta(seconds=60)
SOON = timedelta(seconds=0.5)


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Makes a communicator of rank r of 2; each has a connection of its own to the store."""
    communicators: list[ringkern.Communicator] = []

    def make(rank: int, timeout: timedelta = LONG, size: int = 2) -> ringkern.Communicator:
        # Not a HashStore, whose ranks are on one host for sure.
        store = dist.FileStore(str(tmp_path / "store"), size)
        made = ringkern.Communicator.from_store(store, rank, size, timeout=timeout)
        communicators.append(made)
        return made

    yield make
    for communicator in communicators:
        communicator.abort()
        communicator.close()


def later(function: Callable[[], Any], seconds: float = 0.2) -> threading.Thread:
    timer = threading.Timer(seconds, function)
    timer.start()
    return timer


# ---- nobody waits for others without need -------------------------------------------------------


def test_communicators_are_made_one_after_the_other(made: Any) -> None:
    rings = [made(rank) for rank in range(2)]
    other = threading.Thread(target=lambda: rings[1].all_reduce(torch.ones(3)))
    other.start()
    x = torch.ones(3)
    rings[0].all_reduce(x)
    other.join()
    assert x.tolist() == [2.0] * 3
    assert rings[0].hosts.count == 1


def test_what_never_calls_waits_for_nobody(made: Any) -> None:
    closed, aborted = made(0), made(0)
    closed.close()
    with pytest.raises(CommUsageError, match="is closed"):
        closed.all_reduce(torch.ones(3))
    with pytest.raises(CommUsageError, match="is closed"):
        closed.all_reduce(torch.ones(3), async_op=True).wait()
    aborted.abort("no need of it")
    for call in (
        lambda: aborted.all_reduce(torch.ones(3)),
        lambda: aborted.all_reduce(torch.ones(3), async_op=True).wait(),
    ):
        with pytest.raises(CommAbortedError, match="no need of it"):
            call()
    assert repr(made(0)) == "<ringkern.Communicator rank 0 of 2>"
    assert (made(0).rank, made(1).size) == (0, 2)


@pytest.mark.parametrize("async_op", [False, True])
def test_a_bad_first_call_is_told_before_anybody_is_waited_for(
    made: Any, async_op: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "ringkern")
    alone = made(0)
    x = torch.ones(4)
    for call, error, text in (
        (lambda: alone.all_reduce(x.to_sparse(), async_op=async_op), TypeError, "layout Sparse"),
        (lambda: alone.all_reduce(x.to(torch.complex64), async_op=async_op), TypeError, "complex"),
        (lambda: alone.all_reduce(x, algorithm="tree", async_op=async_op), ValueError, "tree"),
        (lambda: alone.reduce_scatter(x, x, async_op=async_op), ValueError, "output"),
        (lambda: alone.all_gather(x, x, async_op=async_op), ValueError, "output"),
    ):
        with pytest.raises(error, match=text):
            call()
    later(lambda: made(1).all_reduce(torch.ones(4)))
    work = alone.all_reduce(x, async_op=async_op)
    if async_op:
        work.wait()
    assert x.tolist() == [2.0] * 4
    assert x._version == 1, "that it was looked at is no change"
    ringkern.news._finish()  # everything has been said
    assert "communicator ''" not in caplog.text, "and no failure"


def test_a_forked_child_is_told_at_once(made: Any) -> None:
    alone = made(0)
    work = alone.all_reduce(torch.ones(3), async_op=True)
    assert not work.is_completed()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            alone.all_reduce(torch.ones(3))
        except CommUsageError:
            code = 7
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


# ---- a rank that does not come ------------------------------------------------------------------


def test_a_rank_that_does_not_make_one(made: Any) -> None:
    alone = made(0, SOON)
    with pytest.raises(RendezvousError, match=r"no ring of 2 .* did not come: rank 1") as caught:
        alone.all_reduce(torch.ones(3))
    assert caught.value.rank == 1
    with pytest.raises(CommAbortedError) as again:
        alone.all_reduce(torch.ones(3))
    assert str(caught.value) in str(again.value)
    with pytest.raises(RendezvousError) as late:  # the same as for the others
        made(1, LONG).all_reduce(torch.ones(3))
    assert str(late.value) == str(caught.value)


def test_abort_ends_the_wait_and_tells_the_others(made: Any) -> None:
    first, second = made(0, size=3), made(1, size=3)
    texts: list[str] = []

    def wait() -> None:
        try:
            second.all_reduce(torch.ones(3))
        except RendezvousError as error:
            texts.append(str(error))

    other = threading.Thread(target=wait)
    other.start()
    later(lambda: first.abort("changed my mind"))
    with pytest.raises(CommAbortedError, match="aborted by rank 0: changed my mind"):
        first.all_reduce(torch.ones(3))
    other.join(60)
    assert texts == ["rank 0 could not join the ring: aborted: changed my mind"]


# ---- asynchronous first calls -------------------------------------------------------------------


def test_an_asynchronous_first_call_does_not_wait(made: Any) -> None:
    """Both ranks call in one thread, the other one's communicator is made after the calls."""
    first = made(0)
    mine = [torch.full((5,), float(i)) for i in range(4)]
    works = [first.all_reduce(x, async_op=True) for x in mine]
    assert all(isinstance(work, EarlyWork) for work in works)
    assert not any(work.is_completed() for work in works)
    with pytest.raises(RuntimeError, match="timed out"):
        works[0].wait(timedelta(milliseconds=50))
    mean = works[3].get_future().then(lambda future: float(future.value()[0][0]) / 2)
    second = made(1)
    theirs = [torch.full((5,), 10.0 * i) for i in range(4)]
    others = [second.all_reduce(x, async_op=True) for x in theirs]
    for work in (*others, *works):
        assert work.wait() is True
        assert work.is_completed()
    for i in range(4):
        assert mine[i].tolist() == theirs[i].tolist() == [11.0 * i] * 5
    assert mean.wait() == 16.5
    assert works[0].wait(LONG) is True
    assert not isinstance(first.all_reduce(mine[0], async_op=True), EarlyWork)
    second.all_reduce(torch.zeros(5))


def test_calls_stay_in_order(made: Any) -> None:
    first = made(0)
    x, y, z = (torch.full((3,), float(i)) for i in range(3))
    early = first.all_reduce(x, async_op=True)

    def others() -> None:
        second = made(1)
        for i in range(3):
            second.all_reduce(torch.full((3,), 10.0 * i))

    thread = later(others)
    first.all_reduce(y)  # waits for the other rank, and comes after the early one
    late = first.all_reduce(z, async_op=True)
    first.close()  # finishes what was called
    assert early.is_completed()
    assert late.is_completed()
    assert [float(t[0]) for t in (x, y, z)] == [0.0, 11.0, 22.0]
    thread.join()


def test_close_finishes_early_calls(made: Any) -> None:
    first, x = made(0), torch.ones(3)
    work = first.all_reduce(x, async_op=True)
    thread = later(lambda: made(1).all_reduce(torch.ones(3)))
    first.close()
    assert work.is_completed()
    assert x.tolist() == [2.0] * 3
    thread.join()


def test_early_calls_of_two_communicators_in_different_orders(tmp_path: Path) -> None:
    results: dict[int, list[float]] = {}

    def rank_of(rank: int) -> None:
        store = dist.FileStore(str(tmp_path / "store"), 2)
        names = "ab" if rank == 0 else "ba"
        rings, works, tensors = [], [], []
        for name in names:
            rings.append(ringkern.Communicator.from_store(store, rank, 2, name=name, timeout=LONG))
            tensors.append(torch.full((3,), float(ord(name))))
            works.append(rings[-1].all_reduce(tensors[-1], async_op=True))
            time.sleep(0.1)
        for work in works:
            work.wait()
        results[rank] = sorted(float(x[0]) for x in tensors)
        for ring in rings:
            ring.close()

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {0: [2.0 * ord("a"), 2.0 * ord("b")], 1: [2.0 * ord("a"), 2.0 * ord("b")]}


def test_early_calls_fail_as_others(made: Any) -> None:
    alone = made(0, SOON)
    first, second = (alone.all_reduce(torch.ones(3), async_op=True) for _ in range(2))
    with pytest.raises(RendezvousError, match="did not come: rank 1") as caught:
        first.wait()
    with pytest.raises(CommAbortedError) as behind:
        second.wait()
    assert str(caught.value) in str(behind.value)
    assert first.is_completed()
    with pytest.raises(RendezvousError, match="did not come: rank 1"):
        first.get_future().value()


def test_abort_ends_early_calls(made: Any) -> None:
    alone = made(0)
    works = [alone.all_reduce(torch.ones(3), async_op=True) for _ in range(2)]
    alone.abort("changed my mind")
    for work in works:
        with pytest.raises(CommAbortedError, match="changed my mind"):
            work.wait()


def test_closing_ends_the_thread_of_early_calls(made: Any, monkeypatch: Any) -> None:
    """A thread in a call of the store would end the process if the interpreter ended before it."""
    alone = made(0)
    work = alone.all_reduce(torch.ones(3), async_op=True)
    look = search.Search._look

    def slow_look(self: search.Search) -> Any:
        time.sleep(0.5)
        return look(self)

    monkeypatch.setattr(search.Search, "_look", slow_look)
    alone._close(0.2)
    assert not [thread for thread in threading.enumerate() if thread.name == "ringkern-early"]
    with pytest.raises(CommAbortedError, match="closed with calls in flight"):
        work.wait()


PROGRAM = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist, ringkern
ringkern.comm._PATIENCE_AT_EXIT_S = 0.2
store = dist.FileStore(sys.argv[1], 2)
ring = ringkern.Communicator.from_store(store, 0, 2, timeout=timedelta(seconds=600))
work = ring.all_reduce(torch.ones(3), async_op=True)
assert not work.is_completed()
"""


def test_a_program_ends_though_an_early_call_still_waits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
