"""How runs are told to a reader, and to a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.conformance.compare import Difference, Runs
from tests.conformance.rank import Outcome

STATUSES = ("passed", "failed", "skipped")


def counts(run: dict[str, Outcome]) -> str:
    number = Counter(outcome.status for outcome in run.values())
    return ", ".join(f"{number[status]} {status}" for status in STATUSES)


def table(results: dict[str, Runs]) -> str:
    """Returns the totals of the backends side by side, a line for each number of ranks."""
    number_of_ranks = sorted({ranks for runs in results.values() for ranks in runs})
    lines = ["ranks" + "".join(f"  {backend:36}" for backend in results).rstrip()]
    for ranks in number_of_ranks:
        cells = [counts(runs[ranks]) if ranks in runs else "" for runs in results.values()]
        lines.append(f"{ranks:5}" + "".join(f"  {cell:36}" for cell in cells).rstrip())
    return "\n".join(lines)


def failures(results: dict[str, Runs], details: bool) -> str:
    """One line for each failure, with the numbers of ranks at which it is the same."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for backend, runs in results.items():
        for ranks, run in sorted(runs.items()):
            for test, outcome in run.items():
                if outcome.status == "failed":
                    alike.setdefault((backend, test, outcome.reason), []).append(ranks)
    lines = []
    for (backend, test, reason), at in alike.items():
        lines.append(f"{backend}, {test} at {_several(at)} ranks: {reason}")
        if details:
            lines += ["  " + line for line in results[backend][at[0]][test].details.splitlines()]
    return "\n".join(lines)


def differing(found: Sequence[Difference]) -> str:
    """One line for each test, with the numbers of ranks at which its outcomes are the same."""
    alike: dict[tuple[str, str], list[int]] = {}
    for d in found:
        known = f" (known: {d.known})" if d.known else ""
        told = f"Gloo {_tell(d.gloo)}, ringkern {_tell(d.ours)}{known}"
        alike.setdefault((d.test, told), []).append(d.ranks)
    return "\n".join(f"{test} at {_several(at)} ranks: {t}" for (test, t), at in alike.items())


def as_json(
    torch: str, results: dict[str, Runs], found: Sequence[Difference], errors: Sequence[str]
) -> dict[str, Any]:
    return {
        "torch": torch,
        "results": {
            backend: {
                str(ranks): {test: outcome._asdict() for test, outcome in run.items()}
                for ranks, run in sorted(runs.items())
            }
            for backend, runs in results.items()
        },
        "differences": [
            {"test": d.test, "ranks": d.ranks, "gloo": d.gloo.status}
            | {"ringkern": d.ours.status, "reason": d.ours.reason, "known": d.known}
            for d in found
        ],
        "errors": list(errors),
    }


def _several(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _tell(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.reason}" if outcome.reason else outcome.status
