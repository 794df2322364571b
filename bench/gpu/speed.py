"""Time and bus bandwidth of ranks of one process on one GPU, next to NCCL where one is given.

Without NCCL, what a user gets by default, the same in the order of a tree, the ring over each of
the three protocols and the direct algorithms compete in one process for each number of ranks.
NCCL's protocol follows from its environment: with it there is a process for each protocol, in which
it competes with ringkern's of the same name, and one in which both choose, and in which the direct
algorithms compete, too. A quick run has that last one alone, with all of ringkern's ways.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.gpu import device, limits, nccl
from bench.gpu.bounded import ROOT
from bench.gpu.cases import ALGORITHMS, ON_HOST, PROTOCOLS, WAYS
from bench.gpu.contest import LAUNCH, TREE, Settings
from bench.gpu.part import WITHOUT_A_GPU, Context, Failed, write_json

RANKS = (2, 4, 8)
SIZES = (8, 512, 8 << 10, 64 << 10, 256 << 10, *((1 << 20) * 4**i for i in range(5)))
QUICK_SIZES = (8 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
REHEARSED_SIZES = (8, 4 << 10, 256 << 10, 16 << 20)  # on a CPU
STALL_SECONDS, QUICK_STALL_SECONDS = 45.0, 20.0  # without a new result: it hangs
NO_TIME = "ended, for the part's time is over"


def run(context: Context) -> None:
    context.use_ringkern()
    from ringkern.tools.model import one_gpu

    context.note(costs=one_gpu.shipped_costs())  # of the kernels that are measured
    known = known_limits(context)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    broken: list[str] = []
    groups: list[tuple[str, ...]] = [("auto", TREE, *WAYS)]
    if context.nccl and not context.quick:
        groups = [("auto", TREE, *ALGORITHMS), *((protocol,) for protocol in PROTOCOLS)]
    contests = [(ranks, group) for group in groups for ranks in RANKS]
    for ranks, group in contests:
        if context.left() < 15:
            context.cut(f"k={ranks} {'/'.join(group)}")
            continue
        lines, trouble = contest(context, ranks, group, notes)
        if trouble == NO_TIME:
            context.cut(f"the last sizes of k={ranks} {'/'.join(group)}")
        elif trouble:
            broken.append(f"k={ranks} {'/'.join(group)} {trouble}")
        found = [row(line, known) for line in lines if "size_bytes" in line]
        rows += [with_prediction(each, known, context.machine) for each in found]
        notes += [f"k={ranks}: {line['note']}" for line in lines if "note" in line]
        context.note(limits=known, rows=rows, notes=list(dict.fromkeys(notes)))
    wrong = [row for row in rows if row["wrong"]]
    if wrong:
        first = wrong[0]
        raise Failed(
            f"{len(wrong)} results are wrong; first: {first['contender']} k={first['ranks']} "
            f"{first['size_bytes']} bytes"
        )
    if broken:
        raise Failed("; ".join(broken))
    if not rows:
        raise Failed(f"nothing was measured: {'; '.join(notes)}")


def contest(
    context: Context, ranks: int, group: tuple[str, ...], notes: list[str]
) -> tuple[list[dict[str, Any]], str]:
    """Returns the results of one contest; if NCCL hangs, repeats the sizes left without it.

    The text is what was wrong without NCCL, too, or "".
    """
    sizes = SIZES
    if context.rehearsal:
        sizes = REHEARSED_SIZES
    elif context.quick:
        sizes = QUICK_SIZES
    gpu = context.machine["gpus"][0]
    results = context.work / "contest.jsonl"
    results.unlink(missing_ok=True)
    trouble = ""
    for library in (context.nccl, "") if context.nccl else ("",):
        lines = json_lines(results)
        done = {line["size_bytes"] for line in lines if "size_bytes" in line}
        settings = Settings(
            ranks=ranks,
            ways=group,
            sizes=tuple(size for size in sizes if size not in done),
            device="cpu" if context.rehearsal else "cuda:0",
            nccl=library,
            l2_bytes=device.l2_bytes(context.machine),
            repeats=3 if context.quick else 9,
        )
        environment = {}
        if library:
            environment = nccl.environment(ranks, group[0], gpu.get("multiprocessors", 100))
        trouble = run_contest(context, settings, results, environment)
        if not trouble or trouble == NO_TIME:
            break
        notes.append(f"k={ranks} {'/'.join(group)}{' with NCCL' if library else ''}: {trouble}")
    return json_lines(results), trouble


def run_contest(
    context: Context, settings: Settings, results: Path, environment: dict[str, str]
) -> str:
    """Runs one in a process, as long as it makes progress; what was wrong with it, or ""."""
    told = context.work / "contest.json"
    write_json(told, {**asdict(settings), "site": str(context.work / "site")})
    process = subprocess.Popen(
        [sys.executable, "-u", str(ROOT / "bench/gpu"), "--contest", str(told), str(results)],
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    stall = QUICK_STALL_SECONDS if context.quick else STALL_SECONDS
    if context.rehearsal:
        stall = STALL_SECONDS * WITHOUT_A_GPU
    try:
        size, since = -1, time.monotonic()
        while process.poll() is None:
            now = results.stat().st_size if results.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() - since > stall:
                return f"ended, for it made no progress for {stall:.0f} s"
            if context.left(0.95) < 0:
                return NO_TIME
            time.sleep(0.05)
        return f"ended with {process.returncode}" if process.returncode else ""
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)  # one that waits for a GPU may not end at once


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that are whole."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def known_limits(context: Context) -> dict[str, Any]:
    """Returns what the part ``limits`` has found, in this run or an earlier one; {} if nothing."""
    try:
        figures = json.loads((context.work / "state" / "limits.json").read_text())["figures"]
    except (OSError, json.JSONDecodeError, KeyError):
        return {}
    known = {key: figures[key] for key in limits.FIGURES if key in figures}
    return known if len(known) == len(limits.FIGURES) else {}


def row(line: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """A result with its bandwidths, and its shares of what this GPU can do.

    ``share``: the least time of any all-reduce on this GPU over the time; ``ring_share``, for a
    protocol by name: the least time of a ring over it.
    """
    size, ranks = line["size_bytes"], line["ranks"]
    factor = 2 * (ranks - 1) / ranks
    found = dict(line)
    if line["contender"] == LAUNCH:
        return found
    for kind in ("hot", "cold"):
        us = line[f"{kind}_us"]
        found[f"{kind}_busbw_gb_s"] = round(size * factor / us / 1e3, 3)
    library, _, protocol = line["contender"].partition("/")
    floors = {"": limits.machine_us(known, ranks, size)}
    if library == "ringkern" and protocol in PROTOCOLS:
        floors["ring_"] = limits.ring_us(known, protocol, ranks, size)
    for kind, floor in floors.items():
        if floor:
            found[f"{kind}floor_us"] = round(floor, 3)
            found[f"{kind}share"] = round(floor / line["hot_us"], 3)
    return found


def with_prediction(
    found: dict[str, Any], known: dict[str, Any], machine: dict[str, Any]
) -> dict[str, Any]:
    """A row with the time that ``python -m ringkern model`` predicts on this GPU, where it does."""
    if not known or ON_HOST:
        return found
    from ringkern.tools.model import measured, one_gpu

    gpu = measured.gpu_of(known, machine)
    compared = measured.compare(gpu, found, one_gpu.shipped_costs())
    return found if compared is None else found | {"predicted_us": round(compared.terms.time_us, 3)}
