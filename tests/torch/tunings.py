"""Made-up tunings, for tests."""

from __future__ import annotations

from ringkern.choose.cost import ANY_SIZE, Cost, Tier, Way
from ringkern.choose.identity import Identity
from ringkern.choose.tuning import COLLECTIVES, DIRECT, Fitted, Measured, Tuning, ways_of

ON_CPU = DIRECT["cpu"]
MACHINE = Identity("a processor", 4, (32 << 10, 1 << 20), ("a GPU",), 7)

# (base, hop, GB/s on the wire): the quickest is one_shot/ll, then two_shot, then the ring.
COSTS = {
    ("one_shot", "ll"): (0.05, 0.1, 1.0),
    ("one_shot", "simple"): (0.05, 0.2, 2.0),
    ("two_shot", "simple"): (0.05, 0.4, 8.0),
    ("two_shot", "ll"): (0.05, 0.4, 8.0),
    ("ring", "ll"): (0.05, 0.6, 1.0),
    ("ring", "ll128"): (0.05, 2.0, 10.0),
    ("ring", "simple"): (0.05, 40.0, 40.0),
}


def cost_of(way: Way, device: str = "cpu") -> Cost:
    """Returns the cost of a way in a tuning of ``measured``."""
    base_us, hop_us, gb_s = COSTS[way.algorithm, way.protocol]
    return Cost(base_us, hop_us, (Tier(1 << 20, gb_s), Tier(ANY_SIZE, gb_s / 2)), device)


def measured(
    ranks: int, date: str = "2026-01-02", slower: float = 1.0, device: str = "cpu"
) -> Measured:
    """Returns a tuning whose best way changes at a few sizes."""
    ways = {}
    for name in COLLECTIVES:
        for way in ways_of(name, device):
            cost = cost_of(way, device)
            cost = Cost(cost.base_us * slower, cost.hop_us * slower, cost.tiers, device)
            points = tuple(
                (size, cost.time_us(way, name, ranks, size)) for size in (8, 4096, 1 << 22)
            )
            ways[name, way] = Fitted(cost, points)
    return Measured(device, ranks, date, "a command", ways, "a GPU" if device == "cuda" else "")


def tuning(*ranks: int, machine: Identity = MACHINE, device: str = "cpu") -> Tuning:
    """Returns a tuning of several numbers of ranks, each slower than the one before."""
    found = (measured(r, f"2026-01-{i + 1:02}", 1.0 + i, device) for i, r in enumerate(ranks))
    return Tuning(machine, tuple(found))
