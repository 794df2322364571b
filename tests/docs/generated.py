"""Generates the tables of README.md, and of two pages of docs/, from the code and the results.

They stand in the page between ``<!-- generated: NAME -->`` and ``<!-- end -->``, so that a file
viewer shows them. (Other pages of ``docs/`` are filled when the site is built, by
``docs/_ext/made_from_code``.)

``python -m tests.docs.generated --update`` fills them in; without ``--update`` it reports outdated
ones.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

from ringkern import _C, build_info, local
from ringkern.config import variables
from ringkern.tools import COMMANDS
from tests.docs.blocks import ROOT
from tests.docs.extensions import made_from_code
from tests.faults import matrix
from tests.litmus import herd

PAGE = ROOT / "README.md"
PAGES = [PAGE, ROOT / "docs/reference/errors.md", ROOT / "docs/design/memory_model.md"]

_ROOM = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

code, table = made_from_code.markdown.code, made_from_code.markdown.table


def support() -> str:
    """Returns the supported tensors and connections: a summary of docs/reference/support.md."""
    asked = made_from_code.support
    info = build_info()
    by_ops: dict[str, list[str]] = {}
    with local.Ring(["cpu"] * asked.RANKS) as ring:
        for dtype in info["dtypes"]:
            ops = ", ".join(op for op in info["ops"] if asked.accepted(ring, dtype, op))
            by_ops.setdefault(ops, []).append(dtype)
    ways = [
        [name, *(_protocols(device, algorithm) for algorithm in _C.algorithms)]
        for device, name in (("cpu", "CPU"), ("cuda", "CUDA"))
    ]
    return (
        table(["dtype", "op"], [[", ".join(dtypes), ops] for ops, dtypes in by_ops.items()])
        + "\n"
        + table(["all-reduce on", *(f"{code(a)}, over" for a in _C.algorithms)], ways)
    )


def _protocols(device: str, algorithm: str) -> str:
    has = made_from_code.support.has
    found = [p for p in _C.protocols if has(device, p, "all_reduce", algorithm)]
    return ", ".join(found) or "-"


def environment() -> str:
    """Returns the variables that a program with ringkern may set."""
    return made_from_code.environment.table_of([v for v in variables() if v.when == "import"])


def commands() -> str:
    """Returns a line for each command of the command line."""
    rows = [[code(f"python -m ringkern {c.name}"), c.help] for c in COMMANDS]
    return table(["command", "what it does"], rows)


# ---- the quoted run -----------------------------------------------------------------------------

ALSO = "bench/results/2026-11-21-cpu-2-ranks-peers.json"
RUN = "bench/results/2026-11-24-cpu-2-ranks-peers.json"
SIZES = (8, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 256 << 20)


def figures() -> str:
    """All-reduces from Python, of ordinary tensors and of shared ones, next to the best other."""
    rows = {row["size_bytes"]: row for row in _run()["rows"]}
    heads = ["size", "ringkern", "ringkern, shared", "best of the others", "", "Gloo"]
    heads_, _, *lines = table(heads, [_figures(rows[size]) for size in SIZES]).splitlines()
    return "\n".join([heads_, "|---:|---:|---:|---:|---|---:|", *lines]) + "\n"


def _figures(row: dict[str, Any]) -> list[str]:
    of = {c["tensor"]: c for c in row["comparisons"] if c["mode"] == "py"}
    plain, shared = of["plain"], of["shared"]
    gloo = {(r["contender"], r["mode"]): r for r in row["results"]}["gloo", "py"]
    times = [t["time_us"] for t in (plain, shared)] + [plain["best_peer_us"]]
    best = plain["best_peer"].split(":")[0]
    return [_bytes(row["size_bytes"]), *map(_us, times), best, _us(gloo["time_us"])]


def conditions() -> str:
    """Returns the conditions of that run: machine, date, versions, command."""
    run = _run()
    machine = run["machine"]
    command = re.sub(r" (-J|--plot) \S+", "", run["command"]).replace(" -b ", " \\\n    -b ")
    return (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {run['date'][:10]}, "
        f"torch {machine['torch']}. Command:\n\n```text\n{command}\n```\n"
    )


def faults() -> str:
    """Returns a row for each fault and moment, and the conditions of that run."""
    run = matrix.load()
    found = run["machine"]
    return (
        table(["fault of rank 3", "when", "error", *matrix.HOSTS], matrix.rows(run))
        + f"\nMachine: {found['cpu']}, {found['cores']} cores, {run['date'][:10]}, torch "
        f"{found['torch']}. Command: {code(run['command'])}.\n"
    )


def litmus() -> str:
    """Returns a row for each litmus test of a protocol: herd7's verdicts on the code, which is the
    first form of its file, and on the weakened forms.
    """
    rows = []
    for path in herd.files("protocols"):
        link = f"[`{path.stem}`](../../{path.relative_to(ROOT).as_posix()})"
        unchanged, *weakened = (form for form in herd.forms(path) if form.name != herd.GOOD)
        never = [form.name for form in weakened if form.expected == "Never"]
        verdicts = [unchanged.expected, str(len(weakened) - len(never)), "; ".join(never) or "-"]
        rows.append([link, herd.title(path), *verdicts])
    return table(["test", "idiom", "the code", "weakened: Sometimes", "weakened: Never"], rows)


def _run(file: str = RUN) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / file).read_text())
    return found


def _bytes(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def _us(time: float) -> str:
    return f"{time:,.0f}" if time >= 100 else f"{time:.{1 if time >= 10 else 2}f}"


# ---- the page -----------------------------------------------------------------------------------

TABLES: dict[str, Callable[[], str]] = {
    "support": support,
    "environment": environment,
    "commands": commands,
    "figures": figures,
    "conditions": conditions,
    "faults": faults,
    "litmus": litmus,
}


def filled(text: str) -> str:
    """Returns the page with its tables filled in.

    Raises:
        KeyError: it has room for a table that is not here.
    """
    return _ROOM.sub(lambda room: f"{room[1]}{TABLES[room[2]]()}{room[3]}", text)


def main(arguments: list[str]) -> int:
    """Returns 0 if the pages are, or now are, up to date."""
    old = False
    for page in PAGES:
        text = page.read_text()
        new = filled(text)
        if "--update" in arguments:
            page.write_text(new)
        elif new != text:
            print(f"{page.name} is not what the code says: python -m tests.docs.generated --update")
            old = True
    return int(old)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
