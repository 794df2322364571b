"""Makes rings from a complete set of hops, by exchanging hops until each ring is whole.

If every link serves only one pair of ranks, the hops of n rings are n choices. A choice gives each
rank a next rank, no two ranks the same, and so consists of one or more circles. Hops are exchanged
for free links within a choice, or between two choices, until every choice is one circle. If two
circles can be joined, they are; otherwise the exchange is random, because a search that picks only
exchanges with fewer circles gets stuck more often. This finds rings where laying them hop by hop
would take for ever; it proves nothing.
"""

from __future__ import annotations

import random

from .hops import Order
from .laying import Budget, GaveUp


class Exchange:
    """n choices of a next rank.

    Args:
        room: how many rings may have each hop, at [u][v].
        taken: how many have it: each rank sends and receives n.
        seed: determines the order in which exchanges are tried.
    """

    def __init__(self, room: list[list[int]], taken: list[list[int]], seed: int) -> None:
        self.size: int = len(room)
        self.choices: list[list[int]] = _split(taken)
        self.free: list[list[int]] = [[a - b for a, b in zip(*rows)] for rows in zip(room, taken)]
        self.random: random.Random = random.Random(seed)
        self.circles: list[int] = [_circles(nexts) for nexts in self.choices]

    def run(self, budget: Budget) -> list[Order]:
        """Returns the rings. Raises GaveUp after the budget."""
        while True:
            broken = [i for i, count in enumerate(self.circles) if count > 1]
            if not broken:
                return [_order(nexts) for nexts in self.choices]
            if budget.left <= 0:
                raise GaveUp
            budget.left -= 1
            i = self.random.choice(broken)
            if self._join(i):
                continue
            if len(self.choices) > 1 and self.random.random() < 0.5:
                self._between(i)
            else:
                self._within(self.random.randrange(len(self.choices)))

    def _join(self, i: int) -> bool:
        """Joins two circles by an exchange for free hops, if there is one."""
        nexts, free = self.choices[i], self.free
        circle = _circle_of(nexts)
        start = self.random.randrange(self.size)
        for u in (*range(start, self.size), *range(start)):
            for w in range(self.size):
                if circle[w] != circle[u] and free[u][nexts[w]] and free[w][nexts[u]]:
                    self._set(i, {u: nexts[w], w: nexts[u]})
                    return True
        return False

    def _within(self, i: int) -> None:
        """Exchanges the next ranks of two or three ranks for free hops."""
        nexts, free = self.choices[i], self.free
        u, w, x = (self.random.randrange(self.size) for _ in range(3))
        if len({u, w, x}) == 3 and free[u][nexts[w]] and free[w][nexts[x]] and free[x][nexts[u]]:
            self._set(i, {u: nexts[w], w: nexts[x], x: nexts[u]})
        elif u != w and free[u][nexts[w]] and free[w][nexts[u]]:
            self._set(i, {u: nexts[w], w: nexts[u]})

    def _between(self, i: int) -> None:
        """Gives a rank the next rank that it has in another choice, and so on until it fits."""
        j = self.random.randrange(len(self.choices))
        u = self.random.randrange(self.size)
        mine, other = self.choices[i], self.choices[j]
        if mine[u] == other[u]:
            return
        before = {v: w for w, v in enumerate(mine)}
        changed: list[int] = []
        w = u
        while not changed or w != u:
            changed.append(w)
            w = before[other[w]]
        theirs = {w: other[w] for w in changed}
        self._set(j, {w: mine[w] for w in changed})
        self._set(i, theirs)

    def _set(self, i: int, change: dict[int, int]) -> None:
        nexts = self.choices[i]
        for u, v in change.items():
            self.free[u][nexts[u]] += 1
            self.free[u][v] -= 1
            nexts[u] = v
        self.circles[i] = _circles(nexts)


def _split(taken: list[list[int]]) -> list[list[int]]:
    """Splits hops, n to and n from each rank, into n choices of a next rank for each rank."""
    size = len(taken)
    left = [list(row) for row in taken]
    choices = []
    for _ in range(sum(taken[0])):
        sender = [-1] * size
        for u in range(size):
            _match(u, left, sender, set())
        nexts = [0] * size
        for v, u in enumerate(sender):
            nexts[u] = v
            left[u][v] -= 1
        choices.append(nexts)
    return choices


def _match(u: int, left: list[list[int]], sender: list[int], seen: set[int]) -> bool:
    """Finds a next rank for u; ranks that have one may be given another."""
    for v, ways in enumerate(left[u]):
        if ways and v not in seen:
            seen.add(v)
            if sender[v] < 0 or _match(sender[v], left, sender, seen):
                sender[v] = u
                return True
    return False


def _circle_of(nexts: list[int]) -> list[int]:
    """Returns for each rank the lowest rank of its circle."""
    circle = [-1] * len(nexts)
    for start in range(len(nexts)):
        u = start
        while circle[u] < 0:
            circle[u] = start
            u = nexts[u]
    return circle


def _circles(nexts: list[int]) -> int:
    return sum(circle == u for u, circle in enumerate(_circle_of(nexts)))


def _order(nexts: list[int]) -> Order:
    order = [0]
    while nexts[order[-1]]:
        order.append(nexts[order[-1]])
    return tuple(order)
