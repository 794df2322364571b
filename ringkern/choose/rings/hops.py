"""The hops of a fabric, the edges that they share, and bounds found by counting them."""

from __future__ import annotations

from ..fabric import Fabric

Order = tuple[int, ...]
Crossings = list[list[tuple[tuple[int, int], ...] | None]]

SLACK = 1e-9  # of a capacity: the rounding error of a division and a multiplication


def flood(start: int, links: list[int], within: int) -> int:
    """Returns the ranks, as bits, reached from `start` over `links` through ranks of `within`."""
    seen = fresh = links[start] & within
    while fresh:
        low = fresh & -fresh
        fresh ^= low
        more = links[low.bit_length() - 1] & within & ~seen
        seen |= more
        fresh |= more
    return seen


class Hops:
    """The hops between all pairs of ranks, and the edges that each crosses.

    Attributes:
        crossings: of the hop from u to v, at [u][v]: pairs of edge and count; None: no such hop.
        least, most: the least and the largest number of times that any ring crosses an edge.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.size: int = fabric.size
        self.capacity: list[float] = [edge.gb_s for edge in fabric.edges]
        self.crossings: Crossings = [[None] * self.size for _ in range(self.size)]
        self.users: list[list[tuple[int, int, int]]] = [[] for _ in self.capacity]
        for (u, v), route in sorted(fabric.routes.items()):
            if u == v:
                continue
            times = tuple((e, route.count(e)) for e in dict.fromkeys(route))
            self.crossings[u][v] = times
            for e, often in times:
                self.users[e].append((u, v, often))
        self.out: list[int]
        self.into: list[int]
        self.out, self.into = self.masks([True] * len(self.capacity))
        self.least: list[int] = [self._least(e) for e in range(len(self.capacity))]
        self.most: list[int] = [self._most(e) for e in range(len(self.capacity))]

    def masks(self, open_edges: list[bool]) -> tuple[list[int], list[int]]:
        """Returns the ranks to and from which each rank has a hop over open edges only, as bits."""
        out, into = [0] * self.size, [0] * self.size
        for u, row in enumerate(self.crossings):
            for v, times in enumerate(row):
                if times is not None and all(open_edges[e] for e, _ in times):
                    out[u] |= 1 << v
                    into[v] |= 1 << u
        return out, into

    def connected(self, out: list[int], into: list[int]) -> bool:
        """Returns whether every rank is reached from every other one."""
        everyone = (1 << self.size) - 1
        return flood(0, out, everyone) == everyone and flood(0, into, everyone) == everyone

    def _least(self, edge: int) -> int:
        users = self.users[edge]
        if not users:
            return 0
        out, into = list(self.out), list(self.into)
        for u, v, _ in users:
            out[u] &= ~(1 << v)
            into[v] &= ~(1 << u)
        forced = max(out.count(0), into.count(0))
        return forced or int(not self.connected(out, into))

    def _most(self, edge: int) -> int:
        users = self.users[edge]
        if not users:
            return 0
        ways = min(len({u for u, _, _ in users}), len({v for _, v, _ in users}))
        return ways * max(often for _, _, often in users)

    def units(self, gb_s: float) -> list[int]:
        """Returns how many crossings of a ring of `gb_s` each edge carries."""
        return [int(capacity / gb_s * (1 + SLACK)) for capacity in self.capacity]

    def room(self, units: list[int], rings: int) -> list[list[int]]:
        """Returns how many of this many rings could take each hop if no other hop shared it."""
        return [
            [
                0
                if times is None
                else min((units[e] // often for e, often in times), default=rings)
                for times in row
            ]
            for row in self.crossings
        ]

    def refuted(self, rings: int, gb_s: float) -> bool:
        """Returns whether counting proves this many rings impossible: quick, and never wrong."""
        units = self.units(gb_s)
        if any(least * rings > unit for least, unit in zip(self.least, units)):
            return True
        if not self.connected(*self.masks([unit > 0 for unit in units])):
            return True
        room = self.room(units, rings)
        if any(sum(min(ways, rings) for ways in row) < rings for row in room):
            return True
        if any(sum(min(ways, rings) for ways in column) < rings for column in zip(*room)):
            return True
        return regular(room, rings) is None


def regular(room: list[list[int]], rings: int) -> list[list[int]] | None:
    """Returns hops of `room` of which each rank sends and receives `rings`; None: there are none.

    Rings need such hops, but the hops need not form rings. Ranks get their hops one by one; if
    none is left, earlier ranks change theirs along an augmenting path.
    """
    size = len(room)
    taken = [[0] * size for _ in room]
    received = [0] * size
    for u in range(size):
        for _ in range(rings):
            taker: dict[int, int] = {}  # receiver: the sender that would send to it
            gives = {u: -1}  # sender: the receiver that it would give up
            goal = -1
            senders = [u]
            for sender in senders:
                for v in range(size):
                    if v in taker or taken[sender][v] >= room[sender][v]:
                        continue
                    taker[v] = sender
                    if received[v] < rings:
                        goal = v
                        break
                    for other in range(size):
                        if taken[other][v] and other not in gives:
                            gives[other] = v
                            senders.append(other)
                if goal >= 0:
                    break
            if goal < 0:
                return None
            received[goal] += 1
            while goal >= 0:
                sender = taker[goal]
                taken[sender][goal] += 1
                goal = gives[sender]
                if goal >= 0:
                    taken[sender][goal] -= 1
    return taken
