"""The machine as a search for rings sees it: the links between its ranks, and who shares
them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Edge(NamedTuple):
    """One direction of a link.

    Attributes:
        name: as "gpu0>gpu1 NVLink".
        gb_s: of all its lanes together.
        lanes: how many.
    """

    name: str
    gb_s: float
    lanes: int = 1


@dataclass(frozen=True)
class Fabric:
    """Ranks, and what their data crosses on its way from one to the other.

    Attributes:
        size: number of ranks.
        edges: directed; hops that cross the same one share its bandwidth.
        routes: for each ordered pair of ranks, the indices of the edges that its data crosses;
            missing: the pair has no way from memory to memory.
        kinds: for each ordered pair, the slowest kind of link on its route, in nvidia-smi's
            letters: NVL, NVS (NVLink by a switch), C2C, PIX, PXB, PHB, SYS, or LOC (one device).
    """

    size: int
    edges: tuple[Edge, ...]
    routes: dict[tuple[int, int], tuple[int, ...]]
    kinds: dict[tuple[int, int], str]

    def gb_s(self, source: int, target: int) -> float:
        """From source to target, if they have the route for themselves; 0 where there is none."""
        route = self.routes.get((source, target))
        return min(self.edges[e].gb_s for e in route) if route else 0.0
