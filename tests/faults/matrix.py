"""Runs every cell of the failure matrix: which ranks are told of a fault, by which error, how soon.

    python -m tests.faults.matrix --repeats 3 --out bench/results/DATE-faults.json

A cell is a fault of the last of four ranks, the moment at which it comes, and where the ranks are.
Some cells have no meaning. sys.exit() in a call: the interpreter waits for the call, which the
others make, too. Timeout in a call: a rank that is late in a call is stopped. Stop, late and
timeout of an idle group: nobody waits. Mismatch between calls: it needs a call of every rank. Order
in the last call: there is no call behind it to be swapped with.

docs/design/reliability.md has the results as a table: python -m tests.docs.generated --update.
"""

from __future__ import annotations

import argparse
import contextlib
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

from ringkern.tools.bench.report import machine
from tests.comm.exits import ROOT, scenarios_of
from tests.faults.cells import DEEDS, TIMEOUT_S, VICTIM, Cell
from tests.hosts.namespaces import Net, why_not

RESULTS = "bench/results/2026-11-26-faults.json"
RANKS = 4
HOSTS = {"one host": "aaaa", "two hosts by name": "aabb", "two namespaces": "aabb"}
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

# By rank: class of the error, event, rank that the fault names, and how an idle rank was told.
Told = dict[str, list[Any]]
Run = Callable[[Cell, str], tuple[Told, float]]


def cells() -> list[Cell]:
    """Returns each fault with each moment at which it has a meaning."""
    faults = [*DEEDS, *(f"mismatch: {field}" for field in FIELDS)]
    return [
        Cell(fault=fault, when=when, timeout_s=TIMEOUT_S.get(fault, 600.0), backend="root" in fault)
        for fault, when in itertools.product(faults, WHEN)
        if when not in WITHOUT.get(fault, WITHOUT.get(fault.partition(":")[0], ()))
    ]


@contextlib.contextmanager
def runner() -> Iterator[Run]:
    """``run(cell, where)``: the ranks that were told, and the seconds until the last of the others
    was, from the fault on, or from the call that told it."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    with scenarios_of("tests.faults.cells") as scenarios, contextlib.ExitStack() as stack:
        nets: list[Net] = []

        def run(cell: Cell, where: str) -> tuple[Told, float]:
            if where == "two namespaces" and not nets:
                nets.append(stack.enter_context(Net(2)))
            place = asdict(nets[0].place([2, 2])) if where == "two namespaces" else None
            with tempfile.TemporaryDirectory() as folder:
                replace(cell, names=HOSTS[where], place=place).write(Path(folder))
                outcome = scenarios("cell", RANKS, Path(folder))
                assert all(rank["status"] == 0 for rank in outcome[:VICTIM]), outcome
                return _read(Path(folder))

        yield run


def _read(folder: Path) -> tuple[Told, float]:
    at = float((folder / "fault").read_text())
    told: Told = {}
    times = [0.0]
    for rank in range(RANKS):
        path = folder / f"said{rank}"
        if (said := json.loads(path.read_text()) if path.exists() else None) is not None:
            fault = said["fault"] or {}
            told[str(rank)] = [said["kind"], fault.get("event"), fault.get("rank"), said.get("by")]
            if rank != VICTIM:
                times.append(said["at"] - max(at, said.get("since", at)))
    return told, max(times)


# ---- as a table ---------------------------------------------------------------------------------


def _ranks(numbers: list[str]) -> str:
    """Returns "0-2" for "0", "1", "2"."""
    text = ", ".join(numbers)
    for size in range(RANKS, 2, -1):
        run = [str(rank) for rank in range(size)]
        text = re.sub(rf"^{', '.join(run)}\b", f"0-{size - 1}", text)
    return text


def _outcome(told: list[Told]) -> str:
    """Returns what was told on which ranks; where repeats differ, each."""
    texts = []
    for one in told:
        parts = []
        for (kind, event, named, by), group in itertools.groupby(one.items(), key=lambda i: i[1]):
            about = "" if named in (VICTIM, None) else f" of rank {named}"
            when = " in the next call" if by == "the next call" else ""
            ranks = _ranks([rank for rank, _ in group])
            parts.append(f"`{kind}` {event}{about} on {ranks}{when}")
        texts.append(", ".join(parts) or "-")
    return " or ".join(texts)


def rows(results: dict[str, Any]) -> list[list[str]]:
    """Returns a row for each fault and moment; faults with the same outcomes share one."""
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for cell in results["cells"]:
        outcomes = {where: _outcome(one["told"]) for where, one in cell["where"].items()}
        row = merged.setdefault(
            (cell["when"], cell["fault"].partition(":")[0] == "mismatch", *outcomes.values()),
            {"faults": [], "when": cell["when"], "outcomes": outcomes, "s": {}},
        )
        row["faults"].append(cell["fault"])
        for where, one in cell["where"].items():
            row["s"].setdefault(where, []).extend(one["s"])
    return [
        [
            re.sub(r", mismatch: ", ", ", ", ".join(row["faults"])),
            row["when"],
            *(
                f"{text}; {max(row['s'][where]):.2g} s" if text != "-" else text
                for where, text in row["outcomes"].items()
            ),
        ]
        for row in merged.values()
    ]


def load() -> dict[str, Any]:
    """Returns the results that are committed."""
    results: dict[str, Any] = json.loads((ROOT / RESULTS).read_text())
    return results


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="cells whose fault has this text")
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON")
    args = parser.parse_args()
    places = [*HOSTS]
    if (reason := why_not()) is not None:
        print(f"no namespaces: {reason}", flush=True)
        places.remove("two namespaces")
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
        args.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
