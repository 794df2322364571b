"""Ranks as processes of this machine: bounded, started together, ended together.

Needs torch in a rank only.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NoReturn

DEFAULT_RANKS = 2
RANKS_PER_CORE = 16  # by default, at most
RANK_BYTES = 64 << 20  # of memory that a process with torch does not share with the others
_GRACE_S = 10.0  # for ranks to end by themselves once one has failed
_ENDING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


def torchrun() -> tuple[int, int] | None:
    """(rank, ranks) where torchrun has started this process.

    Raises:
        ValueError: it is only half said.
    """
    if "RANK" not in os.environ:
        return None
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise ValueError(
            f"RANK={os.environ['RANK']!r} and WORLD_SIZE={os.environ.get('WORLD_SIZE')!r} in the "
            "environment: start with torchrun, which sets both, or unset RANK"
        ) from None


def number_of_ranks(asked: int | None) -> int:
    """Torchrun's, or what is asked for, or 2.

    Raises:
        ValueError: torchrun has started another number than is asked for.
    """
    if (found := torchrun()) is None:
        return DEFAULT_RANKS if asked is None else asked
    if asked not in (None, found[1]):
        raise ValueError(f"-n {asked}: torchrun has started {found[1]} ranks; leave out -n")
    return found[1]


def ranks_here(asked: int | None) -> int:
    """Counts the ranks on this machine: torchrun may have started some on others."""
    ranks = number_of_ranks(asked)
    here = os.environ.get("LOCAL_WORLD_SIZE", "") if torchrun() is not None else ""
    return min(ranks, int(here)) if here.isdecimal() else ranks


def run(
    asked: int | None,
    timeout_s: float,
    entry: Callable[..., int],
    *args: Any,
    pinned: bool = False,
) -> int:
    """Runs ``entry(*args)`` on all ranks: those of torchrun, or else ranks that it starts here.

    Args:
        pinned: each rank keeps to one core, see :func:`pin`.

    Returns:
        The exit status of this rank, or of all.

    Raises:
        ValueError: as :func:`number_of_ranks`.
        OSError: as :func:`launch`.
    """
    ranks = number_of_ranks(asked)
    if (found := torchrun()) is not None:
        if pinned:
            pin(int(os.environ.get("LOCAL_RANK", found[0])))
        in_group(found[0], ranks, "env://", timeout_s, entry, *args)
    return launch(ranks, timeout_s, entry, *args, pinned=pinned)


def a_core_each(ranks: int) -> bool:
    """Tells if each rank can be pinned to a core of this process that no other rank uses.

    Ranks that must share cores are not pinned: the kernel places them, as it does for a user.
    """
    return ranks <= len(os.sched_getaffinity(0))


def pin(rank: int) -> None:
    """Keeps this process to one of its cores, the rank's in turn, with all threads to come."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def in_group(
    rank: int, ranks: int, init_method: str, timeout_s: float, entry: Callable[..., int], *args: Any
) -> NoReturn:
    """Runs ``entry(*args)`` as one rank of a Gloo group, and exits with what it returns.

    A rank that is not through after ``timeout_s`` says where it is and exits with 1; so does one
    whose ring failed.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    import torch.distributed as dist

    from ..errors import RingKernError

    limit = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method, limit, world_size=ranks, rank=rank)
    try:
        status = entry(*args)
    except (RingKernError, MemoryError, OSError) as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        status = 1
    finally:
        dist.destroy_process_group()
        faulthandler.cancel_dump_traceback_later()
    raise SystemExit(status)


def _started(pinned: bool, rank: int, *args: Any) -> NoReturn:
    from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # nobody else would end this rank
    if pinned:
        pin(rank)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        in_group(rank, *args)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


def launch(
    ranks: int, timeout_s: float, entry: Callable[..., int], *args: Any, pinned: bool = False
) -> int:
    """Starts the ranks as processes, each with ``in_group``, and waits until all have ended.

    None outlives the call: they have ``timeout_s``, and a few seconds to say where they hang. An
    exception that a signal raises in this thread ends them, too, also while they are started.

    Args:
        pinned: each rank keeps to one core, see :func:`pin`.

    Returns:
        The exit status: 0, or that of the first rank that failed; 1 for one that a signal ended.

    Raises:
        TimeoutError: the ranks did not end.
        OSError: one cannot be started, as for a limit on processes.
    """
    processes: list[SpawnProcess] = []
    context = multiprocessing.get_context("spawn")
    deadline = time.monotonic() + timeout_s + 15
    with tempfile.TemporaryDirectory(prefix="ringkern-") as folder:
        given = (ranks, f"file://{folder}/store", timeout_s, entry, *args)
        try:
            for rank in range(ranks):
                process = context.Process(target=_started, args=(pinned, rank, *given))
                with starting(f"rank {rank} of {ranks}", signals=False):
                    process.start()
                    processes.append(process)
            return _end_of(processes, deadline)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()


def _end_of(processes: list[SpawnProcess], deadline: float) -> int:
    """The exit status of all, once they have ended; a rank that fails ends the others."""
    status, going = 0, dict(enumerate(processes))
    while going:
        sentinels = [process.sentinel for process in going.values()]
        if not connection.wait(sentinels, max(0.0, deadline - time.monotonic())):
            if status:
                return status  # ranks that do not heed SIGTERM are killed
            raise TimeoutError("the ranks did not end in time")
        ended = [rank for rank, process in going.items() if not process.is_alive()]
        codes = {rank: going.pop(rank).exitcode or 0 for rank in ended}
        failed = next((rank for rank, code in codes.items() if code), None)
        if failed is not None and not status:
            status = codes[failed]
            if status < 0:
                name = signal.Signals(-status).name
                print(f"rank {failed} was ended by {name}", file=sys.stderr)
                status = 1
            for process in going.values():
                process.terminate()
            deadline = min(deadline, time.monotonic() + _GRACE_S)
    return status


@contextlib.contextmanager
def starting(name: str, *, signals: bool = True) -> Iterator[None]:
    """Starts a process in its body: signals that end this program wait until its end.

    Else the exception of a handler would leave behind a process that nobody has in a list.

    Args:
        name: of the process, for an error.
        signals: the process takes them at once. A rank that is importing torch would answer Ctrl-C
            with a traceback, and has them blocked until it is through.

    Raises:
        OSError: there may be no process more; the text says what to do.
    """
    try:
        with _signals_later(blocked=not signals):
            yield
    except BlockingIOError as error:
        raise OSError(
            f"{name} could not be started: {error.strerror}; raise the limit on processes (ulimit "
            "-u, pids.max of the cgroup), or start fewer ranks (-n)"
        ) from error


@contextlib.contextmanager
def _signals_later(*, blocked: bool) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    heeded = [n for n in _ENDING if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in heeded}
    if blocked:
        resource_tracker.ensure_running()  # else the first rank starts it, and that unblocks both
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        if blocked:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)


def check_ranks(ranks: int, per_core: int) -> None:
    """Says that there would be too many ranks here, before one is started.

    Args:
        ranks: that are to be started.
        per_core: how many may share a core.

    Raises:
        ValueError: they are more, or need more memory than is free.
    """
    cores = len(os.sched_getaffinity(0))
    if ranks > (most := per_core * cores):
        raise ValueError(
            f"-n {ranks}: more than {per_core} ranks a core would share {cores} cores; give -n "
            f"{most} or less, or raise --ranks-per-core"
        )
    check_memory(ranks, ranks * RANK_BYTES, f"-n {ranks}", "-n")


def check_memory(ranks: int, needed: int, asked: str, smaller: str) -> None:
    """Says that ranks would not fit, before they are started: else the kernel ends some process.

    Args:
        ranks: that are to be started.
        needed: bytes that all of them take together, at least.
        asked: the argument that the bytes follow from, as given.
        smaller: which arguments to lower.

    Raises:
        ValueError: less memory is free.
    """
    if needed > (free := free_memory()):
        raise ValueError(
            f"{asked}: {ranks} ranks need {needed >> 20} MiB at least, and {free >> 20} MiB are "
            f"free; give a smaller {smaller}"
        )


def free_memory() -> int:
    """Bytes of this machine that can be had without taking them from anybody."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
