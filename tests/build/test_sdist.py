"""The published files are those in git: all of them in the source distribution, a part in the
package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ringkern.tools import COMMANDS
from tests import needs

ROOT = Path(__file__).resolve().parents[2]

# Files that setuptools adds to a source distribution.
MADE = {"PKG-INFO", "setup.cfg"}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    """Files of the checkout that git knows."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("this is no checkout: there is nothing to compare with")
    listed = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    return {name for name in listed if name and (ROOT / name).exists()}


@pytest.fixture(scope="module")
def clone(tracked: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the files, because setuptools writes beside the files that it packs."""
    copy = tmp_path_factory.mktemp("clone")
    for name in tracked:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def sdist(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> tarfile.TarFile:
    directory = tmp_path_factory.mktemp("dist")
    hook = "import sys; sys.path.insert(0, 'build_backend'); import ringkern_build"
    hook += "; ringkern_build.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", hook, directory, cwd=clone)
    (archive,) = directory.iterdir()
    return tarfile.open(archive)


def test_sdist_holds_all_that_is_in_git(sdist: tarfile.TarFile, tracked: set[str]) -> None:
    files = {file.name.partition("/")[2] for file in sdist.getmembers() if not file.isdir()}
    packed = {name for name in files if not name.startswith("ringkern.egg-info/")}
    assert packed - MADE == tracked


def test_sdist_is_bound_to_no_torch(sdist: tarfile.TarFile) -> None:
    """A wheel is; the source is for every torch that it can be built against."""
    (name,) = (name for name in sdist.getnames() if name.count("/") == 1 and "PKG-INFO" in name)
    file = sdist.extractfile(name)
    assert file
    lines = file.read().decode().splitlines()
    assert [line for line in lines if "-Dist: torch" in line] == ["Requires-Dist: torch>=2.11"]


def test_package_holds_all_that_is_in_its_directory(
    clone: Path, tracked: set[str], tmp_path: Path
) -> None:
    """Templates, tables, recorded machines, too, which setuptools packs only where it is told."""
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    run(*command, cwd=clone)
    packed = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert packed == {
        name for name in tracked if name.split(os.sep)[0] in ("ringkern", "ringkern_autoload.py")
    }


def test_package_holds_nothing_that_is_not_used() -> None:
    """Neither a module that no import, command or entry point loads, nor data of a tool that has
    moved.
    """
    graph = needs.module("grimp").build_graph("ringkern")
    used = {"ringkern", "ringkern.__main__"}
    loaded = re.findall(r'"(ringkern\.[.\w]+):', (ROOT / "pyproject.toml").read_text())
    for root in ["ringkern.__main__", *loaded, *(command.module for command in COMMANDS)]:
        used |= {root} | graph.find_upstream_modules(root)
    packages = {name.rpartition(".")[0] for name in used}
    assert graph.modules - used - packages == set()
    others = {p for p in (ROOT / "ringkern").rglob("*") if p.is_file() and p.suffix != ".py"}
    folders = {p.parent.relative_to(ROOT).as_posix() for p in others if "__pycache__" not in str(p)}
    assert folders == {
        "ringkern",  # the extension, its stub, py.typed
        "ringkern/choose/topology/machines",
        "ringkern/choose/tunings",
        "ringkern/tools/model",  # costs.txt
        "ringkern/tools/trace/web",
    }
