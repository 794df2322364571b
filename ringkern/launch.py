"""Ranks as processes of this machine: started together, ended together."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, spawn


def in_group(
    rank: int, ranks: int, init_method: str, timeout_s: float, entry: Callable[..., int], *args: Any
) -> NoReturn:
    """Runs ``entry(*args)`` as one rank of a Gloo group, and exits with what it returns.

    A rank that is not through after ``timeout_s`` says where it is and exits with 1.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method, limit, world_size=ranks, rank=rank)
    try:
        status = entry(*args)
    finally:
        dist.destroy_process_group()
    raise SystemExit(status)


def launch(ranks: int, timeout_s: float, entry: Callable[..., int], *args: Any) -> int:
    """Starts the ranks as processes, each with ``in_group``, and waits until all have ended.

    None outlives the call: they have ``timeout_s``, and a few seconds to say where they hang.

    Returns:
        The exit status: 0, or that of the first rank that failed.
    """
    with tempfile.TemporaryDirectory(prefix="ringkern-") as folder:
        context = spawn(
            in_group,
            (ranks, f"file://{folder}/store", timeout_s, entry, *args),
            nprocs=ranks,
            join=False,
        )
        deadline = time.monotonic() + timeout_s + 15
        try:
            while not context.join(max(0.0, deadline - time.monotonic()), grace_period=10.0):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the ranks did not end within {timeout_s} s")
        except ProcessExitedException as failure:  # the rank has said why
            return abs(failure.exit_code)
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
                process.join()
    return 0


def free_memory() -> int:
    """Bytes of this machine that can be had without taking them from anybody."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
