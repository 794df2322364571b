"""What a call costs beside its data: all-reduce of 8 bytes through torch.distributed's backends.

    python bench/overhead.py --ranks 2 --json out.json

Three contenders in turn, in one run: ``dist.all_reduce`` over the backend "ringkern", the same over
"gloo", and ``ringkern.ring_all_reduce``, which goes past torch.distributed. With one rank there is
nobody to wait for: what is left is the way through Python, c10d and the backend.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date

import torch
import torch.distributed as dist

import ringkern
from ringkern.tools.launch import launch

REPEATS = 9
SECONDS = 0.2  # of calls, a contender and repeat


def measure(json_file: str | None) -> int:
    torch.set_num_threads(1)
    group = dist.new_group(backend="ringkern")
    x = torch.zeros(2)
    contenders: dict[str, Callable[[], object]] = {
        "backend ringkern": lambda: dist.all_reduce(x, group=group),
        "ring_all_reduce": lambda: ringkern.ring_all_reduce(x),
        "backend gloo": lambda: dist.all_reduce(x),
    }
    calls = {name: agreed_calls(call) for name, call in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(REPEATS):
        order = list(contenders)
        for name in order if repeat % 2 else reversed(order):
            dist.barrier()
            times[name].append(seconds_of(contenders[name], calls[name]) / calls[name] * 1e6)
    if dist.get_rank() == 0:
        report(times, calls, json_file)
    return 0


def seconds_of(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - start


def agreed_calls(call: Callable[[], object]) -> int:
    """As many as take about SECONDS; the same on all ranks. Connects and warms up, too."""
    seconds_of(call, 20)
    calls = torch.tensor([max(1, int(SECONDS * 50 / seconds_of(call, 50)))])
    dist.all_reduce(calls, op=dist.ReduceOp.MIN)
    return int(calls)


def report(times: dict[str, list[float]], calls: dict[str, int], json_file: str | None) -> None:
    about = {
        "date": date.today().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "torch": torch.__version__,
        "ranks": dist.get_world_size(),
    }
    for key, value in about.items():
        print(f"# {key}: {value}")
    print(f"{'8 bytes, us a call':20}{'median':>10}{'least':>10}{'most':>10}{'calls':>10}")
    for name, row in times.items():
        print(
            f"{name:20}{statistics.median(row):10.2f}{min(row):10.2f}{max(row):10.2f}"
            f"{calls[name]:10}"
        )
    if json_file:
        with open(json_file, "w") as file:
            json.dump({**about, "times_us": times, "calls": calls}, file, indent=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", "--ranks", type=int, default=2, help="ranks to start (default 2)")
    parser.add_argument("-J", "--json", help="a file for each repeat's time")
    args = parser.parse_args()
    sys.exit(launch(args.ranks, 120.0, measure, args.json))


if __name__ == "__main__":
    main()
