"""The orders of the ranks on the rings of a CUDA communicator.

Rank 0 finds them when a ring is made, and all ranks take them (``csrc/comm/communicator.cpp``).
"""

from __future__ import annotations

from .. import _C


def orders(buses: list[str], channels: int) -> list[list[int]]:
    """Returns the orders that use the links between these GPUs of this machine best.

    Args:
        buses: by rank, the PCI bus id of its GPU; several ranks may have one GPU.
        channels: rings at a time. Each has its own order, or several share one.

    Returns:
        At most ``_C.most_orders`` orders of all ranks; none if the order of the numbers is as good,
        if there are too many ranks for another order, or if too little is known of the machine.

    Raises:
        ValueError: some ranks have no route to each other's memory, and no ring avoids that.
    """
    from . import rings, topology  # not loaded by most programs

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
