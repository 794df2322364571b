"""A rank that never calls: the others are told in their last call, name it, and exit.

All ranks make one call together; then rank 1 makes no more, and the others make one, their last,
and ask its work what has become of it. The rank behind rank 1 must say that it waited for rank 1,
and whose deadline passes first must raise CollectiveTimeoutError: with 2 ranks that is the same
one. The others end, too, because a neighbour that has given up tells them. A new communicator of
the same processes works again, and at last they end by themselves.

With ``RINGKERN_ON_FAULT=exit``, the default on CUDA, ranks that never ask end by themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from bench.gpu import cases
from bench.gpu.ipc import place
from bench.gpu.part import Context, Failed
from tests.ranks import Ranks

DEADLINE_S = 3.0
MARGIN_S = 5.0  # for ranks that take turns on one GPU, and for what they raise
EXIT_S = 20.0
ABSENT = 1
# Where another rank's report comes first, the one behind it names the late rank at second hand.
NAMES_IT = re.compile(rf"wait(ed|ing) for (data from )?rank {ABSENT}\b", re.IGNORECASE)


def run(context: Context) -> None:
    context.use_ringkern()
    wrong: list[str] = []
    rows: list[dict[str, Any]] = []
    exits: list[tuple[list[int | None], float]] = []
    for size in (2, 3):
        ranks = Ranks(size, timeout_s=40)
        try:
            for protocol in cases.PROTOCOLS[:1] if context.quick else cases.PROTOCOLS:
                if context.left() < 4 * DEADLINE_S:
                    context.cut(f"k={size} {protocol}")
                    continue
                seen = told_in_vain(ranks, context.device, protocol)
                rows.append({"size": size, "protocol": protocol, "ranks": seen})
                wrong += [f"k={size} {protocol}: {what}" for what in judge(seen)]
                context.note(deadline_seconds=DEADLINE_S, scenarios=rows, exits=exits)
            exits.append(end(ranks))
            context.note(exits=exits)
        finally:
            ranks.kill()
        if context.left() < 4 * DEADLINE_S:
            context.cut(f"k={size} exit")
            continue
        ended = never_ask(context.device, size)
        wrong += [f"k={size} exit: {what}" for what in judge_ends(ended)]
        context.note(ended=[*context.figures.get("ended", []), {"size": size, "ranks": ended}])
    wrong += [f"exit codes {codes} after {s} s" for codes, s in exits if any(codes) or s > EXIT_S]
    if wrong:
        raise Failed("; ".join(wrong))


def end(ranks: Ranks) -> tuple[list[int | None], float]:
    """How the processes end by themselves: their exit codes, and after how long."""
    processes = list(ranks._processes)
    start = time.monotonic()
    ranks.close()
    seconds = round(time.monotonic() - start, 2)
    return [process.exitcode for process in processes], seconds


def judge(seen: list[tuple[str, str, float]]) -> list[str]:
    """Returns the faults in what the ranks saw."""
    wrong = []
    for rank, (kind, text, seconds) in enumerate(seen):
        if rank == ABSENT:
            continue
        if kind not in ("CollectiveTimeoutError", "CommAbortedError"):
            wrong.append(f"rank {rank} saw {kind}: {text}")
        if rank == (ABSENT + 1) % len(seen) and not NAMES_IT.search(text):
            wrong.append(f"rank {rank} does not name rank {ABSENT}: {kind}: {text}")
        if not DEADLINE_S * 0.5 <= seconds <= DEADLINE_S + MARGIN_S:
            wrong.append(f"rank {rank} ended after {seconds:.1f} s")
    if not any(kind == "CollectiveTimeoutError" for kind, _, _ in seen):
        wrong.append("no rank raised CollectiveTimeoutError")
    return wrong


def told_in_vain(ranks: Ranks, device: str, protocol: str) -> list[tuple[str, str, float]]:
    """Returns what each rank's call raised, whatever this process's policy for faults is."""
    with environment("raise"):  # ranks take it over when their first call starts them
        return ranks.run(wait_in_vain, device, protocol)


def wait_in_vain(rank: int, size: int, device: str, protocol: str) -> tuple[str, str, float]:
    """One rank: what its call raised, and after how long."""
    import torch.distributed as dist

    from ringkern import Communicator
    from ringkern.errors import RingKernError

    here = place(rank, device)
    tensor = torch.ones(5000, device=here)
    communicator = Communicator(timeout=timedelta(seconds=DEADLINE_S))
    communicator.all_reduce(tensor, protocol=protocol)
    if device == "cuda":
        torch.cuda.synchronize()
    dist.barrier()  # over Gloo, so that all clocks start together
    if rank == ABSENT:
        # Comes back when the others have given up.
        time.sleep(DEADLINE_S + 2.0)
        return "absent", "", 0.0
    start = time.monotonic()
    work = communicator.all_reduce(tensor, protocol=protocol, async_op=True)
    assert work is not None
    while work.is_success() and time.monotonic() < start + DEADLINE_S + MARGIN_S:
        time.sleep(0.01)
    told = time.monotonic() - start
    try:
        work.wait()
    except RingKernError as error:
        return type(error).__name__, str(error), told
    return "nothing", "the work tells nothing", told


@contextmanager
def environment(on_fault: str) -> Iterator[None]:
    """Sets ``RINGKERN_ON_FAULT`` for the processes that are started inside."""
    before = os.environ.get("RINGKERN_ON_FAULT")
    os.environ["RINGKERN_ON_FAULT"] = on_fault
    try:
        yield
    finally:
        del os.environ["RINGKERN_ON_FAULT"]
        if before is not None:
            os.environ["RINGKERN_ON_FAULT"] = before


def never_ask(device: str, size: int) -> list[tuple[int | None, float]]:
    """Returns by rank its exit code, ``None`` if it went on, and how long after its last call."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, environment("exit"):
        processes = [
            context.Process(target=_never_asks, args=(rank, size, device, folder))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        ends: dict[int, tuple[int | None, float]] = {}
        until = time.monotonic() + 60
        while len(ends) < size and time.monotonic() < until:
            time.sleep(0.01)
            for rank, process in enumerate(processes):
                if rank in ends or process.exitcode is None:
                    continue
                called = Path(folder, f"called{rank}")
                since = time.time() - called.stat().st_mtime if called.exists() else 0.0
                ends[rank] = (process.exitcode, round(since, 2))
        for process in processes:
            process.kill()
            process.join()
    return [ends.get(rank, (None, 60.0)) for rank in range(size)]


def _never_asks(rank: int, size: int, device: str, folder: str) -> None:
    import torch.distributed as dist

    from ringkern import Communicator

    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    tensor = torch.ones(5000, device=place(rank, device))
    communicator = Communicator(timeout=timedelta(seconds=DEADLINE_S))
    communicator.all_reduce(tensor)
    if device == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
    if rank != ABSENT:
        Path(folder, f"called{rank}").touch()
        communicator.all_reduce(tensor, async_op=True)
    time.sleep(DEADLINE_S + 2 * MARGIN_S)
    os._exit(0)


def judge_ends(ended: list[tuple[int | None, float]]) -> list[str]:
    """Returns the faults in how ranks ended that never asked."""
    return [
        f"rank {rank} ended with {code} after {seconds} s"
        for rank, (code, seconds) in enumerate(ended)
        if rank != ABSENT
        and not (code == 1 and DEADLINE_S * 0.5 <= seconds <= DEADLINE_S + MARGIN_S)
    ]
