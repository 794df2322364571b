"""Ranks as processes of this machine: started together, ended together."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, spawn

from .errors import RingKernError

DEFAULT_RANKS = 2
_ENDING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)


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
    """As :func:`number_of_ranks`, of which torchrun may have started some on other machines."""
    ranks = number_of_ranks(asked)
    here = os.environ.get("LOCAL_WORLD_SIZE", "") if torchrun() is not None else ""
    return min(ranks, int(here)) if here.isdecimal() else ranks


def run(asked: int | None, timeout_s: float, entry: Callable[..., int], *args: Any) -> int:
    """Runs ``entry(*args)`` on all ranks: those of torchrun, or else so many that are started here.

    Returns:
        The exit status of this rank, or of all.

    Raises:
        ValueError: as :func:`number_of_ranks`.
    """
    ranks = number_of_ranks(asked)
    if (found := torchrun()) is not None:
        in_group(found[0], ranks, "env://", timeout_s, entry, *args)
    return launch(ranks, timeout_s, entry, *args)


def in_group(
    rank: int, ranks: int, init_method: str, timeout_s: float, entry: Callable[..., int], *args: Any
) -> NoReturn:
    """Runs ``entry(*args)`` as one rank of a Gloo group, and exits with what it returns.

    A rank that is not through after ``timeout_s`` says where it is and exits with 1; so does one
    whose ring failed.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True)
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


def _started(rank: int, *args: Any) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    in_group(rank, *args)


def launch(ranks: int, timeout_s: float, entry: Callable[..., int], *args: Any) -> int:
    """Starts the ranks as processes, each with ``in_group``, and waits until all have ended.

    None outlives the call: they have ``timeout_s``, and a few seconds to say where they hang.

    Returns:
        The exit status: 0, or that of the first rank that failed; 1 for one that a signal ended.

    Raises:
        TimeoutError: the ranks did not end.
    """
    processes: list[BaseProcess] = []
    with tempfile.TemporaryDirectory(prefix="ringkern-") as folder:
        given = (ranks, f"file://{folder}/store", timeout_s, entry, *args)
        deadline = time.monotonic() + timeout_s + 15
        try:
            with _signals_later():
                context = spawn(_started, given, nprocs=ranks, join=False)
                processes += context.processes
            while not context.join(max(0.0, deadline - time.monotonic()), grace_period=10.0):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the ranks did not end within {timeout_s:g} s")
        except ProcessExitedException as failure:
            if failure.exit_code > 0:  # the rank has said why
                return failure.exit_code
            print(f"rank {failure.error_index} was ended by {failure.signal_name}", file=sys.stderr)
            return 1
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
    return 0


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until all ranks are there, so that they can be ended with the others.

    Processes that are started meanwhile have both blocked: a rank that is importing torch would
    answer Ctrl-C with a traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    heeded = [n for n in _ENDING if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in heeded}
    resource_tracker.ensure_running()  # else the first rank starts it, and that unblocks both
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)


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
