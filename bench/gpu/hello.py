"""The first minute: one ring in a process, one capture, one call between processes.

All that follows is the same in greater width. Each step is taken whatever became of the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta

from bench.gpu import cases, graph, ipc
from bench.gpu.part import Context, Failed
from tests.ranks import Ranks

TIMEOUT = timedelta(seconds=10)
ANSWER_S = 20.0


def run(context: Context) -> None:
    context.use_ringkern()
    device = "cuda:0" if context.device == "cuda" else "cpu"
    steps: dict[str, Callable[[], str]] = {
        "two ranks of one process": lambda: ring(device),
        "a captured call": lambda: capture(device),
        "two processes": lambda: processes(context.device),
    }
    troubles = []
    for name, step in steps.items():
        try:
            trouble = step()
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}".splitlines()[0]
        context.note(**{name: trouble or "right"})
        if trouble:
            troubles.append(f"{name}: {trouble}")
    if troubles:
        raise Failed("; ".join(troubles))


def ring(device: str) -> str:
    from ringkern.local import Ring

    given, expected = cases.all_reduce(device, "sum", "float32", 2, 1000)
    tensors = [row.clone() for row in given]
    with Ring([device] * 2, timeout=TIMEOUT) as made:
        made.all_reduce(tensors)
        wrong = sum(int((cases.bits_of(t) != cases.bits_of(expected)).sum()) for t in tensors)
    return f"{wrong} elements are wrong" if wrong else ""


def capture(device: str) -> str:
    from ringkern.local import Ring

    checked = graph.Checked(device, range(2), 2, 1001)
    with Ring([device] * 2, timeout=TIMEOUT) as made:
        replay = checked.capture(functools.partial(made.all_reduce))
        for _ in range(3):
            replay()
        _, wrong = checked.seen()
    return f"{wrong} elements are wrong in 3 replays" if wrong else ""


def processes(device: str) -> str:
    ranks = Ranks(2, timeout_s=ANSWER_S)
    try:
        found = ranks.run(ipc.check, device, "simple", 1000)
        ranks.close()
    finally:
        ranks.kill()
    return "; ".join(what for _, whats in found for what in whats[:1])
