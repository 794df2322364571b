"""Runs the parts: each as a process of its own, for a bounded time, whatever became of the others.

The file that a part leaves in ``<out>/<part>.json``, and ``summary.json`` for all of them:

    part, status (one of STATUSES), reason, date, seconds, command, machine, figures (the part's
    own), log (the end of what it printed), cut_by_budget
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.gpu.bounded import ROOT, run_bounded
from bench.gpu.part import WITHOUT_A_GPU, Context, save_context, write_json
from bench.gpu.parts import PARTS, Part

# compiled: its programs were, without a GPU. partial: there was no time for all of it.
STATUSES = ("passed", "compiled", "partial", "failed", "timed out", "skipped", "not run")
LOG_CHARACTERS = 20_000  # of a part's log, in its JSON
SHOWN_CHARACTERS = 1_500  # of the log of a part that failed, on the terminal
GRACE_SECONDS = 3.0  # between asking a part to end and ending it
PROGRESS_SECONDS = 20.0  # between lines that show how far a part is


@dataclass(frozen=True)
class Settings:
    """The options of a run.

    Attributes:
        out: directory of the results; files: a file for each part there, too.
        work: directory of builds and of what a later run continues.
        budget: seconds of this run; ``None``: no bound.
        others: as in ``Context``.
    """

    out: Path
    work: Path
    device: str = "cuda"
    quick: bool = False
    nccl: str = ""
    budget: float | None = None
    files: bool = False
    compiles: bool = True
    prebuilt: str = ""
    prebuilt_extension: str = ""
    command: str = ""
    child: tuple[str, ...] = (sys.executable, "-u", str(ROOT / "bench" / "gpu"), "--child")


@dataclass
class Result:
    """The outcome of a part."""

    part: str
    status: str
    reason: str = ""
    date: str = ""
    seconds: float = 0.0
    command: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    cut_by_budget: bool = False

    @property
    def failed(self) -> bool:
        return self.status in ("failed", "timed out")


def run(
    parts: tuple[Part, ...],
    settings: Settings,
    machine: dict[str, Any],
    earlier: Sequence[Result] = (),
) -> list[Result]:
    """Runs the parts in order; one result each, also for those that were not run.

    ``earlier``: results of runs before this one, which are put into the summary beside its own.
    """
    started = time.monotonic()
    settings.out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    needed = {need for part in parts for need in part.needs}
    with (settings.out / "log.txt").open("w") as log:
        for part in parts:
            spent = time.monotonic() - started
            left = float("inf") if settings.budget is None else settings.budget - spent
            begun = any(r.status != "not run" and r.part not in needed for r in results)
            result = _unless_in_vain(part, results, settings, left, begun)
            if result is None:
                print(f"== {part.name}: {part.about}", flush=True)
                result = _run_part(part, settings, machine, left)
                print(f"== {part.name}: {result.status}, {result.seconds:.1f} s", flush=True)
                if result.failed:
                    print(result.log[-SHOWN_CHARACTERS:], flush=True)
            result.date = result.date or _now()
            result.machine, result.command = machine, settings.command
            results.append(result)
            log.write(f"==== {part.name}: {result.status} {result.reason}\n{result.log}\n")
            log.flush()
            # After each part: the whole run may be ended from outside.
            if settings.files:
                write_json(settings.out / f"{part.name}.json", asdict(result))
            _write_summary(merged(earlier, results), settings, machine)
    return results


def merged(earlier: Sequence[Result], later: Sequence[Result]) -> list[Result]:
    """The last result of each part, in the order of the parts."""
    order = {part.name: at for at, part in enumerate(PARTS)}
    last = {result.part: result for result in (*earlier, *later)}
    return sorted(last.values(), key=lambda result: order.get(result.part, len(order)))


def _unless_in_vain(
    part: Part, before: list[Result], settings: Settings, left: float, begun: bool
) -> Result | None:
    # The first part that was cut goes on in the next run: nothing overtakes it.
    stopped = any(result.cut_by_budget for result in before)
    lost = {result.part for result in before if result.status not in ("passed", "skipped")}
    missing = [name for name in part.needs if name in lost]
    if missing and not stopped:
        return Result(part.name, "not run", f"{', '.join(missing)} did not pass")
    if (
        settings.device == "cpu"
        and not part.rehearses
        and not (part.compiles and settings.compiles)
    ):
        return Result(part.name, "skipped", "needs a GPU")
    if stopped or left <= 0 or (begun and left < part.planned):
        reason = f"{max(left, 0.0):.0f} s are left of the budget of {settings.budget:g} s"
        return Result(part.name, "not run", reason, cut_by_budget=True)
    return None


def _run_part(part: Part, settings: Settings, machine: dict[str, Any], left: float) -> Result:
    most = part.seconds * (WITHOUT_A_GPU if settings.device == "cpu" else 1.0)
    seconds = min(most, left)
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
        compiles=settings.compiles,
        prebuilt=settings.prebuilt,
        prebuilt_extension=settings.prebuilt_extension,
    )
    save_context(context, state / f"{part.name}.context")
    command = [*settings.child, part.module or part.name, str(state / f"{part.name}.context")]
    log = state / f"{part.name}.log"
    date, start = _now(), time.monotonic()
    with log.open("w") as output:
        code = run_bounded(command, seconds, output, GRACE_SECONDS, _progress(part, log))
    text = log.read_text(errors="replace")
    result = Result(part.name, "failed", date=date, seconds=time.monotonic() - start)
    result.log = text[-LOG_CHARACTERS:]
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, json.JSONDecodeError):
        found = json.loads((state / f"{part.name}.json").read_text())
    result.figures = found.get("figures", {})
    if code is None:
        why = ", which the budget left" if seconds < most else ""
        result.status, result.reason = "timed out", f"ended after {seconds:.0f} s{why}"
    elif "status" in found:
        result.status, result.reason = found["status"], found["reason"]
    else:
        how = f"signal {-code}" if code < 0 else f"status {code}"
        result.reason = f"its process ended with {how}; see the log"
    result.cut_by_budget = seconds < most and result.status in ("partial", "timed out")
    return result


def _progress(part: Part, log: Path) -> Callable[[], None]:
    """Prints the last line of a part's log from time to time."""
    started = shown = time.monotonic()

    def tick() -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < PROGRESS_SECONDS:
            return
        shown = now
        last = log.read_text(errors="replace")[-500:].strip().splitlines()[-1:] or [""]
        print(f"   {part.name}, {now - started:.0f} s: {last[0][:120]}", flush=True)

    return tick


def _write_summary(results: list[Result], settings: Settings, machine: dict[str, Any]) -> None:
    content = {
        "date": results[0].date,
        "command": settings.command,
        "machine": machine,
        "status": {result.part: result.status for result in results},
        "parts": [_without_machine(result) for result in results],
    }
    write_json(settings.out / "summary.json", content)
    write_json(settings.work / "summary.json", content)  # what --continue reads by default


def _without_machine(result: Result) -> dict[str, Any]:
    content = asdict(result)
    del content["machine"]
    return content


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
