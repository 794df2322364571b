"""What befalls rank 1 of three while the others call, for test_ranks.py; run by tests.comm.exits.

Each rank that lives to tell writes what it was told: ``said<rank>`` in the folder.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import RingKernError
from tests.comm.exits import join, own, reduce_in_group, serve
from tests.faults.lives import leave_note, reduces, wait_for

NEVER_S = 600.0  # what ends before has not ended by it
VICTIM = 1


def error_of(call: Callable[[], object]) -> dict[str, Any]:
    """Of the first of these calls that fails."""
    try:
        while True:
            call()
    except RingKernError as error:
        return {
            "kind": type(error).__name__,
            "rank": error.rank,
            "seq": error.seq,
            "phase": error.phase,
            "text": str(error),
        }


def tell(rank: int, folder: Path, **said: Any) -> None:
    (folder / f"said{rank}").write_text(json.dumps(said))


def go_on(rank: int, folder: Path, ranks: list[int]) -> None:
    """In the processes that there are."""
    store = dist.FileStore(f"{folder}/again", len(ranks))
    communicator = ringkern.Communicator.from_store(
        store, ranks.index(rank), len(ranks), timeout=timedelta(seconds=30)
    )
    with communicator:
        reduces(communicator, len(ranks))


def witness(rank: int, folder: Path) -> None:
    """A call that fails, one after it, and a ring of those that are left."""
    x = torch.ones(300_000)
    first = error_of(lambda: ringkern.ring_all_reduce(x))
    again = error_of(lambda: ringkern.ring_all_reduce(x))
    go_on(rank, folder, [0, 2])
    tell(rank, folder, first=first, again=again)


# ---- a rank that ends ---------------------------------------------------------------------------


def killed(rank: int, size: int, folder: Path) -> None:
    join(rank, size, folder)
    reduce_in_group()
    if rank == VICTIM:
        leave_note(folder / "pid", str(os.getpid()))
    if rank == 0:
        pid = int(wait_for(folder / "pid"))
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    witness(rank, folder)


def _leaves(rank: int, size: int, folder: Path, leave: Callable[[], object]) -> None:
    join(rank, size, folder)
    for _ in range(3):
        reduce_in_group()
    if rank == VICTIM:
        leave()
    else:
        witness(rank, folder)


def sys_exit(rank: int, size: int, folder: Path) -> None:
    _leaves(rank, size, folder, lambda: sys.exit(0))


def exception(rank: int, size: int, folder: Path) -> None:
    def leave() -> None:
        raise LookupError("on purpose")

    _leaves(rank, size, folder, leave)


def os_exit(rank: int, size: int, folder: Path) -> None:
    if rank == VICTIM and (pid := os.fork()) != 0:
        # How a process ended can be read until its parent has asked for it.
        for witness_of_it in (0, 2):
            wait_for(folder / f"said{witness_of_it}")
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    _leaves(rank, size, folder, lambda: os._exit(3))


# ---- a rank that is stopped ---------------------------------------------------------------------


class Heard(logging.Handler):
    """What is logged, as text."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        logging.getLogger("ringkern").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def continue_after(seconds: float, folder: Path) -> None:
    pid = int(wait_for(folder / "pid"))
    threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()


def stop_myself(folder: Path) -> None:
    leave_note(folder / "pid", str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def stopped_for_a_while(rank: int, size: int, folder: Path) -> None:
    communicator = own(rank, size, folder, timeout_s=NEVER_S)
    heard = Heard()
    if rank == 0:
        continue_after(6.5, folder)
    if rank == VICTIM:
        stop_myself(folder)
    for call in range(3):
        reduces(communicator, size)
        if rank == 0 and call == 1:
            time.sleep(1)  # the victim is in its next call, and must not take itself for slow
    tell(rank, folder, warnings=heard.texts)


def stopped_for_too_long(rank: int, size: int, folder: Path) -> None:
    communicator = own(rank, size, folder, timeout_s=2)
    if rank == VICTIM:
        stop_myself(folder)
    first = error_of(lambda: communicator.all_reduce(torch.ones(1000)))
    again = error_of(lambda: communicator.all_reduce(torch.ones(1000)))
    if rank == 2:
        leave_note(folder / "rank 2 knows", "")
    if rank == 0:
        wait_for(folder / "rank 2 knows")
        continue_after(0, folder)
    communicator.close()
    go_on(rank, folder, [0, 1, 2])
    tell(rank, folder, first=first, again=again)


if __name__ == "__main__":
    serve(globals())
