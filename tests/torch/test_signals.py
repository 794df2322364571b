"""Signals of a rank whose call waits: Ctrl-C ends it at once, and all ranks are told the reason."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.ranks import Named, Pool, Ranks

NEVER = timedelta(seconds=600)  # an event earlier than this was not caused by it
SENT_AFTER_S = 0.3
# A loaded machine may take this long to run a handler; a call that runs to its timeout takes
# longer.
SOON_S = 2.0
LATE = 2  # the rank that does not come

HOSTS = ["aaa", "aab"]


@pytest.fixture(scope="module", params=HOSTS, ids=["one host", "two hosts"])
def pool(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    ranks = Ranks(3, place=Named(request.param))
    yield ranks
    ranks.close()


class Stopped(Exception):
    """An exception of a handler."""


def _numbers(rank: int, n: int = 100) -> torch.Tensor:
    return torch.full((n,), float(rank + 1))


class Group:
    """A group "ringkern" and a communicator; both have made a call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.group = dist.new_group(backend="ringkern", timeout=NEVER)
        self.communicator = ringkern.Communicator(timeout=NEVER)
        torch.set_num_threads(2)
        self.threaded = ringkern.Communicator(timeout=NEVER, threads=2)
        torch.set_num_threads(1)
        self.threaded_all_reduce()
        for call in (self.dist_all_reduce, self.ring_all_reduce):
            call()
        self.all_to_all()
        dist.barrier()

    def close(self) -> None:
        dist.barrier()
        self.communicator.close()
        self.threaded.close()
        dist.destroy_process_group(self.group)

    def ring_all_reduce(self) -> torch.Tensor:
        x = _numbers(dist.get_rank())
        self.communicator.all_reduce(x)
        return x

    def large_all_reduce(self) -> torch.Tensor:
        x = _numbers(dist.get_rank(), 100_000)
        self.communicator.all_reduce(x)
        return x

    def threaded_all_reduce(self) -> torch.Tensor:
        x = _numbers(dist.get_rank(), 100_000)
        torch.set_num_threads(2)  # the ranks of other tests have one
        try:
            self.threaded.all_reduce(x)
        finally:
            torch.set_num_threads(1)
        return x

    def async_all_reduce(self) -> torch.Tensor:
        x = _numbers(dist.get_rank())
        work = self.communicator.all_reduce(x, async_op=True)
        assert work is not None
        work.wait()
        return x

    def sync_after_async(self) -> torch.Tensor:
        work = self.communicator.all_reduce(torch.ones(3), async_op=True)
        self.ring_all_reduce()
        assert work is not None
        return self.ring_all_reduce()

    def dist_all_reduce(self) -> torch.Tensor:
        x = _numbers(dist.get_rank())
        dist.all_reduce(x, group=self.group)
        return x

    def dist_async_all_reduce(self) -> torch.Tensor:
        x = _numbers(dist.get_rank())
        work = dist.all_reduce(x, group=self.group, async_op=True)
        assert work is not None
        work.wait(timedelta(seconds=500))
        return x

    def barrier(self) -> torch.Tensor:
        dist.barrier(self.group)
        return torch.full((100,), 6.0)

    def all_to_all(self) -> torch.Tensor:
        mine = [_numbers(dist.get_rank()) for _ in range(self.size)]
        theirs = [torch.empty(100) for _ in range(self.size)]
        dist.all_to_all(theirs, mine, group=self.group)
        return torch.stack(theirs).sum(0)

    def receive(self) -> torch.Tensor:
        """Receives, on ranks 0 and 1, from the late one."""
        x = torch.full((100,), 6.0)
        if dist.get_rank() != LATE:
            dist.recv(x, LATE, group=self.group)
        else:
            for peer in range(self.size - 1):
                dist.send(x, peer, group=self.group)
        return x


CALLS = [name for name in vars(Group) if not name.startswith("_") and name != "close"]


def _answer(call: Callable[[], Any]) -> dict[str, Any]:
    """Reports the outcome and its time."""
    try:
        found: Any = call().tolist()
    except BaseException as error:  # returned as the answer
        found = f"{type(error).__name__}: {error}"
    return {"found": found, "at": time.monotonic()}


def _send(number: int, sent: list[float]) -> None:
    sent.append(time.monotonic())
    os.kill(os.getpid(), number)


def _interrupted(
    rank: int, size: int, name: str, number: int, after_s: float = SENT_AFTER_S
) -> dict[str, Any]:
    group = Group(size)
    call = getattr(group, name)
    sent: list[float] = []
    if rank == 1:
        threading.Timer(after_s, _send, (number, sent)).start()
        signal.signal(signal.SIGUSR1, _raise_stopped)
    first = {"found": None, "at": 0.0} if rank == LATE else _answer(call)
    dist.barrier()
    # the late rank of another host may have all the data that its first call needs
    for _ in range(2):
        again = _answer(call)
    group.close()
    return {"first": first, "again": again, "sent": sent}


def _raise_stopped(*_: object) -> None:
    raise Stopped("as asked")


def _check(said: list[dict[str, Any]], name: str, error: str) -> None:
    """Checks that rank 1 was interrupted at once, and that the others got the error."""
    told = [one["first"]["found"] for one in said]
    assert str(told[1]).startswith(error), told
    (sent,) = said[1]["sent"]
    took = [one["first"]["at"] - sent for one in said if one["first"]["found"] is not None]
    print(f"after the signal: {', '.join(f'{s:.3f} s' for s in took)}")
    assert max(took) < SOON_S
    kind = error.split(":")[0]
    others = [said[0]["first"], said[0]["again"]]
    if name != "receive":  # the late rank's send is done once it is on its way
        others.append(said[LATE]["again"])
    for one in others:
        text = str(one["found"])
        assert text.startswith(("CommAbortedError", "PeerLostError")), text
        assert "rank 1" in text, text
        assert f"was interrupted ({kind})" in text, text
    assert "CommAbortedError" in str(said[1]["again"]["found"])


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_ends_a_call_that_waits(pool: Ranks, name: str) -> None:
    _check(pool.run(_interrupted, name, signal.SIGINT), name, "KeyboardInterrupt")


def test_an_exception_of_a_handler_ends_a_waiting_call(pool: Ranks) -> None:
    said = pool.run(_interrupted, "ring_all_reduce", signal.SIGUSR1)
    _check(said, "ring_all_reduce", "Stopped: as asked")


def test_ctrl_c_ends_a_long_wait_for_another_host(ranks: Pool) -> None:
    """Rank 1 is alone on its host; its last poll was seconds ago, and the next is not soon."""
    said = ranks("aba").run(_interrupted, "ring_all_reduce", signal.SIGINT, 8.0)
    _check(said, "ring_all_reduce", "KeyboardInterrupt")


# ---- before a call is made ----------------------------------------------------------------------


def _interrupted_while_it_is_made(rank: int, size: int) -> dict[str, Any]:
    """Creates the communicator of the late rank after the others have failed."""
    dist.barrier()
    sent: list[float] = []
    if rank == LATE:
        dist.barrier()
    if rank == 1:
        threading.Timer(SENT_AFTER_S, _send, (signal.SIGINT, sent)).start()

    def call() -> torch.Tensor:
        with ringkern.Communicator(timeout=NEVER) as communicator:
            return _all_reduced(communicator, rank)

    answer = _answer(call)
    if rank != LATE:
        dist.barrier()
    return {"first": answer, "again": _answer(call), "sent": sent}


def _check_first(said: list[dict[str, Any]]) -> None:
    """Checks that rank 1 was interrupted, and rank 0 got the error, soon."""
    (sent,) = said[1]["sent"]
    print(f"after the signal: {[round(one['first']['at'] - sent, 3) for one in said[:2]]}")
    assert said[1]["first"]["found"].startswith("KeyboardInterrupt"), said
    assert max(one["first"]["at"] - sent for one in said[:2]) < SOON_S


def test_ctrl_c_ends_the_making_of_a_communicator(pool: Ranks) -> None:
    said = pool.run(_interrupted_while_it_is_made)
    _check_first(said)
    for one in (said[0], said[LATE]):
        text = one["first"]["found"]
        assert text.startswith("RendezvousError: "), text
        assert "rank 1 could not join the ring" in text
        assert "it was interrupted (KeyboardInterrupt)" in text
    assert [one["again"]["found"] for one in said] == [[6.0] * 100] * 3


def _interrupted_while_connecting(rank: int, size: int, async_op: bool) -> dict[str, Any]:
    """Waits for a rank that does not connect."""
    communicator = ringkern.Communicator(timeout=NEVER)
    dist.barrier()
    sent: list[float] = []
    if rank == 1:
        threading.Timer(SENT_AFTER_S, _send, (signal.SIGINT, sent)).start()
    if rank == LATE:
        dist.barrier()
    answer = _answer(lambda: _all_reduced(communicator, rank, async_op))
    if rank != LATE:
        dist.barrier()
    communicator.close()
    return {"first": answer, "sent": sent}


def _all_reduced(
    communicator: ringkern.Communicator, rank: int, async_op: bool = False
) -> torch.Tensor:
    x = _numbers(rank)
    if (work := communicator.all_reduce(x, async_op=async_op)) is not None:
        work.wait()
    return x


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_ctrl_c_ends_a_call_that_connects(pool: Ranks, async_op: bool) -> None:
    said = pool.run(_interrupted_while_connecting, async_op)
    _check_first(said)
    for one in (said[0], said[LATE]):
        text = one["first"]["found"]
        assert text.startswith(("RendezvousError: ", "CommAbortedError: ")), text
        assert "was interrupted (KeyboardInterrupt)" in text


# ---- a handler that returns ----------------------------------------------------------------------


def _goes_on(rank: int, size: int, name: str) -> list[float]:
    group = Group(size)
    handled: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: handled.append(number))
    timers = [threading.Timer(SENT_AFTER_S * (i + 1), _send, (signal.SIGINT, [])) for i in range(2)]
    if rank == 1:
        for timer in timers:
            timer.start()
    if rank == LATE:
        time.sleep(4 * SENT_AFTER_S)
    try:
        found = getattr(group, name)()
        assert len(handled) == (2 if rank == 1 else 0)
        for timer in timers if rank == 1 else []:
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    again = group.ring_all_reduce() + group.dist_all_reduce()
    assert again.tolist() == [12.0] * 100
    group.close()
    return [min(found.tolist()), max(found.tolist())]


@pytest.mark.parametrize("name", CALLS[::2])
def test_a_handler_that_returns_changes_nothing(pool: Ranks, name: str) -> None:
    assert pool.run(_goes_on, name) == [[6.0, 6.0]] * 3


# ---- a handler that uses the interrupted object --------------------------------------------------


def _closes(rank: int, size: int, how: str) -> tuple[str, str]:
    group = Group(size)
    errors: list[str] = []

    def handle(*_: object) -> None:
        if how == "call":
            errors.append(str(_answer(group.ring_all_reduce)["found"]))
            raise Stopped("after a call")
        if how == "close":
            group.communicator.close()
        else:
            dist.destroy_process_group(group.group)

    call = group.dist_all_reduce if how == "destroy" else group.ring_all_reduce
    before = signal.signal(signal.SIGUSR1, handle)
    if rank == 1:
        threading.Timer(SENT_AFTER_S, _send, (signal.SIGUSR1, [])).start()
    first = "" if rank == LATE else str(_answer(call)["found"])
    signal.signal(signal.SIGUSR1, before)
    dist.barrier()
    group.communicator.close()
    if not (how == "destroy" and rank == 1):
        dist.destroy_process_group(group.group)
    dist.barrier()
    return first, "".join(errors)


@pytest.mark.parametrize("how", ["call", "close", "destroy"])
def test_a_handler_does_not_wait_for_the_call_that_it_interrupts(pool: Ranks, how: str) -> None:
    said = pool.run(_closes, how)
    if how == "call":
        assert said[1] == ("Stopped: after a call", said[1][1])
        assert said[1][1].startswith("CommUsageError: a call in a signal handler")
    elif how == "close":
        assert "it was closed in a signal handler" in said[1][0]
    else:  # torch's own error log asks for the destroyed group there
        assert "Error: " in said[1][0]
    assert said[0][0].startswith("CommAbortedError")
