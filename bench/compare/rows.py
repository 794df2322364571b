"""The measurement and its results: settings, entrants, rows."""

from __future__ import annotations

from dataclasses import dataclass

from ringkern.tools.turns import Result

# Names of contenders.
LIMIT = "limit"
RINGKERN = "ringkern"
RINGKERN_SHARED = "ringkern:shared"  # of tensors that it has made itself, in shared memory

SHARED = "shared"  # the movement of the limit between such tensors


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        sizes: bytes of the tensor.
        ranks: of every contender.
        dtype: torch's name of a dtype.
        modes: ``"py"`` and ``"c"``, or one of them.
        rotate: bytes over which the calls walk; 0: all use the same tensor.
        check: compare one call a size and contender with the exact result.
        warmup: calls of each turn that do not count, at least.
        seconds: about how long a size takes.
        pinned: each rank keeps to cores of its own, one for each of its threads.
        threads: of each rank, for libraries that use several.
        turn_s: within which a contender must have answered.
        start_s: within which a contender must have started.
        timeout_s: for everything.
    """

    sizes: tuple[int, ...]
    ranks: int = 2
    dtype: str = "float32"
    modes: tuple[str, ...] = ("py", "c")
    rotate: int = 0
    check: bool = True
    warmup: int = 1
    seconds: float = 1.0
    pinned: bool = True
    threads: int = 1
    turn_s: float = 60.0
    start_s: float = 120.0
    timeout_s: float = 900.0


@dataclass(frozen=True)
class Entrant:
    """A contender in one of its modes; of the limit, a movement with its chunk."""

    contender: str
    mode: str


@dataclass(frozen=True)
class Row:
    """One size.

    Attributes:
        placement: where the cores were most often: ``"near"``, ``"far"``, ...
        choice: algorithm and protocol that ringkern chose; empty: it did not say.
    """

    size: int
    count: int
    placement: str
    results: dict[Entrant, Result]
    choice: tuple[str, ...] = ()


def has_limit(settings: Settings) -> bool:
    """Returns whether there is bare data movement for such a sum."""
    return settings.threads > 1 or (settings.ranks == 2 and settings.dtype == "float32")
