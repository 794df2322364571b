"""Settings from the environment, read once, when ringkern is imported; a wrong value raises.

:func:`variables` is the table from which they are read, listed and documented.
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
DETERMINISTIC = ("auto", "run_to_run", "size_invariant")
ACCUMULATE = ("auto", "dtype", "float32")

# The default inter-host engine of each device.
ENGINES = {"cpu": "gloo", "cuda": "nccl"}

# The extension counts waits in milliseconds.
SHORTEST_TIMEOUT_S = 0.001
# Reactions of a process to the failure of one of its rings.
ON_FAULT = ("raise", "exit")
# Where the segments of ranks on GPUs can be.
CUDA_MEMORY = ("auto", "ipc", "host")
# Each thread beyond the first takes a MiB of each rank's segment.
MOST_THREADS = 256
# In characters, so that the name fits into errors.
LONGEST_HOST = 64


@dataclass(frozen=True)
class Config:
    """Settings from the environment."""

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
        """Tells if the environment leaves algorithm, protocol and numerics to "auto"."""
        asked = {self.algorithm, self.protocol, self.deterministic, self.accumulate}
        return asked == {"auto"}


@dataclass(frozen=True)
class Variable:
    """An environment variable that ringkern knows.

    Attributes:
        name: the name of the variable.
        default: the value if it is not set, as text; empty: none.
        accepts: its values, in words.
        meaning: its effect, in Markdown.
        when: ``"import"``: read when ringkern is imported; ``"use"``: when it is needed;
            ``"build"``: only by the build.
        field: the field of :class:`Config`; empty: none.
        parse: converts a text to the value; raises ValueError, which names the variable, the text
            and the accepted values.
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
    return Path(text).absolute()  # a program may change its directory before it fails


def _host(text: str) -> str:
    if not 0 < len(text) <= LONGEST_HOST or not re.fullmatch(r"[!-~]*", text):
        raise ValueError(
            f"RINGKERN_HOST={text!r}: give a name of 1 to {LONGEST_HOST} ASCII characters without "
            "spaces, or unset it"
        )
    return text


def engines(what: str, text: str) -> dict[str, str]:
    """Parses inter-host engines, such as ``"gloo"`` or ``"cpu:gloo,cuda:nccl"``.

    Args:
        what: the name of the setting, for the error.
        text: a name, for both devices, or one for each; a device that it does not name keeps its
            default engine.

    Returns:
        The name of the engine for each device, in lower case.

    Raises:
        ValueError: ``text`` has another form.
    """
    found: dict[str, str] = {}
    for part in text.lower().split(","):
        device, colon, name = part.strip().rpartition(":")
        devices = (device,) if colon else tuple(ENGINES)
        known = set(devices) <= set(ENGINES) and not set(devices) & set(found)
        if not known or not re.fullmatch(r"[a-z0-9_.-]+", name):
            raise ValueError(
                f"{what}={text!r}: give a backend of torch.distributed, such as gloo, nccl, mpi or "
                "ucc, or one for each device, such as cpu:gloo,cuda:nccl"
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
        'algorithm of every all-reduce with `algorithm="auto"`',
    ),
    _choice(
        "RINGKERN_PROTOCOL",
        PROTOCOLS,
        'protocol of every call with `protocol="auto"`',
    ),
    _choice(
        "RINGKERN_DETERMINISTIC",
        DETERMINISTIC,
        '`deterministic` of every all-reduce with `deterministic="auto"`',
    ),
    _choice(
        "RINGKERN_ACCUMULATE",
        ACCUMULATE,
        '`accumulate` of every all-reduce with `accumulate="auto"`',
    ),
    Variable(
        "RINGKERN_TIMEOUT",
        "600",
        f"seconds, {SHORTEST_TIMEOUT_S} or more",
        "how long a rank waits before it raises; the backend uses its group's timeout",
        field="timeout_s",
        parse=_timeout,
    ),
    Variable(
        "RINGKERN_ON_FAULT",
        "raise on CPUs, exit on CUDA",
        ", ".join(ON_FAULT),
        "effect of a failed ring: its calls raise, or the process reports the failure and exits",
        field="on_fault",
        parse=_on_fault,
    ),
    _choice(
        "RINGKERN_CUDA_MEMORY",
        CUDA_MEMORY,
        "memory between ranks on GPUs; `auto`: device memory where both can open the other's, "
        "otherwise host memory; `ipc`: the same without file descriptors; `host`: host memory",
    ),
    Variable(
        "RINGKERN_DUMP_DIR",
        "",
        "a directory",
        "where the last calls are written when a ring fails, and on `SIGUSR2`",
        field="dump_dir",
        parse=_dump_dir,
    ),
    Variable(
        "RINGKERN_HOST",
        "",
        "a name",
        "name of this rank's host; not set: a host is a machine, or a network namespace of one",
        field="host",
        parse=_host,
    ),
    Variable(
        "RINGKERN_INTER_HOST",
        ",".join(f"{device}:{name}" for device, name in ENGINES.items()),
        "a backend of torch.distributed, such as `gloo`, or one for each device",
        "inter-host engine of every group that is made without `inter_host`",
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
        "`ringkern/` in it holds the results of `python -m ringkern tune` and the other libraries "
        "that `bench` compares with",
        "use",
    ),
    _other(
        "RINGKERN_CUDA",
        "",
        "0, 1",
        "0: build no CUDA kernels; 1: fail if `nvcc` is missing; not set: build them if `nvcc` is "
        "found",
    ),
    _other(
        "RINGKERN_CUDA_ARCHS",
        "",
        "numbers, such as `80 90 100`",
        "GPU architectures to compile for",
    ),
    _other(
        "RINGKERN_BUILD_DIR",
        "",
        "a directory",
        "build directory of CMake; kept, so that the next build is incremental",
    ),
    _other("RINGKERN_CMAKE_ARGS", "", "arguments", "additional arguments of `cmake`"),
    _other(
        "RINGKERN_TORCH_SITE",
        "",
        "a directory",
        "site-packages directory of the torch to build against",
    ),
    _other(
        "RINGKERN_FETCH_TORCH",
        "0",
        "0, 1",
        "1: an isolated build downloads torch",
    ),
    _other("MAX_JOBS", "", "a number", "compilers that run at a time; not set: one per core"),
)


def variables() -> tuple[Variable, ...]:
    """Returns all environment variables that ringkern reads; those of the build come last."""
    return (*_READ_AT_IMPORT, *_OTHERS)


def read(environ: Mapping[str, str]) -> Config:
    """Reads the variables that take effect when ringkern is imported; warns of unknown ones.

    Raises:
        ValueError: a variable has a wrong value; the text names both.
    """
    for name, near in unknown(environ).items():
        hint = f"; did you mean {near}?" if near else ""
        warnings.warn(f"unknown environment variable {name}{hint}", stacklevel=2)
    given = {v.field: v.parse(environ[v.name]) for v in _READ_AT_IMPORT if v.name in environ}
    return Config(**given)


def unknown(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Returns unknown RINGKERN_ variables, each with the known one that is closest, or None."""
    known = {variable.name for variable in variables()}
    at_import = [variable.name for variable in _READ_AT_IMPORT]
    strange = [name for name in environ if name.startswith("RINGKERN_") and name not in known]
    return {name: _near(name, at_import) for name in strange}


def timeout_seconds(timeout: timedelta | None) -> float:
    """Returns ``timeout`` in seconds; ``None``: ``RINGKERN_TIMEOUT``.

    Raises:
        ValueError: it is less than a millisecond.
    """
    seconds = config.timeout_s if timeout is None else timeout.total_seconds()
    if seconds < SHORTEST_TIMEOUT_S:
        raise ValueError(f"timeout is {timeout}; give a millisecond or more")
    return seconds


def check_threads(threads: int | None) -> None:
    """Raises ValueError unless ``threads`` is 1 to 256, or ``None``."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"threads is {threads}; give 1 to {MOST_THREADS}, or None")


def between_hosts() -> dict[str, str]:
    """Returns the default inter-host engine of each device: ``RINGKERN_INTER_HOST``."""
    text = config.inter_host
    return dict(ENGINES) if text is None else engines("RINGKERN_INTER_HOST", text)


def _near(name: str, known: Iterable[str]) -> str | None:
    # The prefix is the same in all names and would make all of them similar.
    short = {other.removeprefix("RINGKERN_"): other for other in known}
    near = difflib.get_close_matches(name.removeprefix("RINGKERN_"), short, n=1)
    return short[near[0]] if near else None


config = read(os.environ)
