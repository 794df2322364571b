"""``init_process_group("ringkern")`` on CUDA tensors: a rank a process, every call, to the bit.

It is four parts: ``backend``, ``backend_k4``, ``one_queue``, in which all streams of a process
share one hardware queue, and ``wrappers``, whose checks are in ``backend_wrappers``. The values are
integers in floats, small enough that no order of additions rounds. The checks are in three files:
of what the calls give (``backend_calls``), of when (``backend_streams``), and of memory of others
(``backend_arrays``). Each check has all ranks for itself; where it raises or does not come back,
the processes are ended and the next check starts others.

Where the processes share a GPU they take turns on it: the cases are few.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from bench.gpu import arrays, backend_arrays, backend_calls, backend_streams, backend_wrappers
from bench.gpu.backend_rank import Rank
from bench.gpu.ipc import place
from bench.gpu.missing_peer import EXIT_S, end
from bench.gpu.part import WITHOUT_A_GPU, Context, Failed
from tests.ranks import RankError, Ranks, RankTimeout

SIZES = {"backend_k4": 4}  # ranks in a part, if not 2
DEADLINE = timedelta(seconds=30)  # of a wait in a call
ANSWER_S = 60.0  # of a check
MOST_LOST = 3  # checks without an answer, after which those that are left would have none either
_SHOWN = 20  # of what was wrong

CHECKS: dict[str, Callable[[Rank], None]] = {
    **backend_calls.CHECKS,
    **backend_streams.CHECKS,
    **backend_arrays.CHECKS,
}


def run(context: Context) -> None:
    context.use_ringkern()
    if context.name == "one_queue":
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # as Megatron-LM demands; ranks inherit it
    wrong: list[str] = []
    rows: list[dict[str, Any]] = []
    gpus = 0 if context.rehearsal else len(context.machine["gpus"])
    library, version = arrays.found(context.device)
    context.note(gpus=gpus, arrays=version)
    checks = backend_wrappers.CHECKS if context.name == "wrappers" else CHECKS
    names = [name for name in checks if library or name != "arrays"]
    patience = ANSWER_S * (WITHOUT_A_GPU if context.rehearsal else 1)
    ranks = Ranks(SIZES.get(context.name, 2), timeout_s=patience)
    try:
        lost = 0
        for at, name in enumerate(names):
            if context.left(0.8) < 0 or lost == MOST_LOST:
                context.cut(", ".join(names[at:]))
                break
            row, whats = check(ranks, name, context.device)
            lost += not row["cases"]
            rows.append(row)
            wrong += whats
            context.note(**totals(rows), what=wrong[:_SHOWN])
        wrong += badly_ended(ranks)
    finally:
        ranks.kill()
    context.note(complete=not context.missing, what=wrong[:_SHOWN])
    if wrong:
        raise Failed(f"{len(wrong)} wrong; first: {wrong[0]}")
    if not rows:
        raise Failed("not one check was run in time")


def check(ranks: Ranks, name: str, device: str) -> tuple[dict[str, Any], list[str]]:
    """One check on all ranks: its row of the figures, and what was wrong."""
    row: dict[str, Any] = {"processes": ranks.size, "check": name, "cases": 0, "wrong": 0}
    try:
        found = ranks.run(check_on_rank, name, device)
    except (RankError, RankTimeout, EOFError, OSError) as error:
        print(error, flush=True)  # for the log
        return {**row, "wrong": 1}, [f"k={ranks.size} {name}: {cause(error)}"]
    whats = [f"k={ranks.size} {name}: {what}" for _, of_rank in found for what in of_rank]
    return {**row, "cases": sum(cases for cases, _ in found), "wrong": len(whats)}, whats


def cause(error: Exception) -> str:
    """Returns the ranks that raised or did not answer, without tracebacks."""
    lines = itertools.takewhile(lambda line: "Traceback" not in line, str(error).splitlines())
    return f"{type(error).__name__}: {' '.join(lines)}"[:500]


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all checks so far."""
    return {key: sum(row[key] for row in rows) for key in ("cases", "wrong")} | {"rows": rows}


def badly_ended(ranks: Ranks) -> list[str]:
    """Checks that the processes end by themselves, as a program that has done its work."""
    codes, seconds = end(ranks)
    if not any(codes) and seconds <= EXIT_S:
        return []
    return [f"k={len(codes)}: the ranks ended with {codes} after {seconds} s"]


_joined = False  # this process is a rank of ringkern's group


def check_on_rank(rank: int, size: int, name: str, device: str) -> tuple[int, list[str]]:
    """One rank of a check: how many cases it was, and what was wrong."""
    global _joined
    here = place(rank, device)
    if not _joined:
        join(rank, size)
        _joined = True
    at = Rank(rank, size, here)
    (CHECKS | backend_wrappers.CHECKS)[name](at)
    return at.settle()


def join(rank: int, size: int) -> None:
    """In place of the Gloo group in which the processes came: ringkern's is the default one."""
    import ringkern  # noqa: F401  (registers the backend)

    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group(
        "ringkern",
        store=dist.PrefixStore("backend", store),
        rank=rank,
        world_size=size,
        timeout=DEADLINE,
    )
