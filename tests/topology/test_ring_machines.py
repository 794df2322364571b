"""Rings of the recorded machines, however their GPUs are numbered."""

from __future__ import annotations

import random

import pytest

from ringkern.choose import rings, topology

# Name: rings, GB/s of all together, and the worst edge of a hop of the best rings.
#
# DGX-1: six lanes for each GPU, six rings; NCCL's topology search finds as many channels on four
# V100 with six lanes each (NVIDIA/nccl#713, 6 x 22 GB/s). NVSwitch: one order, like all 24 channels
# of NCCL (NVIDIA/nccl-tests#100). PCIe: one ring, like NCCL's one channel on 8 GPUs of two sockets
# (NVIDIA/nccl-tests#307), and as much as the link between two CPUs carries (NVIDIA/nccl#1358).
MACHINES = {
    "dgx1-v100": (6, 120.0, {"NVL"}),
    "dgx-a100": (1, 240.0, {"NVS"}),
    "dgx-h100": (1, 370.8, {"NVS"}),
    "pcie4-1socket": (1, 24.0, {"PHB"}),
    "pcie4-2sockets": (1, 10.0, {"PHB", "SYS"}),
    "pcie8-1socket": (1, 24.0, {"PIX", "PHB"}),
    "pcie8-2sockets": (1, 10.0, {"PIX", "SYS"}),
    "nvlink-pairs4": (2, 48.0, {"NVL", "PHB"}),
    "nvlink-pairs8": (1, 24.0, {"NVL", "PHB", "SYS"}),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("seed", [None, 0])
def test_recorded_machine(name: str, seed: int | None) -> None:
    machine = topology.recorded(name)
    gpus = list(range(len(machine.gpus)))
    if seed is not None:
        random.Random(seed).shuffle(gpus)
    fabric = machine.fabric(gpus)
    found = rings.search(fabric)
    count, total, kinds = MACHINES[name]
    assert (len(found.orders), found.total_gb_s) == (count, pytest.approx(total))
    assert found.exact
    hops = [hop for order in found.orders for hop in zip(order, order[1:] + order[:1])]
    assert {fabric.kinds[hop] for hop in hops} <= kinds


def test_sockets_are_crossed_once_each_way() -> None:
    """With the GPUs of two sockets in turn, the ring still goes through one socket first."""
    machine = topology.recorded("pcie8-2sockets")
    fabric = machine.fabric([0, 4, 1, 5, 2, 6, 3, 7])
    (order,) = rings.search(fabric).orders
    kinds = [fabric.kinds[hop] for hop in zip(order, order[1:] + order[:1])]
    assert kinds.count("SYS") == 2


def test_pairs_with_nvlink_stay_together() -> None:
    machine = topology.recorded("nvlink-pairs8")
    fabric = machine.fabric([0, 2, 4, 6, 1, 3, 5, 7])
    for order in rings.search(fabric).orders:
        kinds = [fabric.kinds[hop] for hop in zip(order, order[1:] + order[:1])]
        assert kinds.count("NVL") == 4


def test_ranks_that_share_a_gpu() -> None:
    """Two ranks on each of four GPUs: the ranks of a GPU are neighbours."""
    machine = topology.recorded("pcie4-1socket")
    fabric = machine.fabric([0, 1, 2, 3, 0, 1, 2, 3])
    found = rings.search(fabric)
    assert (found.total_gb_s, found.exact) == (24.0, True)
    (order,) = found.orders
    kinds = [fabric.kinds[hop] for hop in zip(order, order[1:] + order[:1])]
    assert kinds.count("LOC") == 4


def test_cpus_of_two_numa_nodes() -> None:
    """Ranks of a NUMA node are neighbours, though their numbers are not."""
    machine = topology.recorded("pcie8-2sockets")
    found = rings.search(machine.cpu_fabric([0, 1] * 4))
    (order,) = found.orders
    assert sum((u + v) % 2 for u, v in zip(order, order[1:] + order[:1])) == 2
    assert found.exact
