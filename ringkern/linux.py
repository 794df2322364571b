"""Reads small files under ``/sys`` and ``/proc`` in which Linux describes a machine.

Any of them may be missing, as in a container.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_MAX_CORES = 1 << 16


def text(path: Path) -> str:
    """Returns a file's first kilobytes; "" if there is none, or it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 14).decode(errors="replace").strip()
    except OSError:
        return ""


def cores(listed: str) -> tuple[int, ...]:
    """Returns the numbers of a list of the kernel: "0-2,8" has 0, 1, 2 and 8."""
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", listed):
        numbers.update(range(int(first), min(int(last or first), _MAX_CORES) + 1))
    return tuple(sorted(numbers))


class DataCache(NamedTuple):
    """A level of cache: ``size`` bytes, shared by ``cores`` logical CPUs."""

    level: int
    size: int
    cores: int


def data_caches(sys: Path, core: int) -> tuple[DataCache, ...]:
    """Returns the data caches of a core, by level; empty if unknown. ``sys``: as ``/sys``."""
    found = []
    for index in sorted((sys / f"devices/system/cpu/cpu{core}/cache").glob("index*")):
        size = re.fullmatch(r"(\d{1,9})([KMG]?)", text(index / "size"))
        level = text(index / "level")
        if text(index / "type") == "Instruction" or not size or not level.isdigit():
            continue
        shift = {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
        shared = len(cores(text(index / "shared_cpu_list"))) or 1
        found.append(DataCache(int(level[:2]), int(size[1]) << shift, shared))
    return tuple(sorted(found, key=lambda cache: cache.level))
