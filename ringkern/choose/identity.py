"""Identifies a machine by the properties that affect measured times, with a short name for them.

Nothing here needs torch, a device or a library of one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from .. import linux
from ..decode import Within


@dataclass(frozen=True)
class Identity:
    """A machine and the version of ringkern's transport.

    Attributes:
        cpu: the model, as the system names it.
        cores: number of hardware threads.
        caches: bytes of the first core's data caches, from the first level on.
        gpus: the models, in the driver's order.
        wire: ``ringkern._C.wire_version``.
    """

    cpu: str
    cores: Annotated[int, Within(1, 1 << 20)]
    caches: tuple[int, ...]
    gpus: tuple[str, ...]
    wire: Annotated[int, Within(0, 1 << 32)]

    @property
    def id(self) -> str:
        """Returns 12 hexadecimal digits, which differ between machines."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def likeness(self, other: Identity) -> tuple[bool, ...]:
        """Compares this processor with that of ``other``; the larger the result, the more similar.

        It compares maker, family, model and size of the last-level cache of the CPU.
        """

        def facts(machine: Identity) -> list[object]:
            maker, _, _ = machine.cpu.partition(" ")
            numbers = dict(re.findall(r"(cpu family|model) (\d+)", machine.cpu))
            return [maker, numbers.get("cpu family"), numbers.get("model"), machine.caches[-1:]]

        alike = [mine == its for mine, its in zip(facts(self), facts(other))]
        return tuple(all(alike[: i + 1]) for i in range(len(alike)))

    def __str__(self) -> str:
        gpus = f", {len(self.gpus)} x {self.gpus[0]}" if self.gpus else ""
        return f"{self.cpu}, {self.cores} cores{gpus}"


@functools.cache
def of_this_machine(wire: int, root: Path = Path("/")) -> Identity:
    """Returns the identity of the machine whose ``/proc`` and ``/sys`` are under ``root``."""
    return Identity(_cpu(root), os.cpu_count() or 1, _caches(root), _gpus(root), wire)


def _caches(root: Path) -> tuple[int, ...]:
    """Returns the bytes of each level of data cache of the first core; empty if unknown."""
    by_level = {cache.level: cache.size for cache in linux.data_caches(root / "sys", 0)}
    return tuple(sorted(by_level.values()))


def _cpu(root: Path) -> str:
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    # A virtual machine may give all processors of a maker one name; Arm gives numbers and no model.
    numbers = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
    named = [f"{name} {fields[name]}" for name in numbers if name in fields]
    model = fields.get("model name") or platform.machine()
    return f"{model} ({', '.join(named)})" if named else model


def _gpus(root: Path) -> tuple[str, ...]:
    models = []
    for place in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            match = re.search(r"^Model:\s*(.+?)\s*$", place.read_text(errors="replace"), re.M)
            models += [match[1]] if match else []
    return tuple(models)
