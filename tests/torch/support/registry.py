"""A row of the table and the probe behind it."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

ROWS: list[Row] = []

SECTIONS = (
    *("Collectives", "Messages", "Objects", "Groups", "Without communication", "Work"),
    *("Deadlines", "Profiler and debugging", "Functional collectives"),
)

# Remarks.
TORCH_ASKS = "torch itself refuses it for other backends than Gloo"


@dataclass(frozen=True)
class Row:
    """A function of torch.distributed, or a feature of one.

    The probe runs on all ranks, ``probe(rank, size, *args)``, once for each case; it raises if
    something fails or a result is wrong, and may return a string for the cell.
    """

    section: str
    names: tuple[str, ...]  # torch's public names that the probe calls
    feature: str  # "" for the plain call
    probe: Callable[..., Any]
    cases: Mapping[str, tuple[Any, ...]]
    remark: str  # for the cell of ringkern: facts that outcomes alone do not show

    @property
    def key(self) -> str:
        return ", ".join(self.names) + (f": {self.feature}" if self.feature else "")


class Outcome(NamedTuple):
    """The result of one case of a probe with one backend."""

    verdict: str  # "yes", "no", "wrong result" or "hangs"
    text: str = ""  # returned by the probe, or the exception's text


def row(
    section: str,
    names: str,
    feature: str = "",
    *,
    cases: Mapping[str, tuple[Any, ...]] | None = None,
    remark: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a row whose probe is the decorated function. ``names`` are separated by spaces."""

    def add(probe: Callable[..., Any]) -> Callable[..., Any]:
        ROWS.append(Row(section, tuple(names.split()), feature, probe, cases or {"": ()}, remark))
        return probe

    return add


class WrongResultError(AssertionError):
    """A call returned without an error, and left wrong elements in a tensor."""


class UnexpectedError(AssertionError):
    """A call returned, and something other than elements is wrong."""


def expect(condition: object, text: str) -> None:
    if not condition:
        raise UnexpectedError(text)


def perform(rank: int, size: int, module: str, name: str, *args: Any) -> Any:
    """Runs a probe in a rank, by name, because partials and wrappers cannot be pickled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of deprecated functions
        return getattr(importlib.import_module(module), name)(rank, size, *args)
