"""Holds the rows of the table, in its order, and runs them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.ranks import RankError, Ranks, RankTimeout

# Modules of probes; each adds to ROWS.
from tests.torch.support import (  # noqa: F401
    collectives,
    deadlines,
    functional,
    groups,
    messages,
    tools,
    work,
)
from tests.torch.support.registry import ROWS, SECTIONS, Outcome, Row, perform

BACKENDS = ("gloo", "ringkern")
SIZE = 3  # more than two: includes a rank that is neither the first nor the last
LIMIT_S = 60.0  # limit of a probe
IN_STEP_S = 15.0
DIED = "a rank died"

Outcomes = dict[str, Outcome]  # outcomes of the cases of a row
Results = dict[str, dict[str, Outcomes]]  # backend, row, case


class Runner:
    """Ranks of one backend. A probe that leaves them out of step is followed by fresh ranks."""

    def __init__(self, backend: str, size: int = SIZE) -> None:
        self._ranks, self.limit_s = Ranks(size, backend=backend), LIMIT_S

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._ranks.close()

    def run(self, probe: Callable[..., Any], *args: Any) -> Outcome:
        outcome = self._run(self.limit_s, probe, *args)
        if outcome.verdict in ("no", "wrong result"):
            in_step = self._run(IN_STEP_S, still_works)
            if in_step.verdict != "yes":
                self._ranks.kill()
        return outcome

    def _run(self, limit_s: float, probe: Callable[..., Any], *args: Any) -> Outcome:
        try:
            name = (probe.__module__, probe.__name__)
            results = self._ranks.outcomes(perform, *name, *args, timeout_s=limit_s)
        except RankTimeout as timeout:
            return Outcome("hangs", _hanging(str(timeout)))
        except (EOFError, OSError):
            return Outcome("no", DIED)
        errors = [result for result in results if isinstance(result, RankError)]
        if not errors:
            return Outcome("yes", next((r for r in results if r), ""))
        wrong = [error for error in errors if error.kind == "WrongResultError"]
        if wrong:
            return Outcome("wrong result", wrong[0].text)
        return Outcome("no", shortened(errors[0]))


def still_works(rank: int, size: int) -> None:
    """Runs collectives after an error, which fail if the ranks are out of step."""
    groups.works(None, list(range(size)))


def _hanging(text: str) -> str:
    raised = re.search(r"rank \d+ raised (\w+: [^\n]*)", text)
    return f"another rank raised {raised[1]}" if raised else ""


def shortened(error: RankError) -> str:
    """Returns the first sentence of an exception, without parts that differ from run to run."""
    text = error.text.strip().split("\n")[0]
    text = re.sub(r"^(:*\[[^\]]*\]\s*)+", "", text)  # [/path/file.cc:81]
    text = re.sub(r" \(\[[\d.:]+\].*?\)", "", text)  # addresses
    text = re.sub(r"^ProcessGroupGloo::\w+: ", "", text)
    text = re.sub(r"\s*\(?Exception raised from.*", "", text)
    text = re.split(r"(?<=[a-z\])'\"])\. (?=[A-Z])", text)[0].rstrip(". ")
    if len(text) > 100:
        text = text[:97].rsplit(" ", 1)[0] + " ..."
    return text or error.kind


def fill(backend: str, rows: list[Row]) -> dict[str, Outcomes]:
    with Runner(backend) as runner:
        return {
            row.key: {case: runner.run(row.probe, *args) for case, args in row.cases.items()}
            for row in rows
        }


def in_order() -> list[Row]:
    """Returns the rows, grouped by section and then by function."""
    names = list(dict.fromkeys(row.names for row in ROWS))
    return sorted(ROWS, key=lambda row: (SECTIONS.index(row.section), names.index(row.names)))


def run(rows: list[Row], backends: tuple[str, ...] = BACKENDS) -> Results:
    """Runs all backends at the same time, because they mostly wait."""
    with without_gpus(), ThreadPoolExecutor(len(backends)) as pool:
        runs = {backend: pool.submit(fill, backend, rows) for backend in backends}
        return {backend: run.result() for backend, run in runs.items()}


@contextlib.contextmanager
def without_gpus() -> Iterator[None]:
    """Hides GPUs, which torch would use for barriers and objects: the rows are of the CPU."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
