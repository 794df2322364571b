"""Continues an earlier run: which parts are left, and what it has found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.gpu.part import write_json
from bench.gpu.parts import Part, with_needs
from bench.gpu.runner import Result


def load(path: Path, machine: dict[str, Any]) -> list[Result]:
    """The results in a ``summary.json``.

    Raises:
        ValueError: there is none, or it is of another kind of machine.
    """
    try:
        found = json.loads(path.read_text())
        results = [Result(**part) for part in found["parts"]]
        there = found["machine"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--continue {path}: no summary of an earlier run ({type(error).__name__}: {error}); "
            "give the path of its summary.json, or start without --continue"
        ) from None
    for what, of in (("GPUs", _gpus), ("torch", lambda machine: machine.get("torch"))):
        if of(there) != of(machine):
            raise ValueError(
                f"--continue {path}: {what}: {of(there)} there, {of(machine)} here; "
                "start without --continue"
            )
    return results


def _gpus(machine: dict[str, Any]) -> list[Any]:
    return [gpu.get("name") for gpu in machine["gpus"]]


def remaining(parts: tuple[Part, ...], earlier: list[Result]) -> tuple[Part, ...]:
    """The parts that are still to be run, with those that they need.

    This is a part that was not run, and one that was cut because the budget, and not its own limit,
    was used up.
    """
    done = {
        result.part for result in earlier if result.status != "not run" and not result.cut_by_budget
    }
    return with_needs(tuple(part for part in parts if part.name not in done))


def restore(earlier: list[Result], work: Path) -> None:
    """Puts figures that later parts read where they look for them."""
    for result in earlier:
        path = work / "state" / f"{result.part}.json"
        if not path.exists():
            write_json(path, {"figures": result.figures})
