"""Runs a cell of the failure matrix: a fault of rank 3 of four; tests.faults.matrix starts it.

Each surviving rank writes its error and the time: ``said<rank>`` in the folder. The victim writes
the time of the fault: ``fault``. All times are of the machine's one clock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringkern
from tests.comm.exits import serve
from tests.faults.fates import Heard, odd_call
from tests.faults.lives import leave_note, wait_for
from tests.hosts.fates import Done, Plan, Ring, error_of, store_of
from tests.torch import fake_cuda
from tests.torch.fake_cuda import on_device

VICTIM = 3
LARGE = 64_000_000  # elements of a call that lasts until the fault has come
LARGE_ON_DEVICE = 1_000_000  # elements of a call on a fake device, which takes some seconds
MANY = 300_000  # elements of a call that uses all rails: their engines connect before the fault
LATE_S = 6.5  # more than the 5 s after which a rank warns, less than the timeout of that cell
AFTER_S = 0.5  # between these calls: more than a watch takes to notice that calls differ
HEARD_S = 3.0  # a watch reports a failure within this time, or not at all

Call = Callable[[bool], dist.Work | None]  # async_op


@dataclass(frozen=True)
class Cell(Plan):
    """A fault, and when and where it comes.

    Attributes:
        fault: a name of DEEDS, or ``"mismatch: FIELD"``.
        when: ``"in a call"``, ``"between calls"``, ``"idle"`` or ``"in the last call"``.
        cuda: whether tensors lie on fake CUDA devices.
    """

    fault: str = ""
    when: str = ""
    cuda: bool = False


class OnDevice:
    """A communicator, or torch.distributed, whose tensors are moved to a fake device."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.of, name)

        def call(*given: Any, **how: Any) -> Any:
            moved = [on_device(x) if isinstance(x, torch.Tensor) else x for x in given]
            return found(*moved, **how)

        return call if callable(found) else found


def _failure(heard: Heard) -> dict[str, Any] | None:
    """Waits for a report of a failure; returns it in the form of an error."""
    end = time.monotonic() + HEARD_S
    while "failure" not in heard.at:
        if time.monotonic() > end:
            return None
        time.sleep(0.001)
    [fault] = ringkern.dump()["faults"].values()
    return {"at": heard.at["failure"], "kind": "log", "fault": fault}


# ---- faults -------------------------------------------------------------------------------------


def _stop(ring: Ring) -> None:
    """Stops this process until rank 0 continues it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _late(ring: Ring) -> None:
    """Stops this process for a while, so that it is late at any point."""
    command = f"sleep {LATE_S}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", command])
    os.kill(os.getpid(), signal.SIGSTOP)


def _abort(ring: Ring) -> None:
    assert ring.communicator is not None
    ring.communicator.abort("on purpose")


def _raise(ring: Ring) -> None:
    assert ring.communicator is not None
    with ring.communicator:
        raise LookupError("on purpose")


DEEDS: dict[str, Callable[[Ring], object]] = {
    "kill": lambda ring: os.kill(os.getpid(), signal.SIGKILL),
    "os._exit": lambda ring: os._exit(3),
    "sys.exit": lambda ring: sys.exit(3),
    "exception": _raise,
    "abort": _abort,
    "stop": _stop,
    "timeout": lambda ring: time.sleep(2 * SOON_S),
    "late": _late,
}
SOON_S = 2.0
# Cells that reach it.
TIMEOUT_S = {"stop": SOON_S, "timeout": SOON_S, "mismatch: the root": SOON_S}


# ---- a rank -------------------------------------------------------------------------------------


def _calls(cell: Cell, rank: int, ring: Ring) -> list[Call]:
    """Returns the call in which the fault comes, and one after it, which may raise the error."""
    odd = rank == VICTIM
    _, _, field = cell.fault.partition(": ")
    x = torch.ones(100)
    ranks: Any = ring.communicator or dist
    if cell.cuda:
        ranks = OnDevice(ranks)
    if field == "the root":
        calls = [partial(ranks.broadcast, x, VICTIM if odd else 0), partial(ranks.all_reduce, x)]
    elif field == "order":
        calls = [odd_call(ranks, "the collective", odd ^ late) for late in (False, True)]
    else:
        large = x
        if cell.fault in DEEDS and cell.when == "in a call":
            large = torch.ones(LARGE_ON_DEVICE if cell.cuda else LARGE)
        calls = [odd_call(ranks, field, odd, large), odd_call(ranks, "", odd)]
    if cell.when == "in the last call":
        calls = calls[:1]
    if cell.cuda:
        return [partial(_enqueue, call) for call in calls]
    return [lambda async_op, call=call: call(async_op=async_op) for call in calls]


def _enqueue(call: Callable[..., dist.Work], async_op: bool) -> dist.Work | None:
    """Makes a call; on a device, polls its Work until it has ended."""
    work = call(async_op=True)
    return work if async_op else _wait(work)


def _wait(work: dist.Work) -> None:
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()


def _error(calls: list[Call]) -> dict[str, Any] | None:
    """Returns the error of the first of these calls that fails."""
    remaining = iter(calls)

    def call() -> None:
        for one in remaining:
            one(False)
            return time.sleep(AFTER_S)
        raise Done

    since = time.monotonic()
    with contextlib.suppress(Done):
        return error_of(call) | {"since": since}
    return None


def _seen(call: Call, heard: Heard) -> dict[str, Any] | None:
    """Makes the last call of a program, and polls its Work until it has ended."""

    def look() -> None:
        _wait(call(True))
        raise Done

    with contextlib.suppress(Done):
        return error_of(look)
    return _failure(heard)


def _told(cell: Cell, calls: list[Call], heard: Heard) -> dict[str, Any] | None:
    """Returns the error by which a rank is told of a past or coming fault."""
    if cell.when == "in the last call":
        return _seen(calls[0], heard)
    report = _failure(heard) if cell.when == "idle" else None
    error = _error(calls)
    if error is None or cell.when != "idle":
        return error
    if report is None:
        return {**error, "by": "the next call"}
    return {**error, "by": "a report", "at": report["at"], "since": 0.0}


def _befallen(
    cell: Cell, ring: Ring, calls: list[Call], heard: Heard, folder: Path
) -> dict[str, Any] | None:
    """Causes the fault in this process; returns its error if it survives."""
    if cell.when == "in a call" and cell.fault in DEEDS:
        work = calls[0](True)
        time.sleep(0.05)
        assert work is not None
        assert not work.is_completed(), "the call was over before the fault came"
        calls = [lambda _: _wait(work), *calls[1:]]
    else:
        time.sleep(0.3)  # all others are in the call
    leave_note(folder / "fault", str(time.monotonic()))
    if cell.fault in DEEDS:
        DEEDS[cell.fault](ring)
    return _told(cell, calls, heard)


def _wait_for(rank: int, folder: Path, note: str = "said") -> None:
    """Waits for a note of this rank, or for its end."""
    pid = wait_for(folder / f"pid{rank}")
    while not (folder / f"{note}{rank}").exists() and Path(f"/proc/{pid}").exists():
        time.sleep(0.01)


def cell(rank: int, size: int, folder: Path) -> None:
    plan = Cell.read(folder)
    plan.settle(rank)
    leave_note(folder / f"pid{rank}", str(os.getpid()))
    if plan.cuda:
        fake_cuda.start()
    heard = Heard(logging.INFO)
    ring = Ring(plan, rank, size, store_of(plan, rank, size, folder))
    calls = _calls(plan, rank, ring)
    for n in (10, 10, 10 if plan.cuda else MANY):
        x = torch.ones(n)
        if plan.cuda:  # done when the device shows it
            _enqueue(partial((ring.communicator or dist).all_reduce, on_device(x)), False)
        else:
            ring.all_reduce(x)
    said = None
    if rank == VICTIM:
        with contextlib.suppress(LookupError):
            said = _befallen(plan, ring, calls, heard, folder)
    else:
        said = _told(plan, calls, heard)
    if said is None and "warning" in heard.at:
        said = {"at": heard.at["warning"], "kind": "warning", "fault": {"event": "late"}}
    leave_note(folder / f"said{rank}", json.dumps(said))
    if rank != VICTIM:
        for other in range(VICTIM):
            wait_for(folder / f"said{other}")
        pid = int(wait_for(folder / f"pid{VICTIM}"))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        _wait_for(VICTIM, folder)  # its error must not be that others have left
    ring.close()
    if rank == 0:  # it hosts the store, which others may still use
        for other in range(1, size):
            _wait_for(other, folder, "closed")
    leave_note(folder / f"closed{rank}", "")


if __name__ == "__main__":
    serve(globals())
