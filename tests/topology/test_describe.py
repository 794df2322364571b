"""The printed description of a machine."""

from __future__ import annotations

import re

from ringkern.choose import topology
from ringkern.choose.topology import Cache, Cpu, Machine, P2p, describe
from tests.topology.machines import INTEL, pcie_machine


def rows(text: str) -> dict[str, list[str]]:
    """Cells of the matrix, by the name of its row."""
    lines = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if len(cells) > 2}


def test_a_machine_is_a_matrix_with_kinds_and_bandwidths() -> None:
    text = describe(topology.recorded("nvlink-pairs4"))
    assert rows(text)["gpu1"] == ["NVL4 48", "X", "PHB 24", "PHB 24"]
    assert "gpu1: cc 8.6, 0000:25:00.0, PCIe 24 GB/s" in text
    assert "NVL = NVLinks from GPU to GPU" in text
    assert "SYS" not in text
    assert text.endswith("not found: nothing")


def test_switches_show_their_lanes() -> None:
    text = describe(topology.recorded("dgx-h100"))
    assert rows(text)["gpu7"] == ["NVS18 370.8"] * 7 + ["X"]
    assert "cpu1: 112 cores; gpu4 gpu5 gpu6 gpu7 mlx5_6 mlx5_9 mlx5_10 mlx5_11" in text


def test_the_description_lists_missing_facts() -> None:
    text = describe(Machine(cpus=(Cpu(0), Cpu(1)), notes=("this and that",)))
    assert "not found: this and that" in text
    assert "not found: the bandwidth between NUMA nodes of this CPU is not known" in text
    assert rows(text)["cpu0"] == ["X", "SYS 6"]


def test_pairs_without_a_way_are_shown() -> None:
    machine = pcie_machine(p2p=(P2p(0, 1, "GNS", "GNS"),))
    text = describe(machine)
    assert rows(text)["gpu0"][1] == "-"
    assert "- " in text
    assert "the driver refuses peer access (GNS): gpu0>gpu1" in text


def test_a_fabric_is_shown_by_rank() -> None:
    text = describe(pcie_machine().fabric([4, 0, 0]))
    assert rows(text)["rank1"] == ["SYS 10", "X", "LOC"]
    assert "LOC = one device" in text


def test_caches_are_shown() -> None:
    caches = (Cache(1, 48 << 10, 1), Cache(3, 32 << 20, 2), Cache(4, 5 << 30, 2), Cache(5, 1, 1))
    text = describe(Machine(cpus=(Cpu(0, "h", (0, 1), **INTEL, caches=caches),)))
    assert "cpu0 of h: 2 cores; L1 48 KiB for 1, L3 32 MiB for 2, L4 5 GiB for 2, L5 1 B" in text
