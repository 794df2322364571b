"""A rank that never calls: the others end by their deadline, say whom they waited for, and exit.

All ranks make one call together; then rank 1 makes no more. The rank behind it must say that it
waited for rank 1, and whose deadline passes first must raise CollectiveTimeoutError: with 2 ranks
that is the same one. The others end, too, because a neighbour that has given up tells them. On CUDA
a failed launch is reported by the call after it. A new communicator of the same processes works
again, and at last they end by themselves.
"""

from __future__ import annotations

import re
import time
from datetime import timedelta
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
                seen = ranks.run(wait_in_vain, context.device, protocol)
                rows.append({"size": size, "protocol": protocol, "ranks": seen})
                wrong += [f"k={size} {protocol}: {what}" for what in judge(seen)]
                context.note(deadline_seconds=DEADLINE_S, scenarios=rows, exits=exits)
            exits.append(end(ranks))
            context.note(exits=exits)
        finally:
            ranks.kill()
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
    """What is wrong with what the ranks saw."""
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
    try:
        communicator.all_reduce(tensor, protocol=protocol)
        if device == "cuda":
            torch.cuda.synchronize()
        communicator.all_reduce(tensor, protocol=protocol)
    except RingKernError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "nothing", "no call raised", time.monotonic() - start
