"""The output of ``python -m ringkern bench``: the table of nccl-tests, and the same as JSON."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ... import _C
from ...comm import communicator_for
from ..doctor.machine import cores, cpu_model, huge_pages
from ..options import Output
from ..turns import Result, quotient
from . import perf


def machine() -> dict[str, Any]:
    """Lists what the measurements depend on: CPU, cores of this process, load, versions."""
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ringkern": _C.version,
        "cpu_isa": _C.build_info()["cpu_isa"],
        "huge_pages": huge_pages(),
    }


def origin(found: dict[str, Any], date: str, command: str) -> list[str]:
    """Returns lines with the machine, date and command of a measurement."""
    return [
        f"ringkern {found['ringkern']}, torch {found['torch']}, python {found['python']}",
        f"machine: {found['cpu']}, {found['cores']} cores, {found['cpu_isa']}, "
        f"{found['kernel']}, load average {found['load_average']}",
        f"date: {date}",
        f"command: {command}",
    ]


def circumstances(found: dict[str, Any], date: str, command: str) -> list[str]:
    """Returns the first lines of a table: :func:`origin`."""
    return [f"# {line}" for line in origin(found, date, command)]


@dataclasses.dataclass(frozen=True)
class Report:
    """The settings of a run, and the circumstances that its figures depend on.

    ``hosts``: the number of hosts with ranks.
    """

    settings: perf.Settings
    ranks: int
    machine: dict[str, Any]
    date: str
    command: str
    hosts: int = 1

    def header(self) -> str:
        """Returns the lines above the rows: the circumstances, then the names of the columns."""
        settings, found = self.settings, self.machine
        names = ["ringkern", *(["gloo"] if settings.gloo else [])]
        memory = f"{settings.rotate} bytes in turn" if settings.rotate else "the same at each call"
        where = f" on {self.hosts} hosts" if self.hosts > 1 else ""
        lines = [
            *circumstances(found, self.date, self.command),
            f"# {settings.collective} of {self.ranks} ranks{where}, in place, "
            f"algorithm {settings.algorithm}, protocol {settings.protocol}{_modes(settings)}; "
            f"memory: {memory}",
            f"# time: of a call from Python, as on its slowest rank; median; contenders in turn; "
            f"{placement(settings.pinned, settings.threads)}",
            "#",
            f"# {'':59}" + "".join(f"{name:^33} " for name in names),
            f"# {'size':>10} {'count':>12} {'type':>13} {'redop':>10} {'root':>6}    "
            + f"{'time':>9} {'algbw':>7} {'busbw':>7} {'#wrong':>7} " * len(names)
            + (f"{'ratio':>14}" if settings.gloo else ""),
            f"# {'(B)':>10} {'(elements)':>12} {'':35}"
            + f"{'(us)':>9} {'(GB/s)':>7} {'(GB/s)':>7} {'':>7} " * len(names)
            + (f"{'gloo/ringkern':>14}" if settings.gloo else ""),
        ]
        return "\n".join(text.rstrip() for text in lines)

    def line(self, row: perf.Row) -> str:
        """Returns one row: the columns of nccl-tests, a block per contender, then the ratio."""
        redop = "none" if self.settings.collective == "all_gather" else self.settings.op
        text = f"  {row.size:10} {row.count:12} {self.settings.dtype:>13} {redop:>10} {-1:6}    "
        for result in row.results.values():
            algbw, busbw = self._bandwidths(row.size, result)
            wrong = "N/A" if result.wrong is None else result.wrong
            text += f"{result.time_us:9.2f} {algbw:7.2f} {busbw:7.2f} {wrong:>7} "
        if "gloo" in row.results:
            text += f"{quotient(row.results['gloo'], row.results['ringkern']):14.2f}"
        return text.rstrip()

    def footer(self, rows: list[perf.Row]) -> str:
        """Returns the lines below the rows."""
        wrong = total_wrong(rows)
        lines = [f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]
        for name in rows[0].results:
            busbw = [self._bandwidths(row.size, row.results[name])[1] for row in rows]
            label = "Avg bus bandwidth" + ("" if name == "ringkern" else f" of {name}")
            lines.append(f"# {label:20} : {sum(busbw) / len(busbw):.4g}")
        return "\n".join(lines)

    def as_json(self, rows: list[perf.Row]) -> dict[str, Any]:
        """Returns all measurements, with units in the names and with each repeat."""
        return {
            "machine": self.machine,
            "date": self.date,
            "command": self.command,
            "ranks": self.ranks,
            "hosts": self.hosts,
            "settings": dataclasses.asdict(self.settings),
            "rows": [
                {
                    "size_bytes": row.size,
                    "count": row.count,
                    "results": {name: self._result(row.size, r) for name, r in row.results.items()},
                }
                for row in rows
            ],
        }

    def _result(self, size: int, result: Result) -> dict[str, Any]:
        algbw, busbw = self._bandwidths(size, result)
        return {"algbw_gb_s": algbw, "busbw_gb_s": busbw, **result.as_dict()}

    def _bandwidths(self, size: int, result: Result) -> tuple[float, float]:
        return perf.bandwidths(self.settings.collective, self.ranks, size, result.time_us)


def placement(pinned: bool, threads: int = 1) -> str:
    """Returns the placement of ranks with this many threads, in words."""
    if threads == 1:
        return "a core each" if pinned else "not pinned"
    return f"{threads} threads each" + (", a core a thread" if pinned else ", not pinned")


def _modes(settings: perf.Settings) -> str:
    asked = {"deterministic": settings.deterministic, "accumulate": settings.accumulate}
    return "".join(f", {what} {name}" for what, name in asked.items() if name != "auto")


def total_wrong(rows: list[perf.Row]) -> int:
    """Returns the number of wrong elements, of all rows and contenders."""
    return sum(result.wrong or 0 for row in rows for result in row.results.values())


def bench_rank(
    settings: perf.Settings, found: dict[str, Any], command: str, file: Path | None
) -> int:
    """Runs one rank of ``bench``, in its group; rank 0 prints. Returns the exit status.

    Args:
        found: the machine, before ranks were pinned.
        file: the file of ``--json``.
    """
    torch.set_num_threads(settings.threads)
    first, output = dist.get_rank() == 0, Output(file)
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    report = Report(settings, dist.get_world_size(), found, date, command)
    rows: list[perf.Row] = []
    try:
        for row in perf.measure(settings):
            if first and not rows:
                hosts = communicator_for(None).hosts.count  # known: there have been calls
                report = dataclasses.replace(report, hosts=hosts)
                output.say(report.header())
            rows.append(row)
            if first:
                output.say(report.line(row))
    except perf.UnsupportedError as error:
        if first:
            hint = "; leave it out with --vs none" if error.contender == "gloo" else ""
            print(f"python -m ringkern bench: error: {error}{hint}", file=sys.stderr)
        return 2
    if first:
        output.say(report.footer(rows))
        output.json(report.as_json(rows))
    return 1 if total_wrong(rows) else 0
