"""Runs the litmus tests of this folder with herd7, and compares its verdicts with the expected
ones.

    python -m tests.litmus.herd [FILE.litmus ...]     all of them without a name; exits with 1

A test is a file for herd7 in LISA, its generic language, under PTX's axioms: ``ptx.bell`` and
``ptx.cat``. The comment of a test lists its forms, the unchanged program and changed ones, each
with herd7's required verdict on the condition after ``exists``::

    Never      as the code is
    Sometimes  without the fence: P1 f[acq_rel,sys] =>
    Sometimes  plain, and of one word: P0 w[relaxed,sys] y 1 => w[weak] y 1; exists => (1:r0=1)

An edit names a cell of the program by its thread and its text, which may be empty, or a line by its
first word.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MISSING = "herd7 is not installed: opam install herdtools7, or https://github.com/herd/herdtools7"

VERDICTS = ("Never", "Sometimes")
GOOD = "the good outcome"  # of a protocol; that it is seen shows that not everything is forbidden

_FORM = re.compile(r"^ {3}(Never|Sometimes) +(.*?)(?=^ {3}\S|\Z)", re.MULTILINE | re.DOTALL)
_OBSERVATION = re.compile(r"^Observation (\S+) (Never|Sometimes|Always) \d+ \d+$", re.MULTILINE)


@dataclass(frozen=True)
class Form:
    """A program, and herd7's required verdict on its condition."""

    test: str
    name: str
    expected: str
    program: str


def files(room: str = "*") -> list[Path]:
    """Returns the files of `published` or of `protocols`, or of both."""
    return sorted(FOLDER.glob(f"{room}/*.litmus"))


def title(path: Path) -> str:
    """Returns the first sentence of the comment."""
    found = re.search(r"\(\*\s*(.*?)\.(?=\s)", path.read_text(), re.DOTALL)
    if found is None:
        raise ValueError(f"{path}: no comment that begins with a sentence")
    return " ".join(found[1].split())


def forms(path: Path) -> list[Form]:
    """Returns the program of a file in each of its forms.

    Raises:
        ValueError: the file lists no form, or an edit does not fit the program.
    """
    text = path.read_text()
    _, comment, program = re.split(r"\(\*|\*\)", text, maxsplit=2)
    listed = [(expected, " ".join(rest.split())) for expected, rest in _FORM.findall(comment)]
    if not listed:
        raise ValueError(f"{path}: its comment lists no form")
    found = []
    for expected, rest in listed:
        name, _, edits = rest.partition(": ")
        try:
            edited = _edited(program, [e.strip() for e in edits.split(";")] if edits else [])
        except ValueError as error:
            raise ValueError(f"{path}: {name}: {error}") from None
        found.append(Form(path.stem, name, expected, edited))
    return found


def _edited(program: str, edits: list[str]) -> str:
    lines = program.splitlines()
    heads = next(i for i, line in enumerate(lines) if re.match(r"\s*P0\s*[|;]", line))
    threads = _cells(lines[heads])
    rows = {i: _cells(line) for i, line in enumerate(lines) if i > heads and line.endswith(";")}
    before = {i: list(row) for i, row in rows.items()}
    for edit in edits:
        what, arrow, to = (part.strip() for part in edit.partition("=>"))
        thread, _, cell = what.partition(" ")
        if not arrow:
            raise ValueError(f"no edit: {edit}")
        if thread in threads:
            column = threads.index(thread)
            at = [i for i, row in before.items() if row[column] == cell]
            if len(at) == 1:
                rows[at[0]][column] = to
        else:
            at = [i for i, line in enumerate(lines) if line.startswith(what)]
            if len(at) == 1:
                lines[at[0]] = f"{what} {to}"
        if len(at) != 1:
            raise ValueError(f"{len(at)} places for: {edit}")
    for i, row in rows.items():
        lines[i] = " | ".join(row) + " ;"
    return "\n".join(lines) + "\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.rstrip("; ").split("|")]


def failures(asked: Iterable[Form], model: Path = FOLDER / "ptx.cat") -> list[str]:
    """Runs all; returns a line for each form with another verdict, or with none.

    Raises:
        FileNotFoundError: there is no herd7 on the PATH.
    """
    by_id = {f"{form.test}.{i}": form for i, form in enumerate(asked)}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, form in by_id.items():
            files.append(Path(folder, f"{name}.litmus"))
            files[-1].write_text(f"LISA {name}\n{form.program}")
        command = ["herd7", "-bell", FOLDER / "ptx.bell", "-model", model, *files]
        run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    said = dict(_OBSERVATION.findall(run.stdout))
    wrong = [
        f"{form.test}: {form.name}: not {form.expected}, herd7 says {said.get(name, 'nothing')}"
        for name, form in by_id.items()
        if said.get(name) != form.expected
    ]
    return wrong + ([run.stderr.strip()] if wrong and run.stderr else [])


def main(arguments: list[str]) -> int:
    """Returns 1 if a verdict of herd7 differs; 0 also if there is no herd7."""
    if shutil.which("herd7") is None:
        print(f"skipped: {MISSING}")
        return 0
    asked = [form for path in map(Path, arguments or files()) for form in forms(path)]
    wrong = failures(asked)
    print("\n".join(wrong) if wrong else f"herd7 says what is expected of {len(asked)} programs")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
