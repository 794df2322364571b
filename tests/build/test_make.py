"""When `make build` and `make demo` build: the Makefile's own rules, and a stand-in for a build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")

ROOT = Path(__file__).resolve().parents[2]

Make = Callable[..., int]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Runs make in a tree of nothing; returns the number of builds there."""
    for folder in ("csrc", "tests", "requirements", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("setup.py", "pyproject.toml", "CMakeLists.txt", "requirements/build.txt"):
        (tmp_path / file).touch()
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / ".venv/bin/python"
    # With "-m" it is pip, else it runs the demo.
    python.write_text("#!/bin/sh\n[ $1 = -m ] || exit 0\nmkdir -p build/dev\necho x >> builds\n")
    python.chmod(0o755)
    (tmp_path / ".venv/.ready-build").touch()  # newer than what it is made from

    def of(*words: str, **settings: str) -> int:
        names = ("RINGKERN_CUDA", "RINGKERN_CUDA_ARCHS", "CMAKE_ARGS", "CXXFLAGS", "MAKEFLAGS")
        env = {name: value for name, value in os.environ.items() if name not in names}
        subprocess.run(["make", *words], cwd=tmp_path, env=env | settings, check=True, timeout=60)
        return len((tmp_path / "builds").read_text().splitlines())

    return of


def test_other_settings_are_another_build(make: Make) -> None:
    assert [make("build"), make("build")] == [1, 1]
    assert [make("build", RINGKERN_CUDA="0"), make("build", RINGKERN_CUDA="0")] == [2, 2]
    assert [make("build", "RINGKERN_CUDA=1"), make("build", RINGKERN_CUDA="1")] == [3, 3]
    assert make("build", RINGKERN_CUDA="1", CXXFLAGS="-DWORDS='a b'") == 4


def test_the_demo_builds_where_nothing_is_built(make: Make) -> None:
    assert [make("demo"), make("demo")] == [1, 1]
    assert [make("build"), make("demo")] == [2, 2]  # a build for the tests serves the demo
    assert [make("clean"), make("demo")] == [2, 3]


WITHOUT = """
import importlib.metadata, re, sys
import pytest
from tests import needs
lines = open("requirements/full.txt").read().splitlines()
full = {name[0] for line in lines if (name := re.match(r"[A-Za-z][\\w-]*", line))}
for module, packages in importlib.metadata.packages_distributions().items():
    if full.intersection(packages):
        sys.modules[module] = None
needs.FULL = False
sys.exit(pytest.main(["--collect-only", "--quiet", "tests"]))
"""


def test_tests_are_collected_with_the_packages_of_make_test() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-3000:]
