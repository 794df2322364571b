"""The route of two ranks' data, and the links on it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given

from ringkern.choose.fabric import Fabric
from ringkern.choose.topology import C2c, Cpu, Gpu, Machine, NvLink, P2p, Pci
from ringkern.choose.topology.graph import bus_id
from tests.topology.machines import GEN4, GPU, INTEL, SWITCH, machines, pcie_machine


def names(fabric: Fabric, source: int, target: int) -> list[str]:
    return [fabric.edges[edge].name for edge in fabric.routes[source, target]]


def test_gpus_below_one_switch_do_not_reach_the_cpu() -> None:
    fabric = pcie_machine().fabric()
    assert fabric.kinds[0, 1] == fabric.kinds[1, 0] == "PIX"
    assert names(fabric, 0, 1) == ["gpu0>0000:01:00.0 PCIe", "0000:01:00.0>gpu1 PCIe"]
    assert fabric.gb_s(0, 1) == 24.0


def test_gpus_below_two_switches_in_a_row_cross_both() -> None:
    fabric = pcie_machine().fabric()
    assert fabric.kinds[0, 2] == fabric.kinds[2, 0] == "PXB"
    assert names(fabric, 2, 0) == [
        "gpu2>0000:04:00.0 PCIe",
        "0000:04:00.0>0000:01:00.0 PCIe",
        "0000:01:00.0>gpu0 PCIe",
    ]


def test_gpus_below_two_switches_of_one_cpu_meet_there() -> None:
    fabric = pcie_machine().fabric()
    assert fabric.kinds[2, 3] == "PHB"
    assert names(fabric, 2, 3) == [
        "gpu2>0000:04:00.0 PCIe",
        "0000:04:00.0>0000:01:00.0 PCIe",
        "0000:01:00.0>cpu0 PCIe",
        "cpu0>0000:11:00.0 PCIe",
        "0000:11:00.0>gpu3 PCIe",
    ]


def test_gpus_of_two_cpus_cross_what_is_between_them() -> None:
    fabric = pcie_machine().fabric()
    assert fabric.kinds[3, 4] == "SYS"
    assert names(fabric, 3, 4)[2:] == ["cpu0>cpu1 interconnect", "cpu1>gpu4 PCIe"]
    assert names(fabric, 4, 3)[:2] == ["gpu4>cpu1 PCIe", "cpu1>cpu0 interconnect"]
    assert fabric.gb_s(3, 4) == 10.0  # NCCL's SKL_QPI_BW
    quicker = tuple(Cpu(n, **{**INTEL, "model": 0x8F}) for n in (0, 1))
    assert pcie_machine(cpus=quicker).fabric().gb_s(3, 4) == 12.0  # now gpu4's 8 lanes decide


def test_hops_over_the_same_link_share_one_edge() -> None:
    fabric = pcie_machine().fabric()
    assert fabric.routes[0, 3][1] == fabric.routes[1, 3][1]
    assert len({edge.name for edge in fabric.edges}) == len(fabric.edges)


def test_direct_nvlinks_come_first_and_are_one_edge() -> None:
    pair = (NvLink(0, "0000:03:00.0", GPU, 4, 20.0), NvLink(1, "0000:02:00.0", GPU, 4, 20.0))
    switch = tuple(NvLink(gpu, "0000:c4:00.0", SWITCH, 6, 20.0) for gpu in (0, 1, 3))
    fabric = pcie_machine(nvlinks=pair + switch).fabric()
    assert names(fabric, 0, 1) == ["gpu0>gpu1 NVLink"]
    edge = fabric.edges[fabric.routes[0, 1][0]]
    assert (edge.gb_s, edge.lanes, fabric.kinds[0, 1]) == (80.0, 4, "NVL")


def test_nvswitches_come_second_with_all_lanes_in_one_edge() -> None:
    switch = tuple(
        NvLink(gpu, bus, SWITCH, 6, 20.0)
        for gpu in (0, 3)
        for bus in ("0000:c4:00.0", "0000:c5:00.0")
    )
    fabric = pcie_machine(nvlinks=switch).fabric()
    assert names(fabric, 0, 3) == ["gpu0>switch NVLink", "switch>gpu3 NVLink"]
    assert fabric.edges[fabric.routes[0, 3][0]].lanes == 12
    assert (fabric.gb_s(0, 3), fabric.kinds[0, 3]) == (240.0, "NVS")
    assert fabric.kinds[0, 1] == "PIX"  # gpu1 is not at the switch


def test_nvlinks_that_are_down_are_no_way() -> None:
    down = (NvLink(0, "0000:03:00.0", GPU, 0, 20.0),)
    down += tuple(NvLink(gpu, "0000:c4:00.0", SWITCH, 0, 20.0) for gpu in (0, 1))
    assert pcie_machine(nvlinks=down).fabric().kinds[0, 1] == "PIX"


def test_ranks_on_one_gpu_are_local() -> None:
    fabric = pcie_machine().fabric([2, 2, 0])
    assert (fabric.kinds[0, 1], fabric.kinds[0, 2]) == ("LOC", "PXB")
    assert fabric.gb_s(0, 1) > 1000
    shared = pcie_machine(gpus=(Gpu(0, 1, 80), Gpu(0, 1, 80)))
    assert shared.fabric().kinds == {(0, 1): "LOC", (1, 0): "LOC"}


def test_a_pair_that_the_driver_refuses_has_no_route() -> None:
    p2p = (P2p(0, 1, "OK", "GNS"), P2p(1, 0, "OK", "OK"), P2p(2, 3))
    fabric = pcie_machine(p2p=p2p).fabric()
    assert (0, 1) not in fabric.routes
    assert (0, 1) not in fabric.kinds
    assert fabric.gb_s(0, 1) == 0
    assert fabric.kinds[1, 0] == "PIX"
    assert (2, 3) in fabric.routes  # the driver has not said


def c2c_machine(*numas: int, model: str = "C2C") -> Machine:
    cpus = tuple(Cpu(numa, arch="arm64") for numa in sorted(set(numas)))
    pci = tuple(Pci(f"000{n}:01:00.0", numa, speed=GEN4, width=1) for n, numa in enumerate(numas))
    gpus = tuple(Gpu(n, n, 90) for n in range(len(numas)))
    if model == "C2C":
        return Machine("", cpus, pci, gpus, c2c=tuple(C2c(n, 10, 40.0) for n in range(len(numas))))
    links = tuple(NvLink(n, "0004:00:01.0", "0x068001", 3, 20.0) for n in range(len(numas)))
    return Machine("", cpus, pci, gpus, links)


def test_a_gpus_own_link_to_its_cpu_is_taken_where_it_is_quicker() -> None:
    fabric = c2c_machine(0, 0, 1).fabric()
    assert (fabric.kinds[0, 1], fabric.gb_s(0, 1)) == ("C2C", 400.0)
    assert names(fabric, 0, 1) == ["gpu0>cpu0 C2C", "cpu0>gpu1 C2C"]
    assert names(fabric, 0, 2) == ["gpu0>cpu0 C2C", "cpu0>cpu1 interconnect", "cpu1>gpu2 C2C"]
    assert (fabric.kinds[0, 2], fabric.gb_s(0, 2)) == ("SYS", 6.0)
    slow = dataclasses.replace(c2c_machine(0, 0), c2c=(C2c(0, 1, 0.1), C2c(1, 1, 0.1)))
    assert slow.fabric().kinds[0, 1] == "PHB"


def test_nvlinks_to_a_cpu_are_its_gpus_way_there() -> None:
    fabric = c2c_machine(0, 0, model="POWER").fabric()
    assert names(fabric, 0, 1) == ["gpu0>cpu0 NVLink", "cpu0>gpu1 NVLink"]
    assert (fabric.kinds[0, 1], fabric.gb_s(0, 1)) == ("PHB", 60.0)


def test_hosts_meet_at_nvswitches_only() -> None:
    cpus = (Cpu(0, "a"), Cpu(0, "b"))
    pci = tuple(Pci("0000:01:00.0", cpu, speed=GEN4, width=16) for cpu in (0, 1))
    gpus = (Gpu(0, 0, 90), Gpu(0, 1, 90))
    apart = Machine("", cpus, pci, gpus, (NvLink(0, "0000:01:00.0", GPU, 4, 20.0),))
    assert apart.fabric().routes == {}
    links = tuple(NvLink(gpu, "fffffff:ff:ff.0", SWITCH, 18, 20.6) for gpu in (0, 1))
    joined = dataclasses.replace(apart, nvlinks=links).fabric()
    assert names(joined, 0, 1) == ["host0.gpu0>switch NVLink", "switch>host1.gpu0 NVLink"]


def test_cpu_ranks_cross_what_is_between_their_numa_nodes() -> None:
    machine = Machine(cpus=(Cpu(3, **INTEL), Cpu(5, **INTEL)))
    fabric = machine.cpu_fabric([5, 3, 5])
    assert fabric.kinds[0, 2] == "LOC"
    assert names(fabric, 0, 1) == ["cpu5>cpu3 interconnect"]
    assert fabric.routes[0, 1] == fabric.routes[2, 1]
    assert fabric.gb_s(0, 1) == 10.0


def test_an_unknown_cpu_counts_as_the_slowest() -> None:
    assert Machine(cpus=(Cpu(0), Cpu(1))).cpu_fabric([0, 1]).gb_s(0, 1) == 6.0


def test_devices_that_the_machine_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="GPU 5 is not in the machine, which has 5"):
        pcie_machine().fabric([0, 5])
    with pytest.raises(ValueError, match="GPU -1"):
        pcie_machine().fabric([-1])
    with pytest.raises(ValueError, match="NUMA node 2 is not in the machine, which has 0, 1"):
        pcie_machine().cpu_fabric([2])
    with pytest.raises(ValueError, match="several hosts"):
        Machine(cpus=(Cpu(0, "a"), Cpu(0, "b"))).cpu_fabric([0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("fffffff:ff:ff.0", "fffffff:ff:ff.0"),
        ("1:2:3.0", "0001:02:03.0"),
    ],
)
def test_bus_ids_are_written_one_way(given: str, expected: str) -> None:
    assert bus_id(given) == expected


@pytest.mark.parametrize("given", ["", "g000:1b:00.0", "1b:00.0\n"])
def test_malformed_bus_ids_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"no PCI bus id: it has to look like 0000:1b:00\.0"):
        bus_id(given)


@given(machines())
def test_routes_of_any_machine_hold_together(machine: Machine) -> None:
    fabric = machine.fabric()
    assert fabric.size == len(machine.gpus)
    assert fabric.routes.keys() == fabric.kinds.keys()
    for (source, target), route in fabric.routes.items():
        assert source != target
        assert route
        assert len(set(route)) == len(route)
        assert fabric.gb_s(source, target) > 0
        if fabric.kinds[source, target] in ("PIX", "PXB", "PHB", "SYS", "C2C"):
            # Each edge begins where the one before ends.
            ends = [fabric.edges[edge].name.split()[0].split(">") for edge in route]
            assert all(one[1] == other[0] for one, other in itertools.pairwise(ends))
    used = {edge for route in fabric.routes.values() for edge in route}
    assert used == set(range(len(fabric.edges)))
