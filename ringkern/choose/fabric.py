"""The machine as the search for rings needs it: the links between its ranks, and the ranks that
share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Edge(NamedTuple):
    """One direction of a link.

    Attributes:
        name: such as "gpu0>gpu1 NVLink".
        gb_s: of all its lanes together.
        lanes: number of lanes.
    """

    name: str
    gb_s: float
    lanes: int = 1


@dataclass(frozen=True)
class Fabric:
    """Ranks, and the edges that data crosses between them.

    Attributes:
        size: number of ranks.
        edges: directed; hops over the same edge share its bandwidth.
        routes: for each ordered pair of ranks, the indices of the edges between them; missing: no
            route from memory to memory.
        kinds: for each ordered pair, the slowest kind of link on its route, in nvidia-smi's
            letters: NVL, NVS (NVLink by a switch), C2C, PIX, PXB, PHB, SYS, or LOC (one device).
    """

    size: int
    edges: tuple[Edge, ...]
    routes: dict[tuple[int, int], tuple[int, ...]]
    kinds: dict[tuple[int, int], str]

    def gb_s(self, source: int, target: int) -> float:
        """Returns the bandwidth from source to target without other traffic; 0: no route."""
        route = self.routes.get((source, target))
        return min(self.edges[e].gb_s for e in route) if route else 0.0
