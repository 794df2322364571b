"""Times calls beside what else does the same.

    python bench/overhead.py call --ranks 2 --json out.json
    python bench/overhead.py norm --ranks 2 --json out.json
    python bench/overhead.py late --ranks 2 --json out.json

``call``: what a call costs beside its data, by an all-reduce of 8 bytes: ``dist.all_reduce`` over
the backend "ringkern", the same over "gloo", and ``ringkern.ring_all_reduce``, which goes past
torch.distributed. With one rank there is nobody to wait for: what is left is the way through
Python, c10d and the backend.

``norm``: ``functional.all_reduce_residual_rms_norm`` of bfloat16 beside the operations that it
replaces: ``ring_all_reduce`` in place, an addition, and ``torch.nn.functional.rms_norm``.

``late``: all-reduces of 2 KiB by ranks that compute for 30 us before each, and in turn for longer,
so that the others wait. The least possible time is the sum of both.

All contenders take turns, in one run; times are those of rank 0, whose calls wait for all others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import torch
import torch.distributed as dist

import ringkern
from ringkern import functional
from ringkern.tools.launch import launch

REPEATS = 9
SECONDS = 0.2  # of calls, a contender and repeat


HIDDEN = (1024, 2048, 4096, 8192)
ROWS = (1, 4, 16, 64)
COMPUTE_US, LATE_US = 30, (20, 50, 100, 200, 1000)

Contenders = dict[str, Callable[[], object]]


def call_cases() -> Iterator[tuple[str, Contenders]]:
    group = dist.new_group(backend="ringkern")
    x = torch.zeros(2)
    yield (
        "8 bytes",
        {
            "backend ringkern": lambda: dist.all_reduce(x, group=group),
            "ring_all_reduce": lambda: ringkern.ring_all_reduce(x),
            "backend gloo": lambda: dist.all_reduce(x),
        },
    )


def norm_cases() -> Iterator[tuple[str, Contenders]]:
    for hidden in HIDDEN:
        weight = torch.randn(hidden).bfloat16()
        for rows in ROWS:
            x = torch.zeros(rows, hidden, dtype=torch.bfloat16)  # stays so, reduced in place
            yield f"{rows} x {hidden}", norm_contenders(x, torch.randn_like(x), weight)


def norm_contenders(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Contenders:
    def separate() -> None:
        ringkern.ring_all_reduce(x)
        torch.nn.functional.rms_norm(x + residual, weight.shape, weight, 1e-6)

    return {
        "fused": lambda: functional.all_reduce_residual_rms_norm(x, residual, weight, 1e-6),
        "separate": separate,
    }


def late_cases() -> Iterator[tuple[str, Contenders]]:
    x = torch.zeros(512)
    for late_us in LATE_US:
        yield (
            f"{COMPUTE_US} + {late_us} us",
            {
                "ring_all_reduce": step_of(lambda: ringkern.ring_all_reduce(x), late_us),
                "backend gloo": step_of(lambda: dist.all_reduce(x), late_us),
            },
        )


def step_of(call: Callable[[], object], late_us: int) -> Callable[[], None]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    turns = itertools.count()

    def step() -> None:
        is_late = next(turns) % ranks == rank
        end = time.perf_counter() + (COMPUTE_US + late_us * is_late) / 1e6
        while time.perf_counter() < end:
            pass
        call()

    return step


CASES = {"call": call_cases, "norm": norm_cases, "late": late_cases}


def measure(what: str, json_file: str | None) -> int:
    torch.set_num_threads(1)
    about = {
        "date": date.today().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "torch": torch.__version__,
        "ranks": dist.get_world_size(),
    }
    if dist.get_rank() == 0:
        for key, value in about.items():
            print(f"# {key}: {value}")
        print(f"{'us a call':32}{'median':>10}{'least':>10}{'most':>10}{'calls':>10}{'ratio':>8}")
    results: list[dict[str, Any]] = []
    for case, contenders in CASES[what]():
        calls = {name: agreed_calls(call) for name, call in contenders.items()}
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for repeat in range(REPEATS):
            order = list(contenders)
            for name in order if repeat % 2 else reversed(order):
                dist.barrier()
                times[name].append(seconds_of(contenders[name], calls[name]) / calls[name] * 1e6)
        results.append({"case": case, "times_us": times, "calls": calls})
        if dist.get_rank() == 0:
            report(**results[-1])
    if dist.get_rank() == 0 and json_file:
        with open(json_file, "w") as file:
            json.dump({**about, "cases": results}, file)
            file.write("\n")
    return 0


def seconds_of(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - start


def agreed_calls(call: Callable[[], object]) -> int:
    """The number that takes about SECONDS; the same on all ranks. Connects and warms up, too."""
    seconds_of(call, 20)
    calls = torch.tensor([max(1, int(SECONDS * 50 / seconds_of(call, 50)))])
    dist.all_reduce(calls, op=dist.ReduceOp.MIN)
    return int(calls)


def report(case: str, times_us: dict[str, list[float]], calls: dict[str, int]) -> None:
    """Prints a line for each contender; ``ratio``: its time in that of the last one."""
    last = statistics.median(list(times_us.values())[-1])
    for name, row in times_us.items():
        median = statistics.median(row)
        print(
            f"{case + ', ' + name:32}{median:10.2f}{min(row):10.2f}{max(row):10.2f}"
            f"{calls[name]:10}{median / last:8.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=list(CASES))
    parser.add_argument("-n", "--ranks", type=int, default=2, help="ranks to start (default 2)")
    parser.add_argument("-J", "--json", help="a file for each repeat's time")
    args = parser.parse_args()
    sys.exit(launch(args.ranks, 600.0, measure, args.what, args.json))


if __name__ == "__main__":
    main()
