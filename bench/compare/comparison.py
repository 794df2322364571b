"""ringkern next to its peers and to the limit, in one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringkern.tools.turns import Result, quotient

from .rows import LIMIT, RINGKERN, RINGKERN_SHARED, SHARED, Entrant, Row


@dataclass(frozen=True)
class Comparison:
    """ringkern in one mode of one row, next to the best peer and to the limit.

    Attributes:
        tensor: ``"plain"``, or ``"shared"``: made by :func:`ringkern.zeros`.
        best: of the peers whose result was right, the one of the largest quotient; None: there is
            none.
        limit: the fastest bare movement between such tensors; None: it was not measured.
    """

    mode: str
    tensor: str
    own: Result
    best: tuple[str, Result] | None
    limit: tuple[str, Result] | None

    @property
    def to_peer(self) -> float | None:
        """Time over the best peer's, round by round: below 1, ringkern took less."""
        return quotient(self.own, self.best[1]) if self.best else None

    @property
    def to_limit(self) -> float | None:
        """Time over the limit's, round by round."""
        return quotient(self.own, self.limit[1]) if self.limit else None


def compare(row: Row, modes: Iterable[str]) -> list[Comparison]:
    """ringkern's comparisons in a row: a mode each, and each again for shared tensors."""
    found = []
    for name, tensor in ((RINGKERN, "plain"), (RINGKERN_SHARED, "shared")):
        for mode in modes:
            rivals = {
                entrant.contender: result
                for entrant, result in row.results.items()
                if entrant.mode == mode and not is_own(entrant.contender) and not result.wrong
            }
            if own := row.results.get(Entrant(name, mode)):
                best = max(rivals.items(), key=lambda rival: quotient(own, rival[1]), default=None)
                found.append(Comparison(mode, tensor, own, best, limit_of(row, tensor == "shared")))
    return found


def is_own(contender: str) -> bool:
    """Returns whether it is ringkern."""
    return contender in (RINGKERN, RINGKERN_SHARED)


def limit_of(row: Row, shared: bool = False) -> tuple[str, Result] | None:
    """The fastest bare movement, with its chunk; ``shared``: of tensors in shared memory, too."""
    movements = {
        entrant.mode: result
        for entrant, result in row.results.items()
        if entrant.contender == LIMIT
        and (shared or not entrant.mode.startswith(SHARED))
        and not result.wrong
    }
    return min(movements.items(), key=lambda movement: movement[1].time_us, default=None)


def wrong_of(rows: list[Row], contender: str) -> int:
    """Elements that were wrong, of all rows and modes of one contender."""
    return sum(
        result.wrong or 0
        for row in rows
        for entrant, result in row.results.items()
        if entrant.contender == contender
    )
