"""Groups of some ranks of a pool, on one host or on several, next to Gloo's of the same ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

import ringkern  # noqa: F401  (registers the backend, where no entry point has)
from tests.ranks import Ranks


class Groups(NamedTuple):
    """Two groups of the same ranks, with the same numbers in both."""

    ring: dist.ProcessGroup
    gloo: dist.ProcessGroup


class Layout(NamedTuple):
    """Some ranks of a pool, and on which host each is."""

    pool: str  # "namespaces" or "names"
    ranks: tuple[int, ...]


# Hosts a, b and c in namespaces. The sizes of pools; a pool is started once for all layouts.
NAMESPACES = (3, 3, 2)
# Hosts by name, whose ranks are not numbered consecutively.
NAMES = "abaab"
LAYOUTS = {
    "2 hosts x 2": Layout("namespaces", (0, 1, 3, 4)),
    "2 hosts x 3": Layout("namespaces", (0, 1, 2, 3, 4, 5)),
    "3 hosts x 2": Layout("namespaces", (0, 1, 3, 4, 6, 7)),
    "3 + 2": Layout("namespaces", (0, 1, 2, 3, 4)),
    "1 + 2": Layout("namespaces", (2, 3, 4)),
    "3 + 3 + 2": Layout("namespaces", (0, 1, 2, 3, 4, 5, 6, 7)),
    "3 hosts x 1": Layout("namespaces", (0, 3, 6)),
    "named, a b a a b": Layout("names", (0, 1, 2, 3, 4)),
    "named, a b a b": Layout("names", (0, 1, 2, 4)),
    "named, b a": Layout("names", (1, 2)),
}

_kept: dict[tuple[tuple[int, ...], float], Groups] = {}


def groups_of(ranks: tuple[int, ...], timeout_s: float = 60.0) -> Groups | None:
    """All ranks of the pool ask for it; None on those that are not members. Kept."""
    key = (ranks, timeout_s)
    if key not in _kept:
        limit = timedelta(seconds=timeout_s)
        made = [
            dist.new_group([*ranks], timeout=limit, backend=name) for name in ("ringkern", "gloo")
        ]
        _kept[key] = Groups(*made)
    return _kept[key] if dist.get_rank() in ranks else None


def _as_member(
    rank: int, size: int, ranks: tuple[int, ...], fn: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    groups = groups_of(ranks)
    return None if groups is None else fn(ranks.index(rank), len(ranks), groups, *args)


@dataclass(frozen=True)
class Members:
    """The ranks of a layout. ``fn(rank, size, groups, *args)``, by their numbers in the groups."""

    pool: Ranks
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ranks)

    def run(self, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Returns the members' results of `Ranks.run`."""
        return self._of(self.pool.run(_as_member, self.ranks, fn, args, **options))

    def outcomes(self, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Returns the members' results of `Ranks.outcomes`."""
        return self._of(self.pool.outcomes(_as_member, self.ranks, fn, args, **options))

    def kill(self) -> None:
        self.pool.kill()

    def _of(self, results: list[Any]) -> list[Any]:
        return [results[rank] for rank in self.ranks]
