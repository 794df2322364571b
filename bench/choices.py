"""Measures a choice: all-reduce by "auto" beside every way that can be asked for, or the modes
that fix the order of addition beside the plain one.

    python bench/choices.py ways --json out.json     # is "auto" the best of them?
    python bench/choices.py modes --json out.json    # deterministic=, accumulate=

All contenders take turns, size by size, in one run; each is called from C++ by the way that an
ordinary call takes, so that only what is chosen differs. A time is the median over the repeats of
the median call of a block, on the slower rank.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import torch
import torch.distributed as dist

import ringkern
from ringkern.choose import tables
from ringkern.tools.bench.report import machine
from ringkern.tools.launch import launch

REPEATS = 101
HOPELESS = 2.0  # times as slow as the best, after a few repeats: no longer called
BLOCK_US = 300.0  # of calls, without another contender between


@dataclass(frozen=True)
class Contender:
    """An all-reduce as it may be asked for; ``dtype`` is torch's name."""

    name: str
    dtype: str = "float32"
    algorithm: str = "auto"
    protocol: str = "auto"
    in_rank_order: bool = False
    wide: bool = False
    tree: bool = False

    def times(self, ring: Any, x: torch.Tensor, calls: int) -> list[int]:
        """Nanoseconds of each call."""
        times: list[int] = ring.time_all_reduce(
            x, calls, self.algorithm, self.protocol, self.in_rank_order, self.wide, self.tree
        )
        return times


WAYS = (
    Contender("auto"),
    Contender("one_shot/ll", algorithm="one_shot", protocol="ll"),
    Contender("one_shot/simple", algorithm="one_shot", protocol="simple"),
    Contender("two_shot/simple", algorithm="two_shot", protocol="simple"),
    Contender("ring/ll", algorithm="ring", protocol="ll"),
    Contender("ring/ll128", algorithm="ring", protocol="ll128"),
    Contender("ring/simple", algorithm="ring", protocol="simple"),
)
MODES = tuple(
    contender
    for dtype in ("float32", "bfloat16")
    for contender in (
        Contender(f"{dtype}", dtype),
        Contender(f"{dtype} size_invariant", dtype, in_rank_order=True),
        Contender(f"{dtype} world_invariant", dtype, in_rank_order=True, wide=True, tree=True),
        *([Contender(f"{dtype} float32", dtype, wide=True)] if dtype == "bfloat16" else []),
        Contender(f"{dtype} ring", dtype, algorithm="ring"),
    )
)


def sizes_between(first: int, last: int, count: int) -> list[int]:
    """Bytes, at equal ratios, in whole floats of 4."""
    ratio = (last / first) ** (1 / (count - 1))
    return sorted({max(8, round(first * ratio**i / 4) * 4) for i in range(count)})


def measure(
    contenders: tuple[Contender, ...], sizes: list[int], command: str, out: str | None
) -> int:
    torch.set_num_threads(1)
    ring = ringkern.Communicator()._c
    rows = []
    for size in sizes:
        rows.append(row(contenders, ring, size))
        if dist.get_rank() == 0:
            times = rows[-1]["times_us"]
            print(f"{size:>12}", *(f"{t:16.2f}" for t in times.values()), flush=True)
    if dist.get_rank() == 0 and out:
        about = {"machine": machine(), "command": command, "ranks": dist.get_world_size()}
        date = datetime.now().astimezone().isoformat(timespec="seconds")
        with open(out, "w") as file:
            json.dump({**about, "date": date, "rows": rows}, file, indent=1)
            file.write("\n")
    return 0


def row(contenders: tuple[Contender, ...], ring: Any, size: int) -> dict[str, Any]:
    """One size: the times of all, and which way "auto" went."""
    buffers = {c.dtype: torch.zeros(1) for c in contenders}
    for dtype in buffers:
        kind = getattr(torch, dtype)
        buffers[dtype] = torch.zeros(size // kind.itemsize, dtype=kind)
    blocks: dict[str, list[float]] = {c.name: [] for c in contenders}
    first = {c.name: statistics.median(c.times(ring, buffers[c.dtype], 5)) for c in contenders}
    calls = {
        name: max(1, min(200, int(BLOCK_US * 1e3 / ns))) for name, ns in slowest(first).items()
    }
    left = list(contenders)
    for repeat in range(REPEATS):
        for c in left if repeat % 2 else reversed(left):
            blocks[c.name].append(statistics.median(c.times(ring, buffers[c.dtype], calls[c.name])))
        if repeat in (4, 12):
            so_far = slowest({c.name: statistics.median(blocks[c.name]) for c in left})
            best = min(so_far.values())
            left = [c for c in left if c.name == "auto" or so_far[c.name] < HOPELESS * best]
    times = slowest({name: statistics.median(block) for name, block in blocks.items()})
    return {
        "size_bytes": size,
        "times_us": {name: ns / 1e3 for name, ns in times.items()},
        "calls": calls,
        "repeats": {name: len(block) for name, block in blocks.items()},
        "auto": str(tables.way_of(ring.table("cpu")["automatic"], size)),
    }


def slowest(of_this_rank: dict[str, float]) -> dict[str, float]:
    """The slowest of all ranks; the same on all."""
    values = torch.tensor(list(of_this_rank.values()), dtype=torch.float64)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return dict(zip(of_this_rank, values.tolist()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["ways", "modes"])
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("-b", "--minbytes", type=int, default=8)
    parser.add_argument("-e", "--maxbytes", type=int, default=256 << 20)
    parser.add_argument("--sizes", type=int, default=60, help="at equal ratios (default 60)")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    contenders = WAYS if args.what == "ways" else MODES
    command = shlex.join(["python", *sys.argv])
    print(f"# {command}; load {os.getloadavg()[0]:.1f}; microseconds")
    print(f"{'bytes':>12}", *(f"{c.name:>16}" for c in contenders))
    sizes = sizes_between(args.minbytes, args.maxbytes, args.sizes)
    return launch(args.ranks, 1800, measure, contenders, sizes, command, args.json)


if __name__ == "__main__":
    sys.exit(main())
