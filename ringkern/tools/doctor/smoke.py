"""Runs the tests of :mod:`ringkern.tools.doctor.rings` on ranks, which the tests may end.

The ranks run one test after the other, and note each result. A test that fails, crashes or hangs
ends them: it is red, and new ranks run the next tests.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from .. import launch
from .check import Finding, green, red, unchecked
from .rings import WAIT_S, Test

TEST_S = 2 * WAIT_S  # long enough for a ring to report the missing rank
STARTING_S = 120.0
MOST_FAILED = 2  # after this many, new ranks would fail in the same way


def run(tests: Sequence[Test], ranks: int, limit_s: float = TEST_S) -> Iterator[Finding]:
    """Starts ranks and runs the tests on them, each for ``limit_s`` at most."""
    left, failed = list(tests), 0
    while left:
        if failed == MOST_FAILED:
            yield from (unchecked(t.name, f"{failed} of its kind have failed") for t in left)
            return
        for finding in _batch(tuple(left), ranks, limit_s):
            left.pop(0)
            failed += bool(finding.fix)
            yield finding


def _batch(tests: Sequence[Test], ranks: int, limit_s: float) -> Iterator[Finding]:
    """Runs the tests up to the first that fails."""
    with tempfile.TemporaryDirectory(prefix="ringkern-") as name:
        folder, said = Path(name), io.StringIO()
        with contextlib.redirect_stderr(said):
            try:
                seconds = STARTING_S + limit_s * len(tests)
                launch.launch(ranks, seconds, _rank, tests, folder, limit_s)
            except OSError as error:  # the ranks have noted their results
                said.write(f"{type(error).__name__}: {error}")
        notes = [_notes(folder, rank) for rank in range(ranks)]
        for test in tests:
            said_of = [each.get(test.name, ("?", "")) for each in notes]
            errors = {rank: error for rank, (error, _) in enumerate(said_of) if error}
            if not errors:
                yield green(test.name, f"right on {ranks} rank{'s' * (ranks > 1)}{said_of[0][1]}")
                continue
            lost = [rank for rank, error in errors.items() if error == "?"]
            words = [f"rank {rank} {_end(folder, rank, said, limit_s)}" for rank in lost]
            words.sort(key=lambda text: " ended: " in text)  # an ended rank is not the cause
            raised = [f"rank {rank}: {e}" for rank, e in errors.items() if rank not in lost]
            fix = _fix(next((e for e in errors.values() if e != "?"), ""))
            yield red(test.name, "; ".join([*words[:1], *raised[:1]]), fix)
            return


def _notes(folder: Path, rank: int) -> dict[str, tuple[str, str]]:
    """Returns the outcome of each test that a rank has ended."""
    try:
        return dict(map(json.loads, (folder / f"notes-{rank}").read_text().splitlines()))
    except FileNotFoundError:
        return {}


def _end(folder: Path, rank: int, said: io.StringIO, limit_s: float) -> str:
    """Returns how a rank without a note ended, and its place in the code."""
    log: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        log = (folder / f"log-{rank}").read_text(errors="replace").splitlines()
    # In the output of faulthandler, the innermost place comes first.
    place = next((f", in {x.strip()}" for x in log if x.lstrip().startswith("File ")), "")
    for line in log:
        if line.startswith("Timeout"):
            return f"did not come to its end within {limit_s:g} s{place}"
        if line.startswith("Fatal"):
            return f"crashed: {line.removeprefix('Fatal Python error: ')}{place}"
    return f"ended: {(said.getvalue().strip().splitlines() or ['without a word'])[-1]}"


_FIXES = {
    "SharedMemoryError": "raise the limit, or allow the call, that the error names",
    "TransportError": "ranks cannot reach each other's memory: see the lines above and the error",
    "RendezvousError": "ranks cannot meet: they need one network namespace, and the same user",
    "DistNetworkError": "let localhost be reached: see the lines hostname and localhost",
}


def _fix(error: str) -> str:
    report = "report it, with `python -m ringkern env --all`"
    return _FIXES.get(error.split(":")[0], f"if nothing above is red, {report}")


def _rank(tests: Sequence[Test], folder: Path, limit_s: float) -> int:
    """Runs one rank: the tests up to the first that fails on any rank."""
    rank = dist.get_rank()
    log = os.open(folder / f"log-{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for fd in (sys.stdout.fileno(), sys.stderr.fileno()):  # includes the output of C++
        os.dup2(log, fd)
    faulthandler.enable()
    with (folder / f"notes-{rank}").open("w") as notes:
        for test in tests:
            faulthandler.dump_traceback_later(limit_s, exit=True)
            error, detail = _outcome(test)
            notes.write(json.dumps([test.name, [error, detail]]) + "\n")
            notes.flush()
            failed = torch.tensor(float(bool(error)))
            dist.all_reduce(failed)  # raises if another rank is gone
            if failed:
                return 1
    return 0


def joined(tests: Sequence[Test], limit_s: float = TEST_S) -> Iterator[Finding]:
    """Runs the tests on the ranks of an existing group; a hang or a crash ends it."""
    ranks, going = dist.get_world_size(), True
    for test in tests:
        if not going:
            yield unchecked(test.name, "a rank has failed before")
            continue
        faulthandler.dump_traceback_later(limit_s, exit=True)
        said = [("", "")] * ranks
        dist.all_gather_object(said, _outcome(test))
        errors = [f"rank {rank}: {error}" for rank, (error, _) in enumerate(said) if error]
        going = not errors
        if going:
            yield green(test.name, f"right on {ranks} ranks{said[0][1]}")
        else:
            yield red(test.name, errors[0], _fix(errors[0].split(": ", 1)[1]))
    faulthandler.cancel_dump_traceback_later()


def _outcome(test: Test) -> tuple[str, str]:
    """Returns the error of a test, empty if there is none, and its result."""
    try:
        found = test.function(*test.args)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        return f"{type(error).__name__}: {first}", ""
    return "", found or ""
