"""Settings from the environment, each read once, strictly, when ringkern is imported.

====================== ======= =================================================================
variable               default meaning
====================== ======= =================================================================
RINGKERN_ACCUMULATE    auto    ``accumulate`` of every all-reduce that says ``"auto"``
RINGKERN_ALGORITHM     auto    algorithm of every all-reduce that says ``algorithm="auto"``
RINGKERN_DETERMINISTIC auto    ``deterministic`` of every all-reduce that says ``"auto"``
RINGKERN_DUMP_DIR              where the last calls are written, when a ring fails and on SIGUSR2
RINGKERN_PROTOCOL      auto    protocol of every call that says ``protocol="auto"``
RINGKERN_TIMEOUT       600     seconds that a rank waits for a neighbour before it raises
====================== ======= =================================================================
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from . import _C

ALGORITHMS = ("auto", *_C.algorithms)
PROTOCOLS = ("auto", *_C.protocols)
# From run to run the bits are always the same; these say what else must not change them.
DETERMINISTIC = ("auto", "run_to_run", "size_invariant")
# What partial sums of a small float are rounded to.
ACCUMULATE = ("auto", "dtype", "float32")

# Read while ringkern is built, and no concern of a program that uses it.
_BUILD_VARIABLES = frozenset(
    {
        "RINGKERN_CUDA",
        "RINGKERN_CUDA_ARCHS",
        "RINGKERN_BUILD_DIR",
        "RINGKERN_CMAKE_ARGS",
        "RINGKERN_TORCH_SITE",
        "RINGKERN_FETCH_TORCH",
    }
)

# A wait is counted in milliseconds.
SHORTEST_TIMEOUT_S = 0.001


@dataclass(frozen=True)
class Config:
    """What the environment asks for."""

    protocol: str = "auto"
    timeout_s: float = 600.0
    algorithm: str = "auto"
    dump_dir: Path | None = None
    deterministic: str = "auto"
    accumulate: str = "auto"

    @property
    def leaves_all_open(self) -> bool:
        """Whether a call that asks for nothing is asked for nothing here, either."""
        asked = {self.algorithm, self.protocol, self.deterministic, self.accumulate}
        return asked == {"auto"}


def read(environ: Mapping[str, str]) -> Config:
    """Reads the ``RINGKERN_*`` variables.

    Raises:
        ValueError: a variable has a value that it cannot have; the text names both.
    """
    known = {
        "RINGKERN_ACCUMULATE",
        "RINGKERN_ALGORITHM",
        "RINGKERN_DETERMINISTIC",
        "RINGKERN_DUMP_DIR",
        "RINGKERN_PROTOCOL",
        "RINGKERN_TIMEOUT",
    }
    for name in environ:
        if name.startswith("RINGKERN_") and name not in known | _BUILD_VARIABLES:
            near = _near(name, known)
            hint = f"; did you mean {near}?" if near else ""
            warnings.warn(f"unknown environment variable {name}{hint}", stacklevel=2)
    algorithm = _one_of(environ, "RINGKERN_ALGORITHM", Config.algorithm, ALGORITHMS)
    protocol = _one_of(environ, "RINGKERN_PROTOCOL", Config.protocol, PROTOCOLS)
    deterministic = _one_of(environ, "RINGKERN_DETERMINISTIC", "auto", DETERMINISTIC)
    accumulate = _one_of(environ, "RINGKERN_ACCUMULATE", "auto", ACCUMULATE)
    text = environ.get("RINGKERN_TIMEOUT", str(Config.timeout_s))
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not SHORTEST_TIMEOUT_S <= timeout_s < float("inf"):
        raise ValueError(
            f"RINGKERN_TIMEOUT={text!r}: give a number of seconds, {SHORTEST_TIMEOUT_S} or more"
        )
    return Config(protocol, timeout_s, algorithm, _dump_dir(environ), deterministic, accumulate)


def _dump_dir(environ: Mapping[str, str]) -> Path | None:
    text = environ.get("RINGKERN_DUMP_DIR")
    if text is None:
        return None
    if not text:
        raise ValueError("RINGKERN_DUMP_DIR='': give a directory, or unset it")
    return Path(text).absolute()  # a program may go elsewhere before it fails


def _one_of(environ: Mapping[str, str], name: str, default: str, choices: tuple[str, ...]) -> str:
    value = environ.get(name, default)
    if value not in choices:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(choices)}")
    return value


def timeout_seconds(timeout: timedelta | None) -> float:
    """What a caller gave, or ``RINGKERN_TIMEOUT``.

    Raises:
        ValueError: it is less than a millisecond.
    """
    seconds = config.timeout_s if timeout is None else timeout.total_seconds()
    if seconds < SHORTEST_TIMEOUT_S:
        raise ValueError(f"timeout is {timeout}; it must be a millisecond or more")
    return seconds


def _near(name: str, known: Iterable[str]) -> str | None:
    # Without the prefix, in which all are alike.
    short = {other.removeprefix("RINGKERN_"): other for other in known}
    near = difflib.get_close_matches(name.removeprefix("RINGKERN_"), short, n=1)
    return short[near[0]] if near else None


config = read(os.environ)
