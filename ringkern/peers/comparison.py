"""ringkern next to its peers and to the limit, in one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..turns import Result
from .rows import LIMIT, RINGKERN, RINGKERN_SHARED, SHARED, Entrant, Row


@dataclass(frozen=True)
class Comparison:
    """ringkern in one mode of one row, next to the fastest peer and to the limit.

    Attributes:
        tensor: ``"plain"``, or ``"shared"``: made by :func:`ringkern.zeros`.
        best: the fastest peer whose result was right; None: there is none.
        limit: the fastest bare movement between such tensors; None: it was not measured.
    """

    mode: str
    tensor: str
    own: Result
    best: tuple[str, Result] | None
    limit: tuple[str, Result] | None

    @property
    def to_peer(self) -> float | None:
        """Time over the best peer's: below 1, ringkern took less."""
        return self.own.time_us / self.best[1].time_us if self.best else None

    @property
    def to_limit(self) -> float | None:
        """Time over the limit's."""
        return self.own.time_us / self.limit[1].time_us if self.limit else None


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
            limit = limit_of(row, tensor == "shared")
            if own := row.results.get(Entrant(name, mode)):
                found.append(Comparison(mode, tensor, own, _fastest(rivals), limit))
    return found


def is_own(contender: str) -> bool:
    """Whether it is ringkern."""
    return contender in (RINGKERN, RINGKERN_SHARED)


def limit_of(row: Row, shared: bool = False) -> tuple[str, Result] | None:
    """The fastest bare movement, with its chunk; ``shared``: of tensors in shared memory, too."""
    return _fastest(
        {
            entrant.mode: result
            for entrant, result in row.results.items()
            if entrant.contender == LIMIT
            and (shared or not entrant.mode.startswith(SHARED))
            and not result.wrong
        }
    )


def _fastest(results: dict[str, Result]) -> tuple[str, Result] | None:
    return min(results.items(), key=lambda item: item[1].time_us, default=None)


def wrong_of(rows: list[Row], contender: str) -> int:
    """Elements that were wrong, of all rows and modes of one contender."""
    return sum(
        result.wrong or 0
        for row in rows
        for entrant, result in row.results.items()
        if entrant.contender == contender
    )
