"""Lays rings hop by hop, with backtracking, and finds one ring by going through all sets of ranks.

The next hop goes to the rank that has the fewest ways left. A try ends if a rank can no longer be
reached, or if the ring can no longer close. Effort is counted in steps and not by a clock, so that
the same fabric has the same rings on every machine, however busy it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from .hops import Crossings, Hops, Order, flood

LOOKS_A_STEP = 32  # looks at hops that take as long as one step


class Budget:
    """Steps that may still be made."""

    def __init__(self, steps: int) -> None:
        self.left: int = steps

    def part(self, steps: int) -> Budget:
        """Returns a budget of at most this many of these steps; `join` takes back the rest."""
        mine = Budget(min(steps, max(self.left, 0)))
        self.left -= mine.left
        return mine

    def join(self, other: Budget) -> None:
        """Takes back what is left of a part."""
        self.left += other.left


class Refuted(Exception):
    """There are no such rings."""


class GaveUp(Exception):
    """The budget was spent before there was an answer."""


class Search:
    """Lays `rings` rings of `gb_s`, one after the other, with backtracking.

    Args:
        both_ways: lays every ring together with its reverse; `rings` counts both.
        salt: 0: tries the hops with the most room first; otherwise each salt has its own order.

    Rings are interchangeable, so only one order is tried: the order of the ranks after rank 0.
    """

    def __init__(self, hops: Hops, rings: int, gb_s: float, both_ways: bool, salt: int) -> None:
        self.hops: Hops = hops
        self.salt: int = salt
        self.work: int = hops.size**2  # looks at a hop since the last step
        self.each: int = 2 if both_ways else 1
        self.goal: int = rings // self.each
        self.left: list[int] = hops.units(gb_s)
        # An edge that cannot fill up need not be counted.
        tight = [unit < rings * most for unit, most in zip(self.left, hops.most)]
        size = hops.size
        self.takes: Crossings = [[None] * size for _ in range(size)]
        self.users: list[list[tuple[int, int, int]]] = [[] for _ in tight]
        for u in range(size):
            for v in range(size):
                there, back = hops.crossings[u][v], hops.crossings[v][u] if both_ways else ()
                if there is None or back is None:
                    continue
                total: dict[int, int] = {}
                for e, often in there + back:
                    total[e] = total.get(e, 0) + often
                self.takes[u][v] = tuple((e, often) for e, often in total.items() if tight[e])
                for e, often in self.takes[u][v] or ():
                    self.users[e].append((u, v, often))
        self.done: list[Order] = []
        self.path: list[int] = [0]
        self.free: int = (1 << size) - 2
        self.out: list[int] = [0] * size
        self.into: list[int] = [0] * size
        for u, v in itertools.product(range(size), repeat=2):
            if self._fits(u, v):
                self.out[u] |= 1 << v
                self.into[v] |= 1 << u

    def _fits(self, u: int, v: int) -> bool:
        takes = self.takes[u][v]
        return takes is not None and all(self.left[e] >= often for e, often in takes)

    def _take(self, u: int, v: int, sign: int) -> None:
        """Lays the hop from u to v (sign 1) or takes it back (-1)."""
        for e, often in self.takes[u][v] or ():
            self.work += len(self.users[e])
            before = self.left[e]
            self.left[e] -= sign * often
            low, high = sorted((before, self.left[e]))
            for a, b, times in self.users[e]:
                if not low < times <= high:
                    continue
                if sign > 0:
                    self.out[a] &= ~(1 << b)
                    self.into[b] &= ~(1 << a)
                elif self._fits(a, b):
                    self.out[a] |= 1 << b
                    self.into[b] |= 1 << a

    def _next(self) -> Iterator[int]:
        """Yields the ranks to which the path may go on, the best first; 0 closes the ring."""
        u, free, out = self.path[-1], self.free, self.out
        if not free:
            return iter([0] if out[u] & 1 else [])
        if flood(u, out, free) != free or flood(0, self.into, free) != free:
            return iter([])
        ways = out[u] & free
        if len(self.path) == 1 and self.done:
            ways &= -1 << self.done[-1][1]
        ranked = []
        while ways:
            low = ways & -ways
            ways ^= low
            v = low.bit_length() - 1
            takes = self.takes[u][v] or ()
            scarce = max((often / self.left[e] for e, often in takes), default=0.0)
            exits = (out[v] & (free | 1)).bit_count()
            ranked.append((scarce, exits, self._mixed(u, v), v))
        return iter([entry[-1] for entry in sorted(ranked)])

    def _mixed(self, u: int, v: int) -> int:
        if not self.salt:
            return v
        return (u * 7919 + v * 104729 + len(self.done) * 1299709 + self.salt * 15485863) % 32771

    def run(self, budget: Budget) -> list[Order]:
        """Returns the rings. Raises Refuted if there are none, GaveUp if the budget was spent."""
        size = self.hops.size
        ways = [self._next()]
        while ways:
            v = next(ways[-1], None)
            if v is None:
                ways.pop()
                self._back()
                continue
            if budget.left <= 0:
                raise GaveUp
            budget.left -= 1 + self.work // LOOKS_A_STEP
            self.work = 0
            self._take(self.path[-1], v, 1)
            if v:
                self.path.append(v)
                self.free &= ~(1 << v)
            else:
                self.done.append(tuple(self.path))
                if len(self.done) == self.goal:
                    return self._both()
                self.path, self.free = [0], (1 << size) - 2
            ways.append(self._next())
        raise Refuted

    def _back(self) -> None:
        if len(self.path) > 1:
            v = self.path.pop()
            self.free |= 1 << v
            self._take(self.path[-1], v, -1)
        elif self.done:
            self.path, self.free = list(self.done.pop()), 0
            self._take(self.path[-1], 0, -1)

    def _both(self) -> list[Order]:
        if self.each == 1:
            return self.done
        return [order for ring in self.done for order in (ring, reverse(ring))]


def reverse(order: Order) -> Order:
    """Returns the same ring in the other direction, from the same rank on."""
    return order[:1] + order[:0:-1]


def one_ring(size: int, out: list[int], into: list[int]) -> Order | None:
    """Returns a ring over the given hops, or None; goes through all sets of ranks.

    ``ends[s]``: the ranks at which a path can end that starts at rank 0 and visits the set s.
    """
    full = (1 << (size - 1)) - 1  # bit i: rank i + 1
    enter = [mask >> 1 for mask in into]
    ends = [0] * (full + 1)
    for v in range(1, size):
        if into[v] & 1:
            ends[1 << (v - 1)] = 1 << (v - 1)
    for visited in range(1, full):
        here = ends[visited]
        if not here:
            continue
        rest = full & ~visited
        while rest:
            low = rest & -rest
            rest ^= low
            if enter[low.bit_length()] & here:
                ends[visited | low] |= low
    order, visited, allowed = [], full, into[0] >> 1
    while visited:
        last = ends[visited] & allowed
        if not last:
            return None
        low = last & -last
        order.append(low.bit_length())
        visited ^= low
        allowed = enter[low.bit_length()]
    return (0, *reversed(order))
