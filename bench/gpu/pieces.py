"""Pieces built elsewhere: a preflight leaves them, and ``--prebuilt`` takes those that fit.

A directory of pieces holds the library, the extension and the programs, all without subfolders, and
``pieces.json``, which states the sources and the tools that they were made of.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu import device
from bench.gpu.bounded import ROOT
from bench.gpu.build import CORE_LIBRARY, EXT_SUFFIX, EXTENSION, test_targets
from bench.gpu.part import write_json

PROGRAMS = {"limits": "limits", "ll128_probe": "litmus", "sanitizer": "sanitize"}  # by part
_FILE = "pieces.json"
_SOURCES = (".h", ".cuh", ".cpp", ".cu", ".cmake", ".txt")
_NEEDS = {
    "sources": "the sources",
    "nvcc": "nvcc",
    "architecture": "the GPU architecture",
    "torch": "torch",
    "python": "the Python tag",
}
_OF_THE_EXTENSION = ("torch", "python")


@dataclass(frozen=True)
class Taken:
    """A choice of pieces.

    Attributes:
        core: directory of the library and the programs; "": none fit.
        extension: path of the extension; "": none fits.
        reasons: what does not fit, in words.
    """

    core: str = ""
    extension: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts that need no compiler therefore."""
        return ("core",) * bool(self.core) + ("extension",) * bool(self.extension)


def identity(machine: dict[str, Any]) -> dict[str, Any]:
    """Returns what pieces that are built here and now depend on."""
    return {
        "sources": _digest(),
        "nvcc": machine["nvcc"],
        "architecture": device.architecture(machine),
        "torch": machine["torch"],
        "python": EXT_SUFFIX,
    }


def leave(work: Path, made_of: dict[str, Any], parts: set[str]) -> Path:
    """Collects what was built under ``work`` in its directory of pieces, and returns that.

    Args:
        made_of: the identity of the pieces, from before they were built.
        parts: those that have built something just now; files of earlier runs are left out.
    """
    pieces = work / "pieces"
    shutil.rmtree(pieces, ignore_errors=True)
    pieces.mkdir(parents=True)
    tree = work / "cmake"
    files = {"core": [tree / CORE_LIBRARY], "extension": [tree / EXTENSION]}
    files["ctest"] = [tree / name for name in test_targets(ROOT)]
    files |= {part: [work / name] for part, name in PROGRAMS.items()}
    for part in parts & files.keys():
        for path in files[part]:
            shutil.copy2(path, pieces)
    write_json(pieces / _FILE, made_of)
    return pieces


def take(directory: Path, machine: dict[str, Any]) -> Taken:
    """Those pieces that fit this machine and these sources.

    Args:
        directory: of pieces, or the work directory of a preflight.
        machine: as in the results.
    """
    pieces = next((d for d in (directory, directory / "pieces") if (d / _FILE).exists()), None)
    if pieces is None:
        return Taken(reasons=(f"{directory} holds no {_FILE}; a preflight writes it",))
    there, here = json.loads((pieces / _FILE).read_text()), identity(machine)
    differ = {
        key: f"{what}: {there.get(key)} there, {here[key]} here"
        for key, what in _NEEDS.items()
        if there.get(key) != here[key]
    }
    reasons = tuple(differ.values())
    if differ.keys() - set(_OF_THE_EXTENSION):
        return Taken(reasons=reasons)
    wanted = [pieces / name for name in (CORE_LIBRARY, *test_targets(ROOT), *PROGRAMS.values())]
    if lost := [path.name for path in wanted if not path.exists()]:
        return Taken(reasons=(f"{pieces} lacks {', '.join(lost)}",))
    if trouble := list(_unloadable(wanted[1:])):
        return Taken(reasons=tuple(trouble))
    for program in wanted[1:]:
        program.chmod(0o755)  # a transfer may have lost it
    extension = pieces / EXTENSION
    fits = extension.exists() and not differ
    return Taken(str(pieces.resolve()), str(extension.resolve()) if fits else "", reasons)


def _unloadable(programs: list[Path]) -> Iterator[str]:
    """Programs that need another C or C++ library than this machine has."""
    for program in programs:
        done = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=20)
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "not found" in line]
        if lines:
            yield f"{program.name}: {lines[0].strip()}"


def _digest() -> str:
    """Hashes all sources that compiled pieces are made of."""
    files = [ROOT / "CMakeLists.txt", ROOT / "pyproject.toml"]
    for folder in ("csrc", "cmake", "tests", "bench/gpu"):
        files += (path for path in (ROOT / folder).rglob("*") if path.suffix in _SOURCES)
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
