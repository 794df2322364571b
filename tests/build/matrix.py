"""``make matrix``: builds and tests ringkern with each torch and Python that it supports.

Each pair has an environment of its own outside the tree, with a copy of the working tree: ringkern
is built there, and the quickstart, ``tests/torch`` and ``tests/comm`` run. torch is the CPU build
where the package indexes have one, else the CUDA build, which needs no GPU. The result of a pair
stays beside its environment; ``docs/reference/versions.md`` is made of all results.

    python -m tests.build.matrix --torch 2.11.0,2.15.0 --python 3.10
    python -m tests.build.matrix --page                  # writes the page, and runs nothing
    python -m tests.build.matrix --env 3.12 2.11.0       # makes a bare environment; its Python

uv makes the environments, with its usual configuration, such as UV_INDEX_URL; the build reads the
variables of setup.py. RK_MATRIX_DIR is the folder of all environments and results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "versions.md"
TORCHES = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TESTS = ("tests/torch", "tests/comm")
BUILD_LIMIT_S, TEST_LIMIT_S = 1200, 3000
RANKS = 4
BUILD_INFO = "import json, ringkern; print(json.dumps(ringkern.build_info(), default=list))"


class StepError(Exception):
    """A step of a pair that failed; the text names the step."""


@dataclass
class Cell:
    """The result of one pair of torch and Python.

    Attributes:
        torch: its version, with the kind of build once that is known, such as "2.13.0+cpu".
        absent: there is no build of torch for that Python.
        built: "CUDA" and the architectures that the extension has kernels for, or "CPU".
        tested: the tests were run, and not only the steps before them.
        failed: the tests that failed, or the step before them.
        skipped: the number of skipped tests by reason.
    """

    torch: str
    python: str
    date: str = ""
    commit: str = ""
    machine: str = ""
    absent: bool = False
    built: str = ""
    tested: bool = False
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    seconds: int = 0


def folder() -> Path:
    """Returns the directory of the environments and results."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("RK_MATRIX_DIR") or Path(cache, "ringkern-matrix"))


# ---- environments -------------------------------------------------------------------------------


def interpreter(python: str) -> str:
    """Returns pyenv's Python of that minor version; where there is none, uv looks for one."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found = sorted(versions.glob(f"{python}.*/bin/python"))
    return str(found[-1]) if found else python


def environment(python: str, torch: str, *requirements: str) -> Path:
    """Makes the environment of a pair unless it is there, and returns its Python."""
    place = folder() / f"{python}-{torch}{'' if requirements else '-bare'}"
    program, ready = place / "bin" / "python", place / "ready"
    if ready.exists():
        return program
    shutil.rmtree(place, ignore_errors=True)
    run("uv", "venv", "--quiet", "--python", interpreter(python), str(place))
    override = place / "override.txt"  # requirements/build.txt pins another torch
    override.write_text(f"torch=={torch}\n")
    packages = [f"torch=={torch}", "cmake", "ninja", "numpy", "setuptools>=77", *requirements]
    run(
        *("uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", str(program)),
        *("--override", str(override), *packages),
    )
    ready.touch()
    return program


def is_offered(python: str, torch: str) -> bool:
    """Asks the package indexes for a build of that torch for that Python."""
    asked = ["uv", "pip", "compile", "--quiet", "--no-deps", "--python-version", python, "-"]
    done = subprocess.run(
        asked, input=f"torch=={torch}\n", capture_output=True, text=True, check=False
    )
    if done.returncode and "implementation tag" not in done.stderr:
        raise StepError(f"uv found no torch {torch}: {done.stderr.strip()}")
    return not done.returncode


def run(*command: str) -> None:
    """Runs a command whose output is not for stdout."""
    subprocess.run(command, check=True, stdout=sys.stderr)


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def copy_tree(to: Path) -> None:
    """Copies the files of the working tree that git does not ignore."""
    shutil.rmtree(to, ignore_errors=True)
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


# ---- one pair -----------------------------------------------------------------------------------


def run_cell(python: str, torch: str, tests: bool) -> Cell:
    """Builds and tests one pair, and keeps the result."""
    start = time.monotonic()
    machine = f"{processor()}, {len(os.sched_getaffinity(0))} cores"
    commit = git("describe", "--always", "--dirty").strip()
    cell = Cell(torch, python, date.today().isoformat(), commit, machine)
    try:
        cell.absent = not is_offered(python, torch)
        if not cell.absent:
            program = environment(python, torch, "-r", str(ROOT / "requirements" / "full.txt"))
            _fill(cell, program, tests)
    except StepError as error:
        cell.failed = [str(error)]
    except subprocess.CalledProcessError:
        cell.failed = ["the environment could not be made"]
    cell.seconds = round(time.monotonic() - start)
    kept = folder() / f"{python}-{torch}.json"
    kept.write_text(json.dumps(asdict(cell), indent=1) + "\n")
    return cell


def _fill(cell: Cell, program: Path, tests: bool) -> None:
    place = program.parents[1]
    source, log, junit = place / "src", place / "log.txt", place / "junit.xml"
    copy_tree(source)
    log.unlink(missing_ok=True)
    junit.unlink(missing_ok=True)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    env |= {"PATH": f"{program.parent}:{env['PATH']}", "VIRTUAL_ENV": str(place)}

    def step(name: str, limit: int, *command: str, check: bool = True) -> str:
        """Runs a command of the pair, and returns its output, which the log keeps, too."""
        bounded = ["timeout", "--kill-after=30", str(limit), *command]
        with log.open("a+") as output:
            print("+", *command, file=output, flush=True)
            begin = output.tell()
            done = subprocess.run(
                bounded, cwd=source, env=env, stdout=output, stderr=subprocess.STDOUT, check=False
            )
            output.seek(begin)
            text = output.read()
        if check and done.returncode:
            raise StepError(f"{name} ended with {done.returncode}")
        return text

    step("build", BUILD_LIMIT_S, "uv", "pip", "install", "--no-build-isolation", "--no-deps",
         "--editable", ".")  # fmt: skip
    told = step("import ringkern", 120, "python", "-W", "ignore", "-c", BUILD_INFO)
    info = json.loads(told.strip().splitlines()[-1])
    cell.torch = step("import torch", 120, "python", "-c", "import torch; print(torch.__version__)")
    cell.torch = cell.torch.strip().splitlines()[-1]
    cell.built = f"CUDA {info['cuda_archs']}" if info["cuda"] else "CPU"
    printed = step("the quickstart", 300, "python", "-m", "torch.distributed.run", "--standalone",
                   f"--nproc-per-node={RANKS}", "examples/quickstart.py")  # fmt: skip
    expected = float(sum(range(1, RANKS + 1)))
    if not all(f"rank {rank}: {expected}" in printed for rank in range(RANKS)):
        raise StepError("the quickstart printed other sums")
    if not tests:
        return
    step("the tests", TEST_LIMIT_S, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
         f"--junitxml={junit}", *TESTS, check=False)  # fmt: skip
    if not junit.exists():
        raise StepError("the tests did not end")
    cell.tested = True
    count(cell, junit)


def count(cell: Cell, junit: Path) -> None:
    """Reads pytest's results of a pair."""
    reasons: Counter[str] = Counter()
    for test in ElementTree.parse(junit).iter("testcase"):
        name = f"{test.get('classname')}.{test.get('name')}"
        skipped = test.find("skipped")
        if test.find("failure") is not None or test.find("error") is not None:
            cell.failed.append(name)
        elif skipped is not None:
            # For a module that skips itself, only the text has the reason.
            whole = re.search(r"Skipped: (.*)'\)", skipped.text or "")
            reasons[whole[1] if whole else skipped.get("message") or ""] += 1
        else:
            cell.passed += 1
    cell.skipped = dict(reasons)


def processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else os.uname().machine


# ---- the page -----------------------------------------------------------------------------------


def results() -> dict[tuple[str, str], Cell]:
    """Reads the results that are kept, by torch and Python."""
    found = (folder() / f"{python}-{torch}.json" for torch in TORCHES for python in PYTHONS)
    cells = [Cell(**json.loads(path.read_text())) for path in found if path.exists()]
    return {(cell.torch.partition("+")[0], cell.python): cell for cell in cells}


def cell_text(cell: Cell | None) -> str:
    if cell is None:
        return "not run"
    if cell.absent:
        return "torch has no such build"
    if not cell.tested and not cell.failed:
        return "the quickstart; no tests"
    failed = f"**{len(cell.failed)} failed**, " if cell.failed else ""
    return f"{failed}{cell.passed:,} passed, {sum(cell.skipped.values())} skipped"


def page(cells: dict[tuple[str, str], Cell]) -> str:
    """Returns the text of ``docs/reference/versions.md``."""
    lines = [INTRODUCTION, f"| torch | {' | '.join(f'Python {p}' for p in PYTHONS)} |"]
    lines.append("|---|" + "---|" * len(PYTHONS))
    for torch in TORCHES:
        row = [cells.get((torch, python)) for python in PYTHONS]
        builds = dict.fromkeys(cell.torch for cell in row if cell and not cell.absent)
        lines.append(f"| {', '.join(builds) or torch} | {' | '.join(map(cell_text, row))} |")
    failed = [f"- torch {c.torch}, Python {c.python}: `{name}`"
              for c in cells.values() for name in c.failed]  # fmt: skip
    if failed:
        lines += ["", "## Failed", "", *failed]
    lines += ["", "## Skipped", "", "| tests | reason | in |", "|---:|---|---|"]
    lines += skip_rows(cells.values())
    ran = sorted({(cell.date, cell.commit, cell.machine) for cell in cells.values()})
    lines += ["", "## Run", ""]
    lines += [f"- {day}, commit {commit}, {machine}" for day, commit, machine in ran]
    return "\n".join(lines) + "\n"


def skip_rows(cells: Iterable[Cell]) -> list[str]:
    """Returns a row for each reason: the most tests of a pair, and the pairs."""
    where: dict[str, list[Cell]] = {}
    cells = [cell for cell in cells if not cell.absent]
    for cell in cells:
        for reason in cell.skipped:
            where.setdefault(reason, []).append(cell)
    rows = []
    for reason, found in sorted(where.items()):
        torches = dict.fromkeys(cell.torch.partition("+")[0] for cell in found)
        pythons = dict.fromkeys(cell.python for cell in found)
        pairs = f"torch {', '.join(torches)}; Python {', '.join(sorted(pythons))}"
        number = max(cell.skipped[reason] for cell in found)
        rows.append(f"| {number} | {reason} | {'all' if len(found) == len(cells) else pairs} |")
    return rows


INTRODUCTION = f"""\
# Versions

Results of `make matrix`, which made this page: for each pair of torch and Python, an environment of
its own, a build of the extension, the [quickstart](../quickstart.md)'s program with {RANKS} ranks,
`tests/torch` and `tests/comm`. The builds of torch for CUDA ran without a GPU.

Differences between versions, which the tests know:

- before torch 2.13, `Work.exception()` raises TypeError, whatever the backend;
- torch 2.11: a profiler's record has no "Is asynchronized op", Gloo has no `all_to_all` to compare
  with, and `torchfrtrace` does not know Gloo, so that dumps name NCCL instead;
- before torch 2.14, `dist.monitored_barrier` is for Gloo alone, and there is no `dist.set_timeout`;
  `group.monitored_barrier` and `group.set_timeout` work;
- before torch 2.14, groups have no `reconfigure`; `torch.distributed.shrink_group` works.

"""


def main() -> int:
    """Runs the pairs that were asked for; the exit status: 1 if anything failed."""
    parser = argparse.ArgumentParser("python -m tests.build.matrix", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--torch", default=",".join(TORCHES), metavar="A,B", help="versions of torch")
    add("--python", default=",".join(PYTHONS), metavar="A,B", help="versions of Python")
    add("--no-tests", action="store_true", help="end with the quickstart")
    add("--page", action="store_true", help="write docs/reference/versions.md, and run nothing")
    add("--env", nargs=2, metavar=("PYTHON", "TORCH"), help="make a bare environment of that pair")
    args = parser.parse_args()
    folder().mkdir(parents=True, exist_ok=True)
    if args.env:
        print(environment(*args.env))
        return 0
    pairs = [(p, t) for t in args.torch.split(",") for p in args.python.split(",")]
    failed = False
    for python, torch in [] if args.page else pairs:
        cell = run_cell(python, torch, not args.no_tests)
        print(
            f"torch {cell.torch}, Python {python}: {cell_text(cell)}, {cell.seconds} s", flush=True
        )
        for name in cell.failed:
            print(f"    {name}", flush=True)
        failed |= bool(cell.failed)
    PAGE.write_text(page(results()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
