"""The result of a check of ``doctor``, and its text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """The outcome of a check; ``UNCHECKED``: it was impossible, or there is nothing to check."""

    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"
    UNCHECKED = "not checked"


_COLORS = {State.GREEN: 32, State.YELLOW: 33, State.RED: 31, State.UNCHECKED: 2}


@dataclass(frozen=True)
class Finding:
    """One line of ``doctor``.

    Attributes:
        name: the checked property.
        state: the outcome.
        found: the finding, or why there is none.
        fix: what to do; always present for yellow and red.
    """

    name: str
    state: State
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        if bool(self.fix) != (self.state in (State.YELLOW, State.RED)):
            raise AssertionError(f"{self.name} is {self.state.value}, with the fix {self.fix!r}")

    def text(self, colors: bool = False) -> str:
        """Returns one line, and one for the fix."""
        word = f"{self.state.value:<12}"
        if colors:
            word = f"\x1b[{_COLORS[self.state]}m{word}\x1b[0m"
        lines = [f"{word}{self.name:<34}{self.found}"]
        if self.fix:
            lines.append(f"{'':<12}{'':<34}fix: {self.fix}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, str]:
        """Returns plain data, for JSON."""
        return {
            "name": self.name,
            "state": self.state.value,
            "found": self.found,
            "fix": self.fix,
        }


def green(name: str, found: str) -> Finding:
    """Makes a finding: all is well."""
    return Finding(name, State.GREEN, found)


def yellow(name: str, found: str, fix: str) -> Finding:
    """Makes a finding: it works, but not as well as it could."""
    return Finding(name, State.YELLOW, found, fix)


def red(name: str, found: str, fix: str) -> Finding:
    """Makes a finding: something does not work."""
    return Finding(name, State.RED, found, fix)


def unchecked(name: str, why: str) -> Finding:
    """Makes a finding: it was not checked."""
    return Finding(name, State.UNCHECKED, why)
