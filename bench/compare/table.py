"""The output of ``bench.compare``: the columns of nccl-tests, ours after them, and as JSON."""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ringkern.tools import launch
from ringkern.tools.bench import perf, report
from ringkern.tools.options import Output
from ringkern.tools.turns import Result

from . import catalogue
from .comparison import Comparison, compare, is_own, wrong_of
from .contest import run
from .field import Field
from .install import Folder, Installer, InstallError
from .rows import LIMIT, Row, Settings, has_limit


@dataclass(frozen=True)
class Table:
    """The circumstances of a contest, and how its rows are shown."""

    settings: Settings
    machine: dict[str, Any]
    versions: dict[str, str]
    date: str
    command: str

    def header(self) -> str:
        """The lines above the rows."""
        settings, found = self.settings, self.machine
        memory = f"{settings.rotate} bytes in turn" if settings.rotate else "the same at each call"
        peers = ", ".join(f"{name} ({version})" for name, version in self.versions.items())
        lines = [
            *report.circumstances(found, self.date, self.command),
            f"# peers: {peers or 'none'}",
            f"# all_reduce of {settings.ranks} ranks, in place, "
            f"{report.placement(settings.pinned, settings.threads)}; memory: {memory}; "
            f"huge pages: {found['huge_pages']}, not asked for",
            "# time, p99: us of a call, as on its slowest rank; median and 99th percentile",
            "# peer, limit: us; of the best peer, and of bare data movement. /peer, /limit: time "
            "over that, the median over the rounds of turns",
            "#",
            f"# {'size':>10} {'count':>12} {'type':>9} {'redop':>6} {'root':>5} {'time':>9} "
            f"{'algbw':>7} {'busbw':>7} {'#wrong':>7} {'mode':>5} {'tensor':>7} {'p99':>9} "
            f"{'algo':>8} {'proto':>6} {'peer':>9} {'/peer':>6} {'limit':>9} {'/limit':>6} "
            f"{'cores':>7}  best peer",
        ]
        return "\n".join(lines)

    def lines(self, row: Row) -> str:
        """One row: a line for each mode and kind of tensor."""
        return "\n".join(self._line(row, each) for each in compare(row, self.settings.modes))

    def footer(self, rows: list[Row], left_out: dict[str, str]) -> str:
        """The lines below the rows."""
        found = [each for row in rows for each in compare(row, self.settings.modes)]
        wrong = sum(each.own.wrong or 0 for each in found)
        lines = [f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]
        for mode, tensor in dict.fromkeys((each.mode, each.tensor) for each in found):
            alike = [each for each in found if (each.mode, each.tensor) == (mode, tensor)]
            for what, ratios in (
                ("best peer", [each.to_peer for each in alike]),
                ("limit", [each.to_limit for each in alike]),
            ):
                known = [ratio for ratio in ratios if ratio is not None]
                if known:
                    mean = math.exp(sum(map(math.log, known)) / len(known))
                    less = sum(ratio < 1 for ratio in known)
                    lines.append(
                        f"# {mode}, {tensor}, time/{what}: geometric mean {mean:.2f}, largest "
                        f"{max(known):.2f}; below 1 at {less} of {len(known)} sizes"
                    )
        for name in sorted({e.contender for row in rows for e in row.results}):
            if not is_own(name) and (errors := wrong_of(rows, name)):
                lines.append(
                    f"# {name}: {errors} wrong elements; does not count where it was wrong"
                )
        lines += [f"# left out: {name}: {why}" for name, why in left_out.items()]
        return "\n".join(lines)

    def as_json(self, rows: list[Row], field: Field) -> dict[str, Any]:
        """All that was measured, with units in the names; of each block the median."""
        return {
            "machine": self.machine,
            "versions": self.versions,
            "date": self.date,
            "command": self.command,
            "settings": dataclasses.asdict(self.settings),
            "left_out": field.left_out,
            "rows": [
                {
                    "size_bytes": row.size,
                    "count": row.count,
                    "placement": row.placement,
                    "choice": list(row.choice),
                    "comparisons": [self._compared(each) for each in compare(row, ("py", "c"))],
                    "results": [
                        {"contender": entrant.contender, "mode": entrant.mode}
                        | self._result(row, result)
                        for entrant, result in row.results.items()
                    ],
                }
                for row in rows
            ],
        }

    def _line(self, row: Row, found: Comparison) -> str:
        algbw, busbw = self._bandwidths(row.size, found.own)
        wrong = "N/A" if found.own.wrong is None else found.own.wrong
        algo, proto = row.choice if len(row.choice) == 2 else ("-", "-")
        peer = f"{found.best[1].time_us:9.2f}" if found.best else "-"
        limit = f"{found.limit[1].time_us:9.2f}" if found.limit else "-"
        return (
            f"  {row.size:10} {row.count:12} {self.settings.dtype:>9} {'sum':>6} {-1:5} "
            f"{found.own.time_us:9.2f} {algbw:7.2f} {busbw:7.2f} {wrong:>7} {found.mode:>5} "
            f"{found.tensor:>7} {found.own.p99_us:9.2f} {algo:>8} {proto:>6} {peer:>9} "
            f"{_ratio(found.to_peer):>6} {limit:>9} {_ratio(found.to_limit):>6} "
            f"{found.own.placement:>7}  {found.best[0] if found.best else '-'}"
        )

    def _compared(self, found: Comparison) -> dict[str, Any]:
        return {
            "mode": found.mode,
            "tensor": found.tensor,
            "time_us": found.own.time_us,
            "best_peer": found.best and found.best[0],
            "best_peer_us": found.best and found.best[1].time_us,
            "time_over_peer": found.to_peer,
            "limit": found.limit and found.limit[0],
            "limit_us": found.limit and found.limit[1].time_us,
            "time_over_limit": found.to_limit,
        }

    def _result(self, row: Row, result: Result) -> dict[str, Any]:
        algbw, busbw = self._bandwidths(row.size, result)
        return {"algbw_gb_s": algbw, "busbw_gb_s": busbw, **result.as_dict()}

    def _bandwidths(self, size: int, result: Result) -> tuple[float, float]:
        return perf.bandwidths("all_reduce", self.settings.ranks, size, result.time_us)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def bench(
    settings: Settings,
    asked: list[str],
    folder: Path,
    algorithm: str,
    protocol: str,
    command: str,
    output: Output,
    plot: Path | None,
) -> int:
    """Measures, prints, and writes the files; the exit status.

    Args:
        asked: names of peers and configurations.
        folder: where the peers are installed.
        algorithm, protocol: of ringkern.
        output: for the rows, and for JSON.
        plot: for a picture.
    """
    peers, left_out = catalogue.select(asked, Folder(folder))
    if asked and not peers:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise ValueError(f"--vs {','.join(asked)}: nothing to compare with: {reasons}")
    for name, why in left_out.items():
        print(f"# left out: {name}: {why}", file=sys.stderr)
    own = [catalogue.ringkern(algorithm, protocol, shared) for shared in (False, True)]
    contenders = [*own, *peers]
    cores = report.machine()["cores"]
    if settings.threads > 1:
        contenders.append(catalogue.limit(""))
    elif cores >= 2:  # else its two ranks, which never sleep, would take turns of milliseconds
        try:
            loop = Installer(Folder(folder), output.say).limit()
            contenders.append(catalogue.limit(loop))
        except (InstallError, OSError) as error:
            left_out[LIMIT] = str(error)
    if settings.threads == 1 and (cores < 2 or not has_limit(settings)):
        left_out[LIMIT] = "is for 2 ranks, a core each, and float32"
    processes = settings.ranks * len(contenders)
    needed = processes * launch.RANK_BYTES
    launch.check_memory(processes, needed, f"-n {settings.ranks} --vs {','.join(asked)}", "-n")
    rows: list[Row] = []
    status = 0
    with Field(settings, contenders) as field:
        field.left_out |= left_out
        table = Table(
            settings,
            report.machine(),
            {each.name: each.version for each in field.contenders if each.version},
            datetime.now().astimezone().isoformat(timespec="seconds"),
            command,
        )
        output.say(table.header())
        try:
            for row in run(field):
                rows.append(row)
                output.say(table.lines(row))
        except TimeoutError as error:
            print(f"python -m bench.compare: error: {error}", file=sys.stderr)
            status = 1
        output.say(table.footer(rows, field.left_out))
        output.json(table.as_json(rows, field))
        failed = [each.name for each in own if each.name in field.left_out]
        if failed or any(wrong_of(rows, each.name) for each in own):
            status = 1
    if plot and rows:
        from .plot import draw  # which needs matplotlib

        draw(rows, settings, report.origin(table.machine, table.date, table.command), plot)
    return status
