"""The table at the end: what a reader sees of a run, and the last thing that is printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.gpu.parts import Part
from bench.gpu.runner import STATUSES, Result

WIDTH = 100
CELL = 37  # of a contender's times


def plan(runs: list[tuple[Part, ...]]) -> str:
    """The parts of each run, with the seconds that are planned for them and their limits."""
    lines = []
    for number, run in enumerate(runs, 1):
        how = " --continue" if number > 1 else ""
        planned = sum(part.planned for part in run)
        lines.append(f"run {number}: python3 bench/gpu{how}   about {planned:.0f} s")
        for part in run:
            times = f"{part.planned:4.0f} s, at most {part.seconds:.0f} s"
            lines.append(f"  {part.name:14} {times}   {part.about}")
    return "\n".join(lines)


def table(results: list[Result]) -> str:
    """All parts, then the figures of those that measure."""
    lines = ["", f"{'part':14} {'status':10} {'seconds':>8}  what it found", "-" * WIDTH]
    for result in results:
        told = _told(_TELL, result, "")
        text = "; ".join(filter(None, [result.reason, told])).replace("\n", " ")
        head = f"{result.part:14} {result.status:10} {result.seconds:8.1f}  "
        lines.append((head + text)[: 3 * WIDTH].rstrip())
    for result in results:
        lines += _told(_DETAIL, result, [])
    if any(result.cut_by_budget for result in results):
        lines += ["", "for the parts that the budget cut or left out: make gpu GPU_ARGS=--continue"]
    counts = dict.fromkeys(STATUSES, 0)
    for result in results:
        counts[result.status] += 1
    lines += ["", ", ".join(f"{n} {status}" for status, n in counts.items() if n)]
    return "\n".join(lines)


def _told(how: dict[str, Callable[[dict[str, Any]], Any]], result: Result, nothing: Any) -> Any:
    return how[result.part](result.figures) if result.part in how and result.figures else nothing


def _cases(figures: dict[str, Any]) -> str:
    wrong = figures.get("wrong", 0)
    number = wrong if isinstance(wrong, int) else len(wrong)
    return f"{figures.get('cases', 0)} cases, {number} wrong"


def _ctest(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {found['seconds']} s" for name, found in figures.items())


def _hello(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {found}" for name, found in figures.items())


def _graph(figures: dict[str, Any]) -> str:
    local, ipc = figures.get("local", []), figures.get("ipc", [])
    texts = [f"in a process: {len(local)} graphs of {local[0]['replays']} replays"] if local else []
    texts += [f"ipc {row['protocol']}: {row['replays']} replays" for row in ipc]
    return ", ".join(texts)


def _missing_peer(figures: dict[str, Any]) -> str:
    waits = [
        seconds
        for row in figures.get("scenarios", [])
        for kind, _, seconds in row["ranks"]
        if kind != "absent"
    ]
    if not waits:
        return ""
    deadline = figures["deadline_seconds"]
    return f"deadline {deadline} s, ended after {min(waits):.1f} to {max(waits):.1f} s"


def _probe(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{t['test']} {t['wrong']} wrong, {t['mixed']} mixed of {t['loads']:.2g}"
        for t in figures.get("tests", [])
    )


def _sanitizer(figures: dict[str, Any]) -> str:
    tools = {tool: found for tool, found in figures.items() if isinstance(found, dict)}
    return ", ".join(f"{tool} {found['status']}" for tool, found in tools.items())


def _limits(figures: dict[str, Any]) -> str:
    if "launch_us" not in figures:
        return ""
    hops = ", ".join(f"{name} {us:.2f}" for name, us in figures["hop_us"].items())
    return (
        f"HBM {figures['hbm_gb_s']:.0f} GB/s, L2 {figures['l2_gb_s']:.0f} GB/s, "
        f"launch {figures['launch_us']:.2f} us, hop us: {hops}"
    )


def _rows(figures: dict[str, Any]) -> str:
    return f"{len(figures.get('rows', []))} measurements"


def _build(figures: dict[str, Any]) -> str:
    return str(figures.get("built", ""))


def _speed_lines(figures: dict[str, Any]) -> list[str]:
    """A line a size and number of ranks: each contender's times, the prediction, and its shares."""
    lines = []
    for rows in _grouped(figures.get("rows", []), lambda row: row["ranks"]):
        names = list(dict.fromkeys(row["contender"] for row in rows))
        names = [name for name in names if name != "launch"]
        columns = "us hot [predicted] / us cold (hot busbw GB/s, share of the GPU's limit)"
        head = f"k={rows[0]['ranks']}: {columns}"
        lines += ["", head]
        lines += [f"{'bytes':>11} " + " ".join(f"{name:^{CELL}}" for name in names)]
        for of_size in _grouped(rows, lambda row: row["size_bytes"]):
            cells = {row["contender"]: _cell(row) for row in of_size}
            text = " ".join(f"{cells.get(name, '-'):^{CELL}}" for name in names)
            lines.append(f"{of_size[0]['size_bytes']:11} {text}".rstrip())
    notes = figures.get("notes", [])
    return lines + ([""] if notes else []) + [f"  {note}"[: 2 * WIDTH] for note in notes]


def _cell(row: dict[str, Any]) -> str:
    if "refused" in row:
        return "refused"
    share = f", {row['share']:.0%}" if "share" in row else ""
    wrong = f" {row['wrong']} WRONG" if row.get("wrong") else ""
    eager = " eager" if row.get("how") == "eager" else ""
    bus = row.get("hot_busbw_gb_s", 0.0)
    predicted = f" [{row['predicted_us']:.1f}]" if "predicted_us" in row else ""
    times = f"{row['hot_us']:.1f}{predicted} / {row['cold_us']:.1f}"
    return f"{times} ({bus:.1f}{share}){eager}{wrong}"


def _grouped(rows: list[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> list[list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


_TELL: dict[str, Callable[[dict[str, Any]], str]] = {
    "core": _build,
    "extension": _build,
    "hello": _hello,
    "ctest": _ctest,
    "local": _cases,
    "misaligned": _cases,
    "graph": _graph,
    "ipc": _cases,
    "missing_peer": _missing_peer,
    "backend": _cases,
    "backend_k4": _cases,
    "one_queue": _cases,
    "ll128_probe": _probe,
    "sanitizer": _sanitizer,
    "limits": _limits,
    "speed": _rows,
    "processes": _rows,
}
_DETAIL: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "speed": _speed_lines,
    "processes": _speed_lines,
}
