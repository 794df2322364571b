"""Finds the rings on a machine's links: as many and as fast as fit, and the link that limits them.

All rings have the same bandwidth, since they get equal parts of a tensor. The best rings have the
largest total, rings times GB/s; among equal totals the fewest rings win. A ring sends and receives
at every rank at once, so its reverse adds bandwidth only if the two directions have separate links,
such as NVLinks from GPU to GPU. There the search finds rings in pairs, one in each direction.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from ... import _C
from ..fabric import Fabric
from .hops import SLACK, Hops, Order
from .laying import Budget, GaveUp, Refuted
from .packing import pack

STEPS_A_SECOND = 30_000  # of the search, on a slow core
PARTS = 4  # one question takes at most this part of the steps that are left


@dataclass(frozen=True)
class Rings:
    """Rings that fit on a fabric together.

    Attributes:
        orders: each an order of all ranks from rank 0 on; an order that occurs twice carries twice
            as much.
        gb_s: bandwidth of each (1e9 bytes a second); infinite if no link limits it.
        total_gb_s: of all together.
        bound_gb_s: an upper bound of the total for the requested number of rings or fewer.
        exact: the bound is met.
        bottleneck: name of the edge that is full; empty if there is none.
        seconds: duration of the search.
    """

    orders: tuple[Order, ...]
    gb_s: float
    total_gb_s: float
    bound_gb_s: float
    exact: bool
    bottleneck: str
    seconds: float


def search(fabric: Fabric, *, most_rings: int = _C.most_orders, time_limit_s: float = 1.0) -> Rings:
    """Returns the rings with the largest total bandwidth.

    Args:
        fabric: the ranks and the links between them.
        most_rings: the maximum number of rings.
        time_limit_s: about how long the search may take on a slow core. It counts steps, not time,
            so that the same fabric has the same rings on every machine.

    Raises:
        ValueError: no ring goes through all ranks; the text names a pair without a route.
    """
    start = time.perf_counter()
    if most_rings < 1:
        raise ValueError(f"most_rings={most_rings}: give a whole number from 1 on")
    if not time_limit_s > 0:
        raise ValueError(f"time_limit_s={time_limit_s}: give a number of seconds above 0")
    if fabric.size < 1:
        raise ValueError(f"a fabric of {fabric.size} ranks has no ring: give one rank or more")
    if fabric.size == 1:
        orders: list[Order] = [(0,)]
        bound = math.inf
    else:
        hops = Hops(fabric)
        orders, bound = _Best(fabric, hops, most_rings, time_limit_s).find()
    gb_s, bottleneck = _fill(fabric, orders)
    total = gb_s * len(orders)
    exact = total >= bound * (1 - 2 * SLACK)
    return Rings(
        orders=tuple(orders),
        gb_s=gb_s,
        total_gb_s=total,
        bound_gb_s=total if exact else bound,
        exact=exact,
        bottleneck=bottleneck,
        seconds=time.perf_counter() - start,
    )


class _Best:
    """The search over numbers of rings and their bandwidths."""

    def __init__(self, fabric: Fabric, hops: Hops, most_rings: int, time_limit_s: float) -> None:
        self.fabric, self.hops, self.most_rings = fabric, hops, most_rings
        self.budget = Budget(max(1, int(time_limit_s * STEPS_A_SECOND)))
        self.orders: list[Order] = []
        self.total = 0.0

    def find(self) -> tuple[list[Order], float]:
        """Returns the best rings that were found, and the bound on their total."""
        self._any_ring()
        bound = self._unlimited()
        if self.total < math.inf:
            speeds = {n: self._speeds(n) for n in range(1, self.most_rings + 1)}
            for n in sorted(speeds, key=lambda n: (-n * max(speeds[n], default=0.0), n)):
                bound = max(bound, self._improve(n, speeds[n]))
        return self.orders, max(bound, self.total)

    def _unlimited(self) -> float:
        """Looks for a ring that crosses no edge; returns the bound if only such rings existed."""
        part = self.budget.part(self.budget.left // PARTS + 1)
        try:
            self._keep(pack(self.hops, 1, math.inf, part))
        except Refuted:
            return 0.0
        except GaveUp:
            return math.inf
        finally:
            self.budget.join(part)
        return self.total

    def _any_ring(self) -> None:
        """Finds one ring, however slow."""
        hops = self.hops
        slow = min((c for c in hops.capacity if c > 0), default=1.0) / (2 * hops.size)
        try:
            self._keep(pack(hops, 1, slow, self.budget))
        except (Refuted, GaveUp) as why:
            raise ValueError(_no_ring(self.fabric, isinstance(why, Refuted))) from None

    def _keep(self, orders: list[Order]) -> None:
        """Keeps them if they are better."""
        gb_s, _ = _fill(self.fabric, orders)
        if self._better(len(orders), gb_s):
            self.orders, self.total = orders, gb_s * len(orders)

    def _better(self, rings: int, gb_s: float) -> bool:
        more = 1 - SLACK if rings < len(self.orders) else 1 + SLACK
        return rings * gb_s > self.total * more

    def _speeds(self, rings: int) -> list[float]:
        """Returns rising bandwidths that this many rings can have, less those refuted by counting.

        With each of them, one edge is full: its capacity is a whole number of crossings.
        """
        hops = self.hops
        full = {
            capacity / crossings
            for capacity, least, most in zip(hops.capacity, hops.least, hops.most)
            if capacity > 0
            for crossings in range(max(1, least * rings), most * rings + 1)
        }
        all_speeds = sorted(full)
        end = bisect_left(all_speeds, True, key=lambda gb_s: hops.refuted(rings, gb_s))
        return all_speeds[:end]

    def _improve(self, rings: int, speeds: list[float]) -> float:
        """Looks for this many rings with a larger total; returns the bound on their total."""
        low = 0
        high = proven = len(speeds)  # tried from low to high - 1; none from proven on
        first = True
        while True:
            low = max(low, bisect_left(speeds, True, key=lambda s: self._better(rings, s)))
            if low >= high:
                break
            middle = high - 1 if first else (low + high - 1) // 2
            first = False
            part = self.budget.part(self.budget.left // PARTS + 1)
            try:
                orders = pack(self.hops, rings, speeds[middle], part)
                self._keep(orders)
                low = bisect_right(speeds, _fill(self.fabric, orders)[0] * (1 + SLACK))
            except Refuted:
                high = middle
                proven = min(proven, middle)
            except GaveUp:
                high = middle
            self.budget.join(part)
        return rings * speeds[proven - 1] if proven > 0 else 0.0


def _fill(fabric: Fabric, orders: list[Order]) -> tuple[float, str]:
    """Returns the bandwidth that each of these rings can have, and the edge that limits it."""
    crossed = [0] * len(fabric.edges)
    for order in orders:
        if len(order) == 1:
            continue
        for u, v in zip(order, order[1:] + order[:1]):
            for edge in fabric.routes[u, v]:
                crossed[edge] += 1
    full = [
        (edge.gb_s / times, i)
        for i, (edge, times) in enumerate(zip(fabric.edges, crossed))
        if times
    ]
    if not full:
        return math.inf, ""
    gb_s, edge = min(full)
    return gb_s, fabric.edges[edge].name


def _no_ring(fabric: Fabric, proven: bool) -> str:
    ranks = range(fabric.size)
    blocked = [(u, v) for u in ranks for v in ranks if u != v and _blocked(fabric, u, v)]
    # Returns the ranks that send to the fewest others, or that the fewest others send to.
    sends = [sum(u == pair[0] for pair in blocked) for u in ranks]
    gets = [sum(v == pair[1] for pair in blocked) for v in ranks]
    pair = max(blocked, key=lambda p: max(sends[p[0]], gets[p[1]]), default=None)
    found = "there is no ring" if proven else "no ring was found"
    between = f": rank {pair[0]} has no way to rank {pair[1]}," if pair else ""
    return (
        f"{found} through all {fabric.size} ranks{between} and it cannot be gone round. "
        "Use devices that reach each other's memory, or shared memory"
    )


def _blocked(fabric: Fabric, u: int, v: int) -> bool:
    route = fabric.routes.get((u, v))
    return route is None or any(fabric.edges[e].gb_s <= 0 for e in route)


def best_orders(fabric: Fabric, channels: int) -> tuple[Order, ...]:
    """Returns at most 8 orders for this many channels: channel c has order ``c % len(orders)``.

    An order that must carry more occurs more than once. All channels move the same amount, so if
    their number is no multiple of the rings, some links carry more. The result has the number of
    rings for which the channels together are fastest, and among equal ones the fewest.

    Args:
        fabric: the ranks and the links between them.
        channels: number of channels, 1 or more.

    Raises:
        ValueError: no channel, or no ring goes through all ranks.
    """
    if channels < 1:
        raise ValueError(f"channels={channels}: give a whole number from 1 on")
    best: list[Order] = []
    fastest = -1.0
    for most in range(1, min(channels, _C.most_orders) + 1):
        orders = list(search(fabric, most_rings=most, time_limit_s=1 / _C.most_orders).orders)
        if len(orders) < most and best:
            continue  # seen already
        speed = speed_of(fabric, tuple(orders), channels)
        if speed > fastest * (1 + SLACK):
            best, fastest = orders, speed
    return tuple(best)


def speed_of(fabric: Fabric, orders: tuple[Order, ...], channels: int) -> float:
    """Returns the GB/s of each of this many channels with these orders in turn; 0: impossible.

    Args:
        fabric: the ranks and the links between them.
        orders: of all ranks; channel c has ``orders[c % len(orders)]``.
        channels: number of channels.
    """
    for order in orders:
        hops = zip(order, order[1:] + order[:1]) if len(order) > 1 else ()
        if any(hop not in fabric.routes for hop in hops):
            return 0.0
    speed, _ = _fill(fabric, [orders[c % len(orders)] for c in range(channels)])
    return speed


def describe(rings: Rings, fabric: Fabric) -> str:
    """Returns lines on the rings, the kinds of their hops in the fabric, and the limit."""
    lines = []
    for order in rings.orders:
        hops = zip(order, order[1:] + order[:1]) if len(order) > 1 else ()
        kinds = sorted({fabric.kinds.get(hop, "?") for hop in hops})
        lines.append(f"{' '.join(map(str, order))}  ({', '.join(kinds) or 'no hops'})")
    if math.isinf(rings.gb_s):
        return "\n".join([*lines, "no link limits it"])
    count = f"{len(rings.orders)} ring{'s' * (len(rings.orders) > 1)}"
    lines.append(
        f"{count} of {rings.gb_s:.4g} GB/s: {rings.total_gb_s:.4g} GB/s together, "
        f"limited by {rings.bottleneck}"
    )
    proof = "more is impossible" if rings.exact else f"at most {rings.bound_gb_s:.4g} GB/s possible"
    return "\n".join([*lines, proof])
