"""What ``python -m ringkern bench`` shows: the table of nccl-tests, and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import __version__, build_info, perf


def machine() -> dict[str, Any]:
    """What the measurements depend on: CPU, cores that this process may use, load, versions."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ringkern": __version__,
        "cpu_isa": build_info()["cpu_isa"],
    }


def header(settings: perf.Settings, found: dict[str, Any], date: str, command: str) -> str:
    """The lines above the rows; what is fixed, then the names of the columns."""
    names = ["ringkern", *(["gloo"] if settings.gloo else [])]
    memory = f"over {settings.rotate} bytes" if settings.rotate else "the same at each call"
    blocks = len(names)
    lines = [
        f"# ringkern {found['ringkern']}, torch {found['torch']}, python {found['python']}",
        f"# machine: {found['cpu']}, {found['cores']} cores, {found['cpu_isa']}, "
        f"{found['kernel']}, load average {found['load_average']}",
        f"# date: {date}",
        f"# command: {command}",
        f"# {settings.collective} of {dist.get_world_size()} ranks, in place, "
        f"protocol {settings.protocol}; memory: {memory}",
        f"# time: of a call; median of {perf.REPEATS} repeats, contenders in turn, each repeat as "
        "on its slowest rank",
        "#",
        f"# {'':59}" + "".join(f"{name:^33} " for name in names),
        f"# {'size':>10} {'count':>12} {'type':>13} {'redop':>10} {'root':>6}    "
        + f"{'time':>9} {'algbw':>7} {'busbw':>7} {'#wrong':>7} " * blocks
        + (f"{'ratio':>14}" if settings.gloo else ""),
        f"# {'(B)':>10} {'(elements)':>12} {'':35}"
        + f"{'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7} {'':>7} " * blocks
        + (f"{'gloo/ringkern':>14}" if settings.gloo else ""),
    ]
    return "\n".join(text.rstrip() for text in lines)


def line(settings: perf.Settings, row: perf.Row) -> str:
    """One row: the columns of nccl-tests, a block a contender, then what is ours."""
    redop = "none" if settings.collective == "all_gather" else settings.op
    text = f"  {row.size:10} {row.count:12} {settings.dtype:>13} {redop:>10} {-1:6}    "
    for result in row.results.values():
        algbw, busbw = perf.bandwidths(
            settings.collective, dist.get_world_size(), row.size, result.time_us
        )
        wrong = "N/A" if result.wrong is None else result.wrong
        text += f"{result.time_us:9.2f} {algbw:7.2f} {busbw:7.2f} {wrong:>7} "
    if settings.gloo:
        text += f"{row.results['gloo'].time_us / row.results['ringkern'].time_us:14.2f}"
    return text.rstrip()


def footer(settings: perf.Settings, rows: list[perf.Row]) -> tuple[str, bool]:
    """The lines below the rows, and whether nothing was wrong."""
    checked = [r.wrong for row in rows for r in row.results.values() if r.wrong is not None]
    lines = [f"# Out of bounds values : {sum(checked)} {'FAILED' if sum(checked) else 'OK'}"]
    for name in rows[0].results:
        mean = sum(
            perf.bandwidths(
                settings.collective, dist.get_world_size(), row.size, row.results[name].time_us
            )[1]
            for row in rows
        ) / len(rows)
        label = "" if name == "ringkern" else f" of {name}"
        lines.append(f"# {f'Avg bus bandwidth{label}':20} : {mean:.4g}")
    return "\n".join(lines), not sum(checked)


def as_json(
    settings: perf.Settings, rows: list[perf.Row], found: dict[str, Any], date: str, command: str
) -> dict[str, Any]:
    """All that was measured, with units in the names, each repeat included."""
    ranks = dist.get_world_size()

    def result(size: int, measured: perf.Result) -> dict[str, Any]:
        algbw, busbw = perf.bandwidths(settings.collective, ranks, size, measured.time_us)
        return {
            "time_us": measured.time_us,
            "algbw_gb_s": algbw,
            "busbw_gb_s": busbw,
            **dataclasses.asdict(measured),
        }

    return {
        "machine": found,
        "date": date,
        "command": command,
        "ranks": ranks,
        "settings": dataclasses.asdict(settings),
        "rows": [
            {
                "size_bytes": row.size,
                "count": row.count,
                "results": {name: result(row.size, r) for name, r in row.results.items()},
            }
            for row in rows
        ],
    }


def bench_rank(settings: perf.Settings, command: str, out: Path | None) -> int:
    """One rank of ``bench``, in its group; rank 0 prints. Returns the exit status."""
    first = dist.get_rank() == 0
    found, date = machine(), datetime.now().astimezone().isoformat(timespec="seconds")
    rows: list[perf.Row] = []
    try:
        for row in perf.measure(settings):
            if first and not rows:
                print(header(settings, found, date, command))
            rows.append(row)
            if first:
                print(line(settings, row), flush=True)
    except perf.UnsupportedError as error:
        if first:
            hint = "; leave it out with --vs none" if error.contender == "gloo" else ""
            print(f"python -m ringkern bench: error: {error}{hint}", file=sys.stderr)
        return 2
    text, right = footer(settings, rows)
    if first:
        print(text, flush=True)
        if out:
            out.write_text(json.dumps(as_json(settings, rows, found, date, command), indent=1))
    return 0 if right else 1
