"""Processes, a rank each: results, to the bit.

Where they share a GPU they take turns on it, a few milliseconds each, and every hop of the ring may
cost a turn: the cases are few, and their time says nothing about speed.
"""

from __future__ import annotations

from typing import Any

import torch

from bench.gpu import cases
from bench.gpu.part import Context, Failed
from tests.ranks import RankError, Ranks

COUNTS = (1, 1000, 100_003)
DTYPES = (("float32", "sum"), ("bfloat16", "avg"), ("int64", "prod"), ("int8", "bxor"))


def run(context: Context) -> None:
    context.use_ringkern()
    gpus = len(context.machine["gpus"])
    sizes = sorted({2, 4, *([gpus] if 2 < gpus <= 8 else [])})
    counts = COUNTS[:2] if context.quick else COUNTS
    wrong: list[str] = []
    cases_run = 0
    for size in sizes:
        ranks = Ranks(size, timeout_s=60)
        try:
            for protocol in cases.PROTOCOLS:
                for count in counts:
                    if context.left(0.8) < 0:
                        context.cut(f"k={size} {protocol}[{count}]")
                        continue
                    found = ranks.run(check, context.device, protocol, count)
                    cases_run += sum(number for number, _ in found)
                    wrong += [what for _, whats in found for what in whats]
                    context.note(processes=size, gpus=gpus, cases=cases_run, wrong=wrong[:20])
            ranks.close()
        except RankError as error:
            wrong.append(f"k={size}: {error.kind}: {error.text}")
            context.note(wrong=wrong[:20])
        finally:
            ranks.kill()
    if wrong:
        raise Failed(f"{len(wrong)} wrong; first: {wrong[0]}")
    if not cases_run:
        raise Failed("not one case was run in time")


def place(rank: int, device: str) -> str:
    """Where a rank has its tensors."""
    if device == "cpu":
        return "cpu"
    index = rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return f"cuda:{index}"


def check(rank: int, size: int, device: str, protocol: str, count: int) -> tuple[int, list[str]]:
    """One rank's cases of a protocol and size: how many, and what was wrong."""
    import ringkern

    here = place(rank, device)
    found: list[tuple[str, torch.Tensor]] = []

    def compare(what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
        found.append((what, (cases.bits_of(actual) != cases.bits_of(expected)).sum()))

    for dtype, op in DTYPES:
        given, expected = cases.all_reduce(here, op, dtype, size, count)
        ways = [protocol, *(cases.ALGORITHMS if protocol == "ll" else ())]
        for way in ways:
            tensor = given[rank].clone()
            ringkern.ring_all_reduce(tensor, cases.reduce_op(op), **cases.WAYS[way])
            compare(f"all_reduce {way} {op} {dtype}", tensor, expected)
    given, expected = cases.all_reduce(here, "sum", "float32", size, count * size)
    output = given.new_empty(count)
    cases.poison(output)
    ringkern.ring_reduce_scatter(output, given[rank].clone(), protocol=protocol)
    compare("reduce_scatter", output, expected.narrow(0, rank * count, count))
    parts, whole = cases.all_gather(here, "bfloat16", size, count)
    gathered: Any = torch.empty_like(whole)
    cases.poison(gathered)
    ringkern.ring_all_gather(gathered, parts[rank].clone(), protocol=protocol)
    compare("all_gather", gathered, whole)
    counts = [(what, int(number)) for what, number in found]
    return len(counts), [
        f"{what} {protocol}[{count}] rank {rank} of {size}: {number} elements differ"
        for what, number in counts
        if number
    ]
