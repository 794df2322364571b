"""Decides whether this many rings of this bandwidth fit on a machine: found, refuted or given up.

A ring of ``gb_s`` takes that much of every edge that one of its hops crosses, so an edge carries
``capacity / gb_s`` crossings, rounded down.
"""

from __future__ import annotations

from .exchange import Exchange
from .hops import Hops, Order, regular
from .laying import Budget, GaveUp, Refuted, Search, one_ring

DP_RANKS = 16  # maximum for going through all sets of ranks
DP_SETS_A_STEP = 12  # sets that take as long as a step of the search
TRY_FIRST = 600  # steps of the search before anything else is tried
EXCHANGE_FIRST = 200  # steps of exchanging hops before it starts anew


def pack(hops: Hops, rings: int, gb_s: float, budget: Budget) -> list[Order]:
    """Returns rings of `gb_s`. Raises Refuted if there are none, GaveUp after the budget."""
    if hops.refuted(rings, gb_s):
        raise Refuted
    units = hops.units(gb_s)
    found = _in_pairs(hops, rings, gb_s, budget)
    share, salt = TRY_FIRST, 0
    while not found and budget.left > 0:
        some = budget.part(share)
        try:
            found = Search(hops, rings, gb_s, False, salt).run(some)
        except GaveUp:
            if salt == 0:
                found = _otherwise(hops, rings, units, budget)
        finally:
            budget.join(some)
        share, salt = share * 2, salt + 1
    if not found:
        raise GaveUp
    return found


def _in_pairs(hops: Hops, rings: int, gb_s: float, budget: Budget) -> list[Order]:
    """Returns rings, each with its reverse, less one if they are odd; none: others may fit."""
    if rings == 1:
        return []
    some = budget.part(max(TRY_FIRST, budget.left // 8))
    try:
        return Search(hops, rings + rings % 2, gb_s, True, 0).run(some)[:rings]
    except (Refuted, GaveUp):
        return []
    finally:
        budget.join(some)


def _otherwise(hops: Hops, rings: int, units: list[int], budget: Budget) -> list[Order]:
    """Tries other methods where laying rings hop by hop takes long; none: no method helped."""
    if rings == 1:
        # Where one ring can never fill an edge with two of its hops, any order of open hops fits.
        alone = all(not unit or unit >= most for unit, most in zip(units, hops.most))
        if not alone or hops.size > DP_RANKS:
            return []
        budget.left -= (1 << (hops.size - 1)) // DP_SETS_A_STEP
        order = one_ring(hops.size, *hops.masks([unit > 0 for unit in units]))
        if order is None:
            raise Refuted
        return [order]
    if any(
        unit < rings * most and len(u) > 1 for unit, most, u in zip(units, hops.most, hops.users)
    ):
        return []  # these share an edge: `room` does not tell which of them fit together
    room = hops.room(units, rings)
    taken = regular(room, rings)
    if taken is None:
        raise Refuted
    # Either few steps suffice, or very many: tries another start instead.
    most, seed = budget.left * 3 // 4, 0
    while most > 0:
        some = budget.part(EXCHANGE_FIRST << seed // 4)
        most -= some.left
        try:
            return Exchange(room, taken, seed).run(some)
        except GaveUp:
            seed += 1
        finally:
            budget.join(some)
    return []
