"""The orders of the ranks on the rings of a CUDA communicator.

Rank 0 finds them when a ring is made, and all ranks take them (``csrc/comm/communicator.cpp``).
"""

from __future__ import annotations

from .. import _C


def orders(buses: list[str], channels: int) -> list[list[int]]:
    """The orders that make the most of the links between these GPUs of this machine.

    Args:
        buses: of each rank's GPU, by rank, its place on the PCI bus; several ranks may have one.
        channels: rings at a time; there is an order for each, or fewer, which they share.

    Returns:
        At most ``_C.most_orders`` orders of all ranks; none where the ranks are as well off as they
        are numbered, where they are too many for another order, or where too little is known of the
        machine.

    Raises:
        ValueError: ranks have no way to each other's memory, and no ring avoids that.
    """
    from . import rings, topology  # which most programs have no need of

    if len(buses) > _C.most_ordered_ranks:
        return []
    machine = topology.detect()
    gpus = [machine.find_gpu(topology.bus_id(bus)) for bus in buses]
    if None in gpus:
        return []  # without NVML, or in a container that hides other ranks' GPUs
    fabric = machine.fabric([gpu for gpu in gpus if gpu is not None])
    found = rings.best_orders(fabric, channels)
    numbered = tuple(range(len(buses)))
    if rings.speed_of(fabric, (numbered,), channels) >= rings.speed_of(fabric, found, channels):
        return []
    return [list(order) for order in found]
