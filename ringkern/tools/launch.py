"""Starts and ends ranks as processes of this machine, together, with a time limit.

Only the ranks need torch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
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
RANK_BYTES = 64 << 20  # memory that a process with torch does not share with the others
_GRACE_S = 10.0  # time for ranks to end by themselves once one has failed
_ENDING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


def torchrun() -> tuple[int, int] | None:
    """Returns (rank, ranks) if torchrun has started this process, else None.

    Raises:
        ValueError: RANK is set without a valid WORLD_SIZE.
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
    """Returns torchrun's number of ranks, else ``asked``, else 2.

    Raises:
        ValueError: torchrun has started a different number than ``asked``.
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
    cores: int = 0,
) -> int:
    """Runs ``entry(*args)`` on all ranks: those of torchrun, or ranks that it starts here.

    Args:
        cores: how many each rank keeps to, see :func:`pin`; 0: any.

    Returns:
        The exit status of this rank, or of all.

    Raises:
        ValueError: see :func:`number_of_ranks`.
        OSError: see :func:`launch`.
    """
    ranks = number_of_ranks(asked)
    if (found := torchrun()) is not None:
        if cores:
            pin(int(os.environ.get("LOCAL_RANK", found[0])), cores)
        in_group(found[0], ranks, "env://", timeout_s, entry, *args)
    return launch(ranks, timeout_s, entry, *args, cores=cores)


def a_core_each(threads: int) -> bool:
    """Tells if each of all ranks' threads can be pinned to a core that no other one uses.

    Ranks that must share cores are not pinned: the kernel places them, as it does for a user.
    """
    return threads <= len(os.sched_getaffinity(0))


def cores_by_rank(ranks: int, each: int) -> list[list[int]]:
    """Returns the cores of each rank, ``each`` of them, in turn."""
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    return [list(itertools.islice(cores, each)) for _ in range(ranks)]


def pin(rank: int, cores: int) -> None:
    """Keeps this process to that many cores, the rank's in turn, with all threads to come."""
    os.sched_setaffinity(0, cores_by_rank(rank + 1, cores)[rank])


def in_group(
    rank: int, ranks: int, init_method: str, timeout_s: float, entry: Callable[..., int], *args: Any
) -> NoReturn:
    """Runs ``entry(*args)`` as one rank of a Gloo group, and exits with what it returns.

    A rank that has not finished after ``timeout_s`` prints its stack and exits with 1. A rank whose
    ring failed prints the error and exits with 1.
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


def _started(cores: int, rank: int, *args: Any) -> NoReturn:
    from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # nothing else would end this rank
    if cores:
        pin(rank, cores)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        in_group(rank, *args)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


def launch(
    ranks: int, timeout_s: float, entry: Callable[..., int], *args: Any, cores: int = 0
) -> int:
    """Starts the ranks as processes, each with ``in_group``, and waits until all have ended.

    None outlives the call: they have ``timeout_s``, and a few seconds to print where they hang. An
    exception that a signal raises in this thread ends them, too, even during the start.

    Args:
        cores: how many each rank keeps to, see :func:`pin`; 0: any.

    Returns:
        The exit status: 0, or that of the first rank that failed; 1 for one that a signal ended.

    Raises:
        TimeoutError: the ranks did not end.
        OSError: one cannot be started, for example because of a limit on processes.
    """
    processes: list[SpawnProcess] = []
    context = multiprocessing.get_context("spawn")
    deadline = time.monotonic() + timeout_s + 15
    with tempfile.TemporaryDirectory(prefix="ringkern-") as folder:
        given = (ranks, f"file://{folder}/store", timeout_s, entry, *args)
        try:
            for rank in range(ranks):
                process = context.Process(target=_started, args=(cores, rank, *given))
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
    """Waits until all have ended; returns their exit status. A rank that fails ends the others."""
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
    """Delays the signals that end this program until the body has started a process.

    Otherwise the exception of a handler could leave a process behind that is in no list.

    Args:
        name: of the process, for an error.
        signals: the process receives signals at once. A rank blocks them until it has imported
            torch, because Ctrl-C would print a traceback.

    Raises:
        OSError: a limit on processes is reached; the text says what to do.
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
    """Checks the number of ranks before they are started.

    Args:
        ranks: how many are to be started.
        per_core: how many may share a core.

    Raises:
        ValueError: they are more, or need more memory than is free.
    """
    cores = len(os.sched_getaffinity(0))
    if ranks > (most := per_core * cores):
        raise ValueError(
            f"-n {ranks}: {cores} cores would run more than {per_core} ranks each; give -n {most} "
            "or less, or raise --ranks-per-core"
        )
    check_memory(ranks, ranks * RANK_BYTES, f"-n {ranks}", "-n")


def check_memory(ranks: int, needed: int, asked: str, smaller: str) -> None:
    """Checks the memory before ranks are started: without it the kernel would kill a process.

    Args:
        ranks: how many are to be started.
        needed: bytes that all of them need together, at least.
        asked: the argument, as given, that determines these bytes.
        smaller: the arguments to lower.

    Raises:
        ValueError: less memory is free.
    """
    if needed > (free := free_memory()):
        raise ValueError(
            f"{asked}: {ranks} ranks need at least {needed >> 20} MiB, and {free >> 20} MiB are "
            f"free; give a smaller {smaller}"
        )


def free_memory() -> int:
    """Returns the free memory of this machine, in bytes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
