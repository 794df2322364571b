"""Runs the parts: each as a process of its own, for a bounded time, whatever became of the others.

What a part leaves in ``<out>/<part>.json``, and ``summary.json`` for all of them:

    part, status ("passed", "failed", "timed out", "skipped", "not run"), reason, date, seconds,
    command, machine, figures (the part's own), log (the end of what it printed)
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.gpu.bounded import ROOT, run_bounded
from bench.gpu.part import Context, save_context, write_json
from bench.gpu.parts import Part

LOG_CHARACTERS = 20_000  # of a part's log, in its JSON
SHOWN_CHARACTERS = 1_500  # of the log of a part that failed, on the terminal
LEAST_SHARE = 0.3  # of a part's time: with less left of the budget, it is not started
GRACE_SECONDS = 3.0  # between asking a part to end and ending it


@dataclass(frozen=True)
class Settings:
    """What the command line asks for."""

    out: Path
    work: Path
    device: str = "cuda"
    quick: bool = False
    nccl: str = ""
    budget: float | None = None
    compact: bool = False
    command: str = ""
    child: tuple[str, ...] = (sys.executable, "-u", str(ROOT / "bench" / "gpu"), "--child")


@dataclass
class Result:
    """What became of a part."""

    part: str
    status: str
    reason: str = ""
    date: str = ""
    seconds: float = 0.0
    command: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    @property
    def failed(self) -> bool:
        return self.status in ("failed", "timed out")


def run(parts: tuple[Part, ...], settings: Settings, machine: dict[str, Any]) -> list[Result]:
    """Runs the parts in order; one result each, also for those that were not run."""
    started = time.monotonic()
    settings.out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    with (settings.out / "log.txt").open("w") as log:
        for part in parts:
            spent = time.monotonic() - started
            left = float("inf") if settings.budget is None else settings.budget - spent
            result = _unless_in_vain(part, results, settings, left)
            if result is None:
                print(f"== {part.name}: {part.about}", flush=True)
                result = _run_part(part, settings, machine, min(part.seconds, left))
                print(f"== {part.name}: {result.status}, {result.seconds:.1f} s", flush=True)
                if result.failed:
                    print(result.log[-SHOWN_CHARACTERS:], flush=True)
            result.date = result.date or _now()
            result.machine, result.command = machine, settings.command
            results.append(result)
            log.write(f"==== {part.name}: {result.status} {result.reason}\n{result.log}\n")
            log.flush()
            # After each part: the whole run may be ended from outside.
            if not settings.compact:
                write_json(settings.out / f"{part.name}.json", asdict(result))
            _write_summary(results, settings, machine)
    return results


def _unless_in_vain(
    part: Part, before: list[Result], settings: Settings, left: float
) -> Result | None:
    lost = {result.part for result in before if result.status != "passed"}
    missing = [name for name in part.needs if name in lost]
    if missing:
        return Result(part.name, "not run", f"{', '.join(missing)} did not pass")
    if settings.device == "cpu" and not part.rehearses:
        return Result(part.name, "skipped", "needs a GPU")
    if left < LEAST_SHARE * part.seconds:
        reason = f"{max(left, 0.0):.0f} s are left of the budget of {settings.budget:g} s"
        return Result(part.name, "not run", reason)
    return None


def _run_part(part: Part, settings: Settings, machine: dict[str, Any], seconds: float) -> Result:
    state = settings.work / "state"
    state.mkdir(parents=True, exist_ok=True)
    for stale in state.glob(f"{part.name}.*"):
        stale.unlink()
    context = Context(
        name=part.name,
        state=state / f"{part.name}.json",
        work=settings.work,
        device=settings.device,
        quick=settings.quick,
        nccl=settings.nccl,
        seconds=seconds,
        machine=machine,
    )
    save_context(context, state / f"{part.name}.context")
    command = [*settings.child, part.name, str(state / f"{part.name}.context")]
    log = state / f"{part.name}.log"
    date, start = _now(), time.monotonic()
    with log.open("w") as output:
        code = run_bounded(command, seconds, output, GRACE_SECONDS)
    text = log.read_text(errors="replace")
    result = Result(part.name, "failed", date=date, seconds=time.monotonic() - start)
    result.log = text[-LOG_CHARACTERS:]
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, json.JSONDecodeError):
        found = json.loads((state / f"{part.name}.json").read_text())
    result.figures = found.get("figures", {})
    if code is None:
        why = ", which the budget left" if seconds < part.seconds else ""
        result.status, result.reason = "timed out", f"ended after {seconds:.0f} s{why}"
    elif "status" in found:
        result.status, result.reason = found["status"], found["reason"]
    else:
        how = f"signal {-code}" if code < 0 else f"status {code}"
        result.reason = f"its process ended with {how}; see the log"
    return result


def _write_summary(results: list[Result], settings: Settings, machine: dict[str, Any]) -> None:
    content = {
        "date": results[0].date,
        "command": settings.command,
        "machine": machine,
        "status": {result.part: result.status for result in results},
        "parts": [_without_machine(result) for result in results],
    }
    write_json(settings.out / "summary.json", content)


def _without_machine(result: Result) -> dict[str, Any]:
    content = asdict(result)
    del content["machine"]
    return content


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
