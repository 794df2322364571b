"""Workflows, hooks and wheels, as far as they can be checked here: they call existing targets, with
the tools and permissions that they need.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  (loads the libraries that the extension needs)
import yaml

import ringkern._C
from tests import needs
from tests.build.matrix import TORCHES

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FILES = ("build", "test", "full")  # each includes the one before
REQUIREMENTS = "".join((ROOT / "requirements" / f"{name}.txt").read_text() for name in FILES)
PROJECT = (ROOT / "pyproject.toml").read_text()


def read(path: Path) -> Any:
    """Returns a YAML file; the key `on`, which YAML reads as true, is read like GitHub reads it."""
    content = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in content.items()}


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(path)["jobs"]
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job["steps"]]


def commands(path: Path) -> list[str]:
    """Returns each line that a step runs, and each value that a matrix gives for such a line."""
    lines = [line for step in steps(path) for line in step.get("run", "").splitlines()]
    for job in jobs(path).values():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [])
        lines += [row["run"] for row in rows if "run" in row]
    return [line for line in lines if line and not line.startswith("${{")]


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/bug.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("dependabot", "dependabot.yml"),
    ],
)
def test_has_the_form_that_github_expects(schema: str, pattern: str) -> None:
    files = sorted((ROOT / ".github").glob(pattern))
    assert files
    if sys.version_info < (3, 11):
        pytest.skip("check-jsonschema needs Python 3.11")
    needs.module("check_jsonschema")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflows_are_the_four_expected() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "gpu", "wheels"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_existing_targets(path: Path) -> None:
    lines = commands(path)
    assert lines
    for line in lines:
        words = shlex.split(line)
        if words[0] == "make":
            assert words[1] in TARGETS, f"{line}: the Makefile has no such target"
        for word in words[1:]:
            # Words that name a file: with a suffix of ours, or below a directory of ours.
            if re.fullmatch(r"[\w./-]+\.(py|txt|toml|sh)|\.ci/\w+(\.py)?", word):
                assert (ROOT / word).exists(), f"{line}: there is no {word}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_has_few_rights_and_an_end(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    assert "pull_request_target" not in workflow["on"]
    for name, job in jobs(path).items():
        assert job["timeout-minutes"] <= 120, f"{name} may take for ever"
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_nothing_that_it_runs_can_be_exchanged(path: Path) -> None:
    """Forbids tags and branches of actions, which can be moved, and ranges of versions."""
    pinned = r"[\w/.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+"  # the version is what Dependabot reads
    for action in re.findall(r"\buses: (.+)", path.read_text()):
        assert re.fullmatch(pinned, action), action
    for line in commands(path):
        if " pip install " in line:
            assert re.search(r"pip install \w+==[\d.]+$", line), line


def test_only_listed_jobs_have_write_permissions() -> None:
    given = {
        (path.stem, name): job["permissions"]
        for path in WORKFLOWS
        for name, job in jobs(path).items()
        if "permissions" in job
    }
    assert given == {
        ("docs", "deploy"): {"pages": "write", "id-token": "write"},
        ("wheels", "publish"): {"id-token": "write"},
    }


def test_only_a_tag_is_published() -> None:
    found = jobs(ROOT / ".github" / "workflows" / "wheels.yml")
    publish = found["publish"]
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert publish["environment"] == "pypi"
    assert set(publish["needs"]) == set(found) - {"publish"}
    assert any(".ci/release.py" in step.get("run", "") for step in found["sdist"]["steps"])


def test_pull_requests_do_not_run_on_the_machine_with_a_gpu() -> None:
    for path in WORKFLOWS:
        own = [job for job in jobs(path).values() if "self-hosted" in str(job["runs-on"])]
        assert not own or set(read(path)["on"]) == {"push", "workflow_dispatch"}
    assert jobs(ROOT / ".github" / "workflows" / "gpu.yml")


def test_the_torches_of_the_matrix() -> None:
    """All tests with that of the requirements, and `make matrix` with the oldest and the newest."""
    rows = jobs(ROOT / ".github" / "workflows" / "ci.yml")["test"]["strategy"]["matrix"]["include"]
    pinned = re.search(r"^torch==(.+)$", REQUIREMENTS, re.MULTILINE)
    assert pinned
    assert rows[0]["torch"] == pinned[1]
    assert rows[0]["run"] == "bash .ci/run"
    for row, version in zip(rows[1:], (TORCHES[0], TORCHES[-1]), strict=True):
        assert row["torch"] == version
        assert row["run"] == f"make matrix VERSIONS={version} PYTHONS={row['python']}"
    build = (ROOT / "build_backend" / "ringkern_build.py").read_text()
    assert f'ANY_TORCH = "torch>={TORCHES[0].rpartition(".")[0]}"' in build


def test_the_requirements_are_exact() -> None:
    """Forbids ranges: two developers, and a release, would run different tools."""
    lines = [line.split(" #")[0] for line in REQUIREMENTS.splitlines() if line[0] not in "#-"]
    ranges = [line for line in lines if not re.match(r"[\w-]+==[\d.]+($|;)", line)]
    assert ranges == ["setuptools>=77"]


# ---- hooks before a commit ----------------------------------------------------------------------


def hooks() -> list[dict[str, Any]]:
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    found: list[dict[str, Any]] = repository["hooks"]
    return found


# The package that brings a program of another name.
PACKAGES = {
    "lint-imports": "import-linter",
    "check-added-large-files": "pre-commit-hooks",
    "check-merge-conflict": "pre-commit-hooks",
    "check-toml": "pre-commit-hooks",
    "check-yaml": "pre-commit-hooks",
    "end-of-file-fixer": "pre-commit-hooks",
    "trailing-whitespace-fixer": "pre-commit-hooks",
}


@needs.package("pre_commit")
@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_hook_runs_a_program_that_make_installs(hook: dict[str, Any]) -> None:
    """Otherwise its version is not that of `make lint`."""
    assert hook["language"] == "system"
    program, *arguments = hook["entry"].split()
    if sys.version_info < (3, 11) and program.endswith("check-jsonschema"):
        pytest.skip("check-jsonschema needs Python 3.11")
    directory, _, name = program.rpartition("/")
    assert directory == ".venv/bin"
    if name == "python":
        script = arguments[0] if arguments[0] != "-m" else arguments[1].replace(".", "/") + ".py"
        assert (ROOT / script).exists()
    else:
        package = PACKAGES.get(name, name)
        assert re.search(rf"^{package}==\S+", REQUIREMENTS, re.MULTILINE), package
    assert (Path(sysconfig.get_path("scripts")) / name).exists()


def test_hooks_and_lint_check_the_same() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    scripts = set(re.findall(r"python (tests/build/\w+\.py|-m tests\.build\.\w+)", recipe[1]))
    assert scripts
    entries = [hook["entry"].partition("python ")[2] for hook in hooks()]
    assert scripts == {entry for entry in entries if entry}
    assert {"ruff check", "ruff format", "mypy"} <= {
        found
        for hook in hooks()
        for found in ("ruff check", "ruff format", "mypy")
        if found in hook["entry"] and found in recipe[1]
    }


# ---- wheels -------------------------------------------------------------------------------------


def test_wheels_leave_torch_its_libraries() -> None:
    """One that auditwheel copied into a wheel would be a second torch in the process."""
    if not shutil.which("readelf"):
        pytest.skip("there is no readelf")
    command = ["readelf", "--dynamic", ringkern._C.__file__]
    entries = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", entries))
    of_torch = {name for name in needed if name.startswith(("libtorch", "libc10"))}
    assert of_torch
    repair = re.search(r"^auditwheel repair (.+)$", PROJECT, re.MULTILINE)
    assert repair
    excluded = re.findall(r"--exclude (\S+)", repair[1].replace("'", ""))
    assert [
        name for name in of_torch if not any(fnmatch.fnmatch(name, glob) for glob in excluded)
    ] == []


def test_wheels_are_tried_by_a_program_that_is_there() -> None:
    command = re.search(r'^test-command = "python \{project\}/(.+)"$', PROJECT, re.MULTILINE)
    assert command
    assert (ROOT / command[1]).exists()
