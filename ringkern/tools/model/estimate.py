"""Predicts the time of a way of an all-reduce, and of the hierarchy: ring, engine, ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..._C import Stages
from ...choose.cost import bus_bandwidth
from ...hosts.inter_host_cost import InterHostCost

# Names of ways over several hosts, in the order of the columns.
FLAT_RING, FLAT_TREE, HIERARCHY = "flat ring", "flat tree", "hierarchy"
WAYS = (FLAT_RING, FLAT_TREE, HIERARCHY)


class Estimate(NamedTuple):
    """One way of an all-reduce.

    Attributes:
        way: "ring" for one host; one of ``WAYS`` for several; for ranks on one GPU algorithm and
            protocol, such as "one_shot/ll"; for ranks with threads the name of a library.
        protocol: of the ring or tree; for a hierarchy inside and between hosts, "simple + tree ll".
        time_us: predicted.
        bus_gb_s: nccl-tests' bus bandwidth, over all ranks.
        latency_us: the time of a call without bytes.
        rails, pieces: of a hierarchy; else 1.
    """

    way: str
    protocol: str
    time_us: float
    bus_gb_s: float
    latency_us: float
    rails: int = 1
    pieces: int = 1


class Phase(NamedTuple):
    """One phase of one piece.

    Attributes:
        time_us: predicted.
        least_us: the part of it that does not depend on the size.
        how: the protocol, after an algorithm if there are several.
    """

    time_us: float
    least_us: float
    how: str


NOTHING = Phase(0.0, 0.0, "")
# (collective, bytes of the whole tensor, pieces) to the phase of one piece inside a host.
Inside = Callable[[str, float, int], Phase]
# (rails, bytes of a piece) to the phase of the engine between hosts.
Between = Callable[[int, float], Phase]


def estimate(
    way: str, protocol: str, ranks: int, nbytes: float, time_us: float, least_us: float
) -> Estimate:
    """Returns an estimate with its bus bandwidth.

    Args:
        way, protocol: see :class:`Estimate`.
        ranks: of all hosts together.
        nbytes: of one rank's tensor.
        time_us, least_us: for these bytes, and for none.
    """
    bus = bus_bandwidth("all_reduce", ranks, nbytes, time_us)
    return Estimate(way, protocol, time_us, bus, least_us)


def hierarchy(
    hosts: int,
    ranks: int,
    nbytes: float,
    inter_host_cost: InterHostCost,
    inside: Inside,
    between: Between,
) -> Estimate:
    """Predicts a reduce-scatter inside, an all-reduce of each shard between hosts, an all-gather.

    It is cut into rails and pieces like a call. Over one rail: reduce and broadcast inside.

    Args:
        hosts: 2 or more, all alike.
        ranks: number of ranks on each host.
        nbytes: of one rank's tensor.
        inter_host_cost: between the hosts.
        inside, between: the phases of a piece.
    """
    cut = Stages(int(nbytes), 1, ranks, hosts, ranks > 1, inter_host_cost)
    rails, pieces = cut.rails, max(1, cut.long_stages)
    halves = ("reduce_scatter", "all_gather") if rails == ranks else ("reduce", "broadcast")
    first, last = (inside(half, nbytes, pieces) if ranks > 1 else NOTHING for half in halves)
    middle = between(rails, nbytes / pieces)
    time = pipelined_us(first.time_us, middle.time_us, last.time_us, pieces)
    least = first.least_us + middle.least_us + last.least_us
    how = f"{first.how} + {middle.how}" if first.how else middle.how
    found = estimate(HIERARCHY, how, hosts * ranks, nbytes, time, least)
    return found._replace(rails=rails, pieces=pieces)


def pipelined_us(scatter: float, between: float, gather: float, pieces: int) -> float:
    """Returns the microseconds of equal pieces, one after the other.

    While the engine works on one piece, the ring works on the next:

        ring      scatter 0  scatter 1  scatter 2    gather 0  scatter 3  gather 1 ...
        engine              [------ 0 ------][------ 1 ------][------ 2 ------][-- 3 ...

    Args:
        scatter, between, gather: of one piece, in microseconds. The engine does one piece at a
            time.
        pieces: 1 or more.
    """
    if pieces == 1:
        return scatter + between + gather
    engine = scatter + pieces * between + gather
    # While the ring scatters the next pieces, and while it gathers those before the last.
    beside = min(Stages.under_way, pieces - 1)
    waits = max(0.0, between - beside * scatter) + max(0.0, between - beside * gather)
    return max(engine, pieces * (scatter + gather) + waits)
