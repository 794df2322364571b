"""Runs every cell of the failure matrix: the ranks that get an error, the error, and the delay.

    python -m tests.faults.matrix --out bench/results/2026-11-26-faults.json

A cell is a fault of the last of four ranks, its moment, and the placement of the ranks. Some cells
have no meaning. sys.exit() in a call: the interpreter waits for the call, which the others make,
too. Timeout in a call: a rank that is late in a call is stopped. Stop, late and timeout of an idle
group: no rank waits. Mismatch between calls: it needs a call of every rank. Order in the last call:
no later call could be swapped with it.

docs/reference/errors.md has the results as a table: python -m tests.docs.generated --update.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest import mock

from ringkern.tools.bench.report import machine
from tests.comm.exits import ROOT, scenarios_of
from tests.faults.cells import DEEDS, TIMEOUT_S, VICTIM, Cell
from tests.hosts import namespaces
from tests.torch import fake_cuda

RESULTS = "bench/results/2026-11-26-faults.json"
RANKS = 4
CUDA = "fake CUDA devices"  # on one host
HOSTS = {"one host": "aaaa", "two hosts by name": "aabb", "two namespaces": "aabb", CUDA: "aaaa"}
WHEN = ("in a call", "between calls", "idle", "in the last call")
FIELDS = ("the collective", "dtype", "op", "accumulate", "numel", "the root", "algorithm")
FIELDS += ("protocol", "order")
WITHOUT = {
    "sys.exit": {"in a call"},
    "timeout": {"in a call", "idle"},
    "stop": {"idle"},
    "late": {"idle"},
    "mismatch": {"between calls", "idle"},
    "mismatch: order": {"between calls", "idle", "in the last call"},
}

# Key: rank. Value: class of the error, event, rank that the fault names, and the way an idle rank
# was told.
Told = dict[str, list[Any]]
# On two hosts either event is right. The ring of a host and the comparison between hosts both find
# calls that differ, and the waits of a ring and of an engine have one deadline; the first is
# reported.
EITHER = {"hosts_mismatch": "mismatch", "host_behind": "wait_timeout"}
Run = Callable[[Cell, str], tuple[Told, float]]


def cells() -> list[Cell]:
    """Returns each fault with each meaningful moment."""
    faults = [*DEEDS, *(f"mismatch: {field}" for field in FIELDS)]
    return [
        Cell(fault=fault, when=when, timeout_s=TIMEOUT_S.get(fault, 600.0), backend="root" in fault)
        for fault, when in itertools.product(faults, WHEN)
        if when not in WITHOUT.get(fault, WITHOUT.get(fault.partition(":")[0], ()))
    ]


@contextlib.contextmanager
def runner() -> Iterator[Run]:
    """Yields ``run(cell, where)``.

    It returns the ranks that got an error, and the seconds until the last of them did, from the
    fault, or from the call that raised it.
    """
    # Calls raise on CUDA, too, so that a rank survives to report.
    how = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "RINGKERN_ON_FAULT": "raise"}
    with mock.patch.dict(os.environ, how), contextlib.ExitStack() as stack:

        @functools.cache
        def scenarios(cuda: bool) -> Any:
            module = "tests.faults.cells"
            return stack.enter_context(
                scenarios_of(*fake_cuda.over_fake(module) if cuda else (module,))
            )

        @functools.cache
        def net() -> namespaces.Net:
            return stack.enter_context(namespaces.Net(2))

        def run(cell: Cell, where: str) -> tuple[Told, float]:
            place = asdict(net().place([2, 2])) if where == "two namespaces" else None
            with tempfile.TemporaryDirectory() as folder:
                plan = replace(cell, names=HOSTS[where], place=place, cuda=where == CUDA)
                plan.write(Path(folder))
                outcome = scenarios(plan.cuda)("cell", RANKS, Path(folder))
                failed = [rank for rank in outcome[:VICTIM] if rank["status"] != 0]
                assert not failed, (cell, where, outcome, os.listdir(folder))
                return _read(Path(folder))

        yield run


def why_not(where: str) -> str | None:
    """Returns the reason why cells cannot run in a place; None if they can."""
    if where == "two namespaces":
        return namespaces.why_not()
    return fake_cuda.why_not() if where == CUDA else None


def _read(folder: Path) -> tuple[Told, float]:
    at = float((folder / "fault").read_text())
    told: Told = {}
    times: dict[int, float] = {}
    for rank in range(RANKS):
        path = folder / f"said{rank}"
        if (said := json.loads(path.read_text()) if path.exists() else None) is not None:
            fault = said["fault"] or {}
            told[str(rank)] = [said["kind"], fault.get("event"), fault.get("rank"), said.get("by")]
            times[rank] = said["at"] - max(at, said.get("since", at))
    others = [s for rank, s in times.items() if rank != VICTIM]
    return told, max(others or times.values(), default=0.0)


def essence(told: Told) -> Told:
    """Returns the part of an outcome that every run of a cell repeats: all but the named rank."""
    return {
        rank: [kind, EITHER.get(event, event), by] for rank, (kind, event, _, by) in told.items()
    }


# ---- as a table ---------------------------------------------------------------------------------


def _ranks(numbers: list[str]) -> str:
    """Returns "0-2" for "0", "1", "2"."""
    text = ", ".join(numbers)
    for size in range(RANKS, 2, -1):
        run = [str(rank) for rank in range(size)]
        text = re.sub(rf"^{', '.join(run)}\b", f"0-{size - 1}", text)
    return text


def _outcome(told: list[Told]) -> str:
    """Returns the errors by rank; where repeats differ, each of them."""
    texts: list[str] = []
    for one in map(essence, told):
        parts: list[str] = []
        before = ""
        for (kind, event, by), group in itertools.groupby(one.items(), key=lambda item: item[1]):
            what = f"`{kind}` {event} "
            ranks = _ranks([rank for rank, _ in group])
            late = " in the next call" if by == "the next call" else ""
            parts.append(f"{what if what != before else ''}on {ranks}{late}")
            before = what
        if (text := ", ".join(parts) or "-") not in texts:
            texts.append(text)
    # Either of two calls that differ may be named.
    named = {n for one in told for _, event, n, _ in one.values() if "mismatch" not in str(event)}
    wrong = [f"rank {rank}" for rank in sorted(named - {VICTIM, None})]
    return " or ".join(texts) + (f", naming {' or '.join(wrong)}" if wrong else "")


def rows(results: dict[str, Any]) -> list[list[str]]:
    """Returns the table; faults, and then moments, with equal outcomes share a row.

    A row has faults, moments, the outcome of most places, and a cell for each place.
    """
    found = [
        (
            [cell["fault"]],
            [cell["when"]],
            [_outcome(one["told"]) for one in cell["where"].values()],
            [max(one["s"]) for one in cell["where"].values()],
        )
        for cell in results["cells"]
    ]
    for shared in (0, 1):
        merged: dict[Any, Any] = {}
        for row in found:
            key = (*row[1 - shared], row[0][0].startswith("mismatch"), *row[2])
            if (first := merged.setdefault(key, row)) is not row:
                first[shared].extend(row[shared])
                first[3][:] = map(max, first[3], row[3])
        found = [*merged.values()]
    return [
        [", ".join(faults).replace(", mismatch: ", ", "), ", ".join(when), *_cells(texts, seconds)]
        for faults, when, texts, seconds in found
    ]


def _cells(outcomes: list[str], seconds: list[float]) -> list[str]:
    """Returns the most frequent outcome, and a cell for each place: its seconds, after its outcome
    where that differs.
    """
    common = max(outcomes, key=outcomes.count)
    times = ["" if text == "-" else f"{s:.2g}" for text, s in zip(outcomes, seconds)]
    return [
        common,
        *(
            (time or "-") if text == common else "; ".join(filter(None, (text, time)))
            for text, time in zip(outcomes, times)
        ),
    ]


def load() -> dict[str, Any]:
    """Returns the committed results."""
    results: dict[str, Any] = json.loads((ROOT / RESULTS).read_text())
    return results


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=1, help="of each cell in each place")
    parser.add_argument("--only", default="", help="cells whose fault has this text")
    parser.add_argument("--where", nargs="+", choices=HOSTS, help="places; default: all")
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON")
    args = parser.parse_args()
    places = args.where or [*HOSTS]
    for where in [*places]:
        if (reason := why_not(where)) is not None:
            print(f"without {where}: {reason}", flush=True)
            places.remove(where)
    results: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": f"python -m tests.faults.matrix --repeats {args.repeats}",
        "machine": machine(),
        "ranks": RANKS,
        "victim": VICTIM,
        "cells": [],
    }
    with runner() as run:
        for cell in (one for one in cells() if args.only in one.fault):
            found: dict[str, Any] = {where: {"told": [], "s": []} for where in places}
            for where, _ in itertools.product(places, range(args.repeats)):
                told, seconds = run(cell, where)
                found[where]["s"].append(round(seconds, 4))
                if told not in found[where]["told"]:
                    found[where]["told"].append(told)
            results["cells"].append({"fault": cell.fault, "when": cell.when, "where": found})
            for where, one in found.items():
                print(
                    cell.fault,
                    cell.when,
                    where,
                    _outcome(one["told"]),
                    one["s"],
                    sep="; ",
                    flush=True,
                )
    if args.out is not None:
        lines = [json.dumps(cell) for cell in results.pop("cells")]
        head = json.dumps(results, indent=1).removesuffix("\n}")
        args.out.write_text(head + ',\n "cells": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
