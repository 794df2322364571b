"""Settings from the environment, each read once, strictly, when ringkern is imported.

:func:`variables` is the table of them; what reads them, tells of them and documents them is made
of it.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from . import _C

ALGORITHMS = ("auto", *_C.algorithms)
PROTOCOLS = ("auto", *_C.protocols)
# From run to run the bits are always the same; these say what else must not change them.
DETERMINISTIC = ("auto", "run_to_run", "size_invariant")
# What partial sums of a small float are rounded to.
ACCUMULATE = ("auto", "dtype", "float32")

# What joins hosts, unless somebody says otherwise.
ENGINES = {"cpu": "gloo", "cuda": "nccl"}

# A wait is counted in milliseconds.
SHORTEST_TIMEOUT_S = 0.001
# What a process does once a ring of it has failed.
ON_FAULT = ("raise", "exit")
# Where the segments of ranks on GPUs are.
CUDA_MEMORY = ("auto", "ipc", "host")
# Characters of a name that is to fit into errors.
LONGEST_HOST = 64


@dataclass(frozen=True)
class Config:
    """What the environment asks for."""

    protocol: str = "auto"
    timeout_s: float = 600.0
    algorithm: str = "auto"
    dump_dir: Path | None = None
    deterministic: str = "auto"
    accumulate: str = "auto"
    host: str = ""
    inter_host: str | None = None
    on_fault: str = ""
    cuda_memory: str = "auto"

    @property
    def leaves_all_open(self) -> bool:
        """Whether a call that asks for nothing is asked for nothing here, either."""
        asked = {self.algorithm, self.protocol, self.deterministic, self.accumulate}
        return asked == {"auto"}


@dataclass(frozen=True)
class Variable:
    """An environment variable that ringkern knows.

    Attributes:
        name: of the variable.
        default: what counts where it is not set, as text; empty: nothing.
        accepts: its values, in words.
        meaning: what it does, in Markdown.
        when: ``"import"``: read when ringkern is imported; ``"use"``: when it is needed;
            ``"build"``: by the build, and no concern of a program that uses ringkern.
        field: the name in :class:`Config`; empty where it is not there.
        parse: its value of a text; raises ValueError, which names the variable, the text and what
            is accepted.
    """

    name: str
    default: str
    accepts: str
    meaning: str
    when: str = "import"
    field: str = ""
    parse: Callable[[str], Any] = str


def _choice(name: str, choices: tuple[str, ...], meaning: str) -> Variable:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{name}={text!r}: choose one of {', '.join(choices)}")
        return text

    field = name.removeprefix("RINGKERN_").lower()
    return Variable(name, "auto", ", ".join(choices), meaning, field=field, parse=parse)


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_TIMEOUT_S <= seconds < float("inf"):
        raise ValueError(
            f"RINGKERN_TIMEOUT={text!r}: give a number of seconds, {SHORTEST_TIMEOUT_S} or more"
        )
    return seconds


def _on_fault(text: str) -> str:
    if text not in ON_FAULT:
        raise ValueError(f"RINGKERN_ON_FAULT={text!r}: choose one of {', '.join(ON_FAULT)}")
    return text


def _dump_dir(text: str) -> Path:
    if not text:
        raise ValueError("RINGKERN_DUMP_DIR='': give a directory, or unset it")
    return Path(text).absolute()  # a program may go elsewhere before it fails


def _host(text: str) -> str:
    if not 0 < len(text) <= LONGEST_HOST or not re.fullmatch(r"[!-~]*", text):
        raise ValueError(
            f"RINGKERN_HOST={text!r}: give a name of 1 to {LONGEST_HOST} ASCII characters without "
            "spaces, or unset it"
        )
    return text


def engines(what: str, text: str) -> dict[str, str]:
    """For each device what joins hosts, of ``"gloo"`` or ``"cpu:gloo,cuda:nccl"``; lower case.

    Args:
        what: of whom to say that ``text`` is wrong.
        text: a name, for both devices, or one for each; a device that it does not name keeps its
            usual engine.

    Raises:
        ValueError: it is neither.
    """
    found: dict[str, str] = {}
    for part in text.lower().split(","):
        device, colon, name = part.strip().rpartition(":")
        devices = (device,) if colon else tuple(ENGINES)
        known = set(devices) <= set(ENGINES) and not set(devices) & set(found)
        if not known or not re.fullmatch(r"[a-z0-9_.-]+", name):
            raise ValueError(
                f"{what}={text!r}: give a backend of torch.distributed, as gloo, nccl, mpi or ucc, "
                "or one for each device, as cpu:gloo,cuda:nccl"
            )
        found |= dict.fromkeys(devices, name)
    return ENGINES | found


def _inter_host(text: str) -> str:
    engines("RINGKERN_INTER_HOST", text)
    return text


_READ_AT_IMPORT = (
    _choice(
        "RINGKERN_ALGORITHM",
        ALGORITHMS,
        'algorithm of every all-reduce that says `algorithm="auto"`',
    ),
    _choice(
        "RINGKERN_PROTOCOL",
        PROTOCOLS,
        'protocol of every call that says `protocol="auto"`',
    ),
    _choice(
        "RINGKERN_DETERMINISTIC",
        DETERMINISTIC,
        '`deterministic` of every all-reduce that says `"auto"`',
    ),
    _choice(
        "RINGKERN_ACCUMULATE",
        ACCUMULATE,
        '`accumulate` of every all-reduce that says `"auto"`',
    ),
    Variable(
        "RINGKERN_TIMEOUT",
        "600",
        f"seconds, {SHORTEST_TIMEOUT_S} or more",
        "how long a rank waits for a neighbour before it raises; the backend has the timeout of "
        "its group",
        field="timeout_s",
        parse=_timeout,
    ),
    Variable(
        "RINGKERN_ON_FAULT",
        "raise on CPUs, exit on CUDA",
        ", ".join(ON_FAULT),
        "what becomes of a process when a ring of it fails: calls raise, or the process ends, once "
        "the failure is reported, so that no program goes on with undefined results",
        field="on_fault",
        parse=_on_fault,
    ),
    _choice(
        "RINGKERN_CUDA_MEMORY",
        CUDA_MEMORY,
        "memory over which ranks on GPUs exchange data: device memory, where both ranks of a pair "
        "can open the other's, by a file descriptor or by CUDA IPC, and else host memory; `ipc`: "
        "without file descriptors; `host`: host memory always",
    ),
    Variable(
        "RINGKERN_DUMP_DIR",
        "",
        "a directory",
        "where the last calls are written, when a ring fails and on `SIGUSR2`",
        field="dump_dir",
        parse=_dump_dir,
    ),
    Variable(
        "RINGKERN_HOST",
        "",
        "a name",
        "of this rank's host: ranks of another name are on another host, also on one machine; not "
        "set: a host is a machine, or a network namespace of one",
        field="host",
        parse=_host,
    ),
    Variable(
        "RINGKERN_INTER_HOST",
        ",".join(f"{device}:{name}" for device, name in ENGINES.items()),
        "backends of torch.distributed, as `gloo`, or one for each device",
        'what joins hosts, for every group that does not say `inter_host="..."`',
        field="inter_host",
        parse=_inter_host,
    ),
)


def _other(name: str, default: str, accepts: str, meaning: str, when: str = "build") -> Variable:
    return Variable(name, default, accepts, meaning, when)


_OTHERS = (
    _other(
        "XDG_CACHE_HOME",
        "~/.cache",
        "a directory",
        "`ringkern/` in it holds what `python -m ringkern tune` measured and the peers of `bench`",
        "use",
    ),
    _other(
        "RINGKERN_CUDA",
        "",
        "0, 1",
        "0: no CUDA kernels; 1: fail where `nvcc` is missing; not set: where `nvcc` is found",
    ),
    _other("RINGKERN_CUDA_ARCHS", "", "numbers, as `80 90 100`", "GPUs to compile for"),
    _other(
        "RINGKERN_BUILD_DIR",
        "",
        "a directory",
        "where CMake builds; kept, so that the next build is incremental",
    ),
    _other("RINGKERN_CMAKE_ARGS", "", "arguments", "further arguments of `cmake`"),
    _other(
        "RINGKERN_TORCH_SITE",
        "",
        "a directory",
        "the site-packages directory whose torch is built against",
    ),
    _other(
        "RINGKERN_FETCH_TORCH",
        "0",
        "0, 1",
        "1: a build in an environment of its own downloads torch",
    ),
    _other("MAX_JOBS", "", "a number", "compilers at a time; not set: as many as there are cores"),
)


def variables() -> tuple[Variable, ...]:
    """All environment variables that ringkern reads, those of a program first."""
    return (*_READ_AT_IMPORT, *_OTHERS)


def read(environ: Mapping[str, str]) -> Config:
    """Reads the variables that count when ringkern is imported.

    Raises:
        ValueError: a variable has a value that it cannot have; the text names both.
    """
    for name, near in unknown(environ).items():
        hint = f"; did you mean {near}?" if near else ""
        warnings.warn(f"unknown environment variable {name}{hint}", stacklevel=2)
    given = {v.field: v.parse(environ[v.name]) for v in _READ_AT_IMPORT if v.name in environ}
    return Config(**given)


def unknown(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Variables that begin as ours and are none, each with the one that may be meant."""
    known = {variable.name for variable in variables()}
    at_import = [variable.name for variable in _READ_AT_IMPORT]
    strange = [name for name in environ if name.startswith("RINGKERN_") and name not in known]
    return {name: _near(name, at_import) for name in strange}


def timeout_seconds(timeout: timedelta | None) -> float:
    """What a caller gave, or ``RINGKERN_TIMEOUT``.

    Raises:
        ValueError: it is less than a millisecond.
    """
    seconds = config.timeout_s if timeout is None else timeout.total_seconds()
    if seconds < SHORTEST_TIMEOUT_S:
        raise ValueError(f"timeout is {timeout}; it must be a millisecond or more")
    return seconds


def between_hosts() -> dict[str, str]:
    """By device, what joins hosts unless a caller says otherwise: ``RINGKERN_INTER_HOST``."""
    text = config.inter_host
    return dict(ENGINES) if text is None else engines("RINGKERN_INTER_HOST", text)


def _near(name: str, known: Iterable[str]) -> str | None:
    # Without the prefix, in which all are alike.
    short = {other.removeprefix("RINGKERN_"): other for other in known}
    near = difflib.get_close_matches(name.removeprefix("RINGKERN_"), short, n=1)
    return short[near[0]] if near else None


config = read(os.environ)
