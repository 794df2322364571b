"""Errors that a program receives: their class, their facts, and the recovery."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import errors
from ringkern.errors import CollectiveMismatchError, CommAbortedError, CommUsageError, RingKernError
from tests.ranks import Pool, Ranks

pytestmark = pytest.mark.quick

SUM = dist.ReduceOp.SUM
NEVER = timedelta(seconds=600)  # an event earlier than this was not caused by it
CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, RingKernError)]


def caught(call: Callable[..., Any], *arguments: Any) -> RingKernError:
    with pytest.raises(RingKernError) as info:
        call(*arguments)
    return info.value


def alone() -> ringkern.Communicator:
    return ringkern.Communicator.from_store(dist.HashStore(), 0, 1)


# ---- the classes --------------------------------------------------------------------------------


def test_the_family() -> None:
    assert {c.__name__: [b.__name__ for b in c.__bases__] for c in CLASSES} == {
        "RingKernError": ["DistBackendError"],
        "PeerLostError": ["RingKernError"],
        "CollectiveTimeoutError": ["RingKernError", "TimeoutError"],
        "CollectiveMismatchError": ["RingKernError"],
        "CommAbortedError": ["RingKernError"],
        "CommUsageError": ["RingKernError"],
        "RendezvousError": ["RingKernError"],
        "TransportError": ["RingKernError"],
        "SharedMemoryError": ["TransportError"],
    }


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_keep_their_facts_when_copied(cls: type[RingKernError]) -> None:
    error = cls("something happened")
    assert (error.rank, error.seq, error.phase) == (None, None, None)
    error.rank, error.seq, error.phase = 2, 1 << 63, "waited"
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(same) is cls
        assert str(same) == "something happened"
        assert (same.rank, same.seq, same.phase) == (2, 1 << 63, "waited")
    assert cls.rank is None, "of one error, not of the class"
    assert isinstance(error, dist.DistBackendError)


@pytest.mark.parametrize("cls", CLASSES)
def test_no_class_has_a_method(cls: type[RingKernError]) -> None:
    """C++ calls the class while the interpreter may end, and Python code could not finish then."""
    assert not [name for name, value in vars(cls).items() if isinstance(value, FunctionType)]


def test_raising_runs_no_python() -> None:
    communicator = alone()
    communicator.all_reduce(torch.ones(3))
    communicator.abort("enough")  # the next error names its rank
    ran: list[str] = []

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            ran.append(frame.f_code.co_name)

    x, call, found = torch.ones(3), communicator._c.all_reduce, None
    sys.setprofile(look)
    try:
        call(x, SUM, "auto", "auto", False, False, False, False)
    except CommAbortedError as error:
        found = error
    finally:
        sys.setprofile(None)
    assert found is not None
    assert found.rank == 0
    assert ran == []


def test_a_text_in_no_encoding() -> None:
    """A reason from another rank may have such bytes: the error keeps its class."""
    communicator = alone()
    communicator._c.abort(b"caf\xe9")  # type: ignore[arg-type]
    error = caught(communicator.all_reduce, torch.ones(3))
    assert type(error) is CommAbortedError
    assert "caf\ufffd" in str(error)


# ---- the fields of an error ---------------------------------------------------------------------


def told(error: RingKernError) -> tuple[str, int | None, int | None, bool]:
    sent = pickle.loads(pickle.dumps(error))
    for name in ("args", "rank", "seq", "phase"):
        assert getattr(sent, name) == getattr(error, name)
    return type(error).__name__, error.rank, error.seq, bool(error.phase)


class _CallsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ringkern.functional.all_reduce(grad, group=ctx.group), None


def _backward(group: dist.ProcessGroup, n: int) -> None:
    x = torch.ones(n, requires_grad=True)
    _CallsInBackward.apply(x, group).sum().backward()


def _waited(work: dist.Work | None, by_future: bool) -> None:
    assert work is not None
    _ = work.get_future().wait() if by_future else work.wait()


# Each rank makes one call of `n` elements.
WAYS: dict[str, Callable[[dist.ProcessGroup, int], Any]] = {
    "at once": lambda g, n: ringkern.ring_all_reduce(torch.ones(n), group=g),
    "wait": lambda g, n: _waited(ringkern.ring_all_reduce(torch.ones(n), SUM, g, True), False),
    "future": lambda g, n: _waited(ringkern.ring_all_reduce(torch.ones(n), SUM, g, True), True),
    "functional": lambda g, n: ringkern.functional.all_reduce(torch.ones(n), group=g),
    "backward": _backward,
    "backend": lambda g, n: dist.all_reduce(torch.ones(n), group=g),
    "backend, wait": lambda g, n: _waited(dist.all_reduce(torch.ones(n), SUM, g, True), False),
    "backend, future": lambda g, n: _waited(dist.all_reduce(torch.ones(n), SUM, g, True), True),
    "backend, list": lambda g, n: dist.all_gather(
        [torch.ones(n) for _ in range(g.size())], torch.ones(n), group=g
    ),
}


def _disagree(rank: int, size: int) -> dict[str, Any]:
    found = {}
    for name, call in WAYS.items():
        backend = "ringkern" if name.startswith("backend") else "gloo"
        group = dist.new_group(backend=backend, timeout=NEVER)
        error = caught(call, group, 5 if rank < size - 1 else 7)
        found[name] = told(error)
        dist.barrier()
        dist.destroy_process_group(group)
    return found


def test_a_mismatch_names_the_rank_and_the_call(ranks: Pool) -> None:
    # With two ranks, the lower one is taken to be right. A third rank could join after the failure.
    for rank in ranks(2).run(_disagree):
        assert rank == dict.fromkeys(WAYS, ("CollectiveMismatchError", 1, 1, True))


def _ends(rank: int, size: int) -> dict[str, Any]:
    found = {}
    for how in ("aborts", "closes", "is late"):
        timeout = timedelta(seconds=1) if how == "is late" else NEVER
        dist.barrier()
        communicator = ringkern.Communicator(timeout=timeout)
        communicator.all_reduce(torch.ones(5))
        if rank == 1 and how == "aborts":
            communicator.abort("out of patience")
        if rank == 1 and how == "closes":
            communicator.close()
        if rank == 1:
            dist.barrier()
        found[how] = told(caught(communicator.all_reduce, torch.ones(5)))
        if rank != 1:
            dist.barrier()
        communicator.abort()  # unnecessary now, and harmless
        communicator.close()
        assert type(caught(communicator.all_reduce, torch.ones(5))) is CommUsageError
    return found


def test_a_rank_that_ends_it_is_named(ranks: Pool) -> None:
    zero, one = ranks(2).run(_ends)
    # A rank that calls only now is in no call yet.
    assert zero.pop("aborts") in (
        ("CommAbortedError", 1, 2, True),
        ("CommAbortedError", 1, None, False),
    )
    assert zero == {
        "closes": ("PeerLostError", 1, 2, True),
        "is late": ("CollectiveTimeoutError", 1, 2, True),
    }
    # A rank that joins after the failure.
    assert one == {
        "aborts": ("CommAbortedError", 1, None, False),
        "closes": ("CommUsageError", None, None, False),
        "is late": ("CommAbortedError", 1, 2, False),
    }


def _dies(rank: int, size: int, folder: str) -> None:
    ringkern.ring_all_reduce(torch.ones(5))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    told_here = told(caught(ringkern.ring_all_reduce, torch.ones(5)))
    Path(folder, str(rank)).write_text(repr(told_here))


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    own = Ranks(3)
    try:
        with pytest.raises((EOFError, OSError)):
            own.run(_dies, str(tmp_path))
    finally:
        own.kill()
    for rank in (0, 1):
        assert (tmp_path / str(rank)).read_text() == repr(("PeerLostError", 2, 2, True))


# ---- recovery -----------------------------------------------------------------------------------


def _goes_on(rank: int, size: int) -> None:
    group = dist.new_group(backend="gloo")
    good = torch.ones(5)
    ringkern.ring_all_reduce(good, group=group)
    first = caught(ringkern.ring_all_reduce, torch.ones(5 + rank), SUM, group)
    assert type(first) is CollectiveMismatchError
    reason = str(first).split(" Here: ")[0]
    for _ in range(3):  # the group's communicator is unchanged
        again = caught(ringkern.ring_all_reduce, torch.ones(5), SUM, group)
        assert type(again) is CommAbortedError
        assert reason in str(again)
        assert (again.rank, again.seq) == (first.rank, first.seq)
    with ringkern.Communicator(group) as communicator:
        x = torch.full((5,), rank + 1.0)
        communicator.all_reduce(x)
        assert torch.equal(x, torch.full((5,), size * (size + 1) / 2))
        failed = caught(communicator.all_reduce, torch.ones(5 + rank))
        assert type(failed) is CollectiveMismatchError
    with ringkern.Communicator(group) as communicator:  # as often as one likes
        communicator.all_reduce(x)
    dist.barrier()
    dist.destroy_process_group(group)
    ringkern.ring_all_reduce(x)  # the other group is not affected


def test_a_new_communicator_of_the_same_group_works(ranks: Pool) -> None:
    ranks(2).run(_goes_on)
