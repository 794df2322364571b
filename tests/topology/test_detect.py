"""Detection on trees in the shape of /sys, with a stand-in for NVML."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from ringkern.choose import topology
from ringkern.choose.topology import Cache, Machine, detect, sysfs
from tests.topology.fake_nvml import FakeGpu, FakeNvml
from tests.topology.sys_tree import BRIDGE, GPU, NIC, SysTree, cpuinfo

EPYC = {"vendor_id": "AuthenticAMD", "cpu family": 25, "model": 1, "model name": "AMD EPYC 7763"}


@pytest.fixture
def tree(tmp_path: Path) -> SysTree:
    return SysTree(tmp_path / "sys")


def find(tree: SysTree, nvml: object = None, arch: str = "x86_64") -> Machine:
    values = cpuinfo(tree.root.parent / "cpuinfo", EPYC)
    return detect(tree.root, cpuinfo=values, arch=arch, pynvml=nvml or FakeNvml([]))


def two_sockets(tree: SysTree) -> list[str]:
    """Two GPUs at a switch of the first node, one and a network card at one of the second."""
    tree.node(0, "0-1,4-5", "10 32")
    tree.node(1, "2-3,6-7", "32 10")
    return [
        tree.below_switch("0000:10", 0x13),
        tree.below_switch("0000:10", 0x14),
        tree.below_switch("0000:80", 0x83, numa_node=1),
        tree.below_switch("0000:80", 0x84, NIC, numa_node=1),
    ]


def test_numa_nodes(tree: SysTree) -> None:
    two_sockets(tree)
    tree.node(2, "", "32 32 10")  # memory only
    tree.cache(2, 0, 1, "Data", "32K", "2,6")
    tree.cache(2, 1, 1, "Instruction", "64K", "2,6")
    tree.cache(2, 3, 3, "Unified", "16M", "2-3,6-7")
    tree.cache(2, 2, 2, "Unified", "512K", "2,6")
    first, second = find(tree).cpus
    assert (first.numa, first.cores, first.distances) == (0, (0, 1, 4, 5), (10, 32))
    assert (second.numa, second.cores, second.distances) == (1, (2, 3, 6, 7), (32, 10))
    assert second.caches == (Cache(1, 32 << 10, 2), Cache(2, 512 << 10, 2), Cache(3, 16 << 20, 4))
    assert (first.arch, first.vendor, first.family, first.model) == (
        "x86_64",
        "AuthenticAMD",
        25,
        1,
    )
    assert first.interconnect_gb_s == 24.0
    assert find(tree, arch="aarch64").cpus[0].arch == "arm64"


def test_nothing_at_all_is_one_node_and_a_note(tmp_path: Path) -> None:
    machine = detect(tmp_path / "none", cpuinfo=tmp_path / "none", arch="x86_64")
    (cpu,) = machine.cpus
    assert (cpu.numa, cpu.cores, cpu.vendor) == (0, (), "")
    assert (machine.gpus, machine.pci, machine.nics) == ((), (), ())
    assert any("names no NUMA node" in note for note in machine.notes)
    assert "cores not known" in topology.describe(machine)


def test_a_kernel_without_numa_has_one_node_of_all_cores(tree: SysTree) -> None:
    folder = tree.root / "devices/system/cpu"
    folder.mkdir(parents=True)
    (folder / "online").write_text("0-2\n")
    assert find(tree).cpus[0].cores == (0, 1, 2)


def test_this_machine_can_be_described() -> None:
    machine = detect()
    assert machine.name == platform.node()
    assert sum(len(cpu.cores) for cpu in machine.cpus) >= 1
    assert "cpu" in topology.describe(machine)


def test_switches_are_one_bridge_and_root_ports_none(tree: SysTree) -> None:
    first, second, third, _ = two_sockets(tree)
    machine = find(tree, FakeNvml([FakeGpu(bus) for bus in (first, second, third)]))
    by_bus = {pci.bus_id: pci for pci in machine.pci}
    assert set(by_bus) == {"0000:11:00.0", "0000:13:00.0", "0000:14:00.0"} | {
        "0000:81:00.0",
        "0000:83:00.0",
    }
    assert machine.pci[by_bus[second].above or 0].bus_id == "0000:11:00.0"
    assert by_bus["0000:11:00.0"].above is None
    assert [machine.cpu_of(gpu).numa for gpu in range(3)] == [0, 0, 1]
    kinds = machine.fabric().kinds
    assert (kinds[0, 1], kinds[0, 2]) == ("PIX", "SYS")


def test_switches_below_switches_are_all_there(tree: SysTree) -> None:
    tree.node(0, "0-1", "10")
    path = "pci0000:00"
    for bus in ("00:01.0", "01:00.0", "02:00.0", "03:00.0", "04:00.0"):
        path += f"/0000:{bus}"
        tree.device(path, BRIDGE)
    tree.device(f"{path}/0000:05:00.0", GPU)
    machine = find(tree, FakeNvml([FakeGpu("0000:05:00.0")]))
    assert [pci.bus_id for pci in machine.pci] == ["0000:01:00.0", "0000:03:00.0", "0000:05:00.0"]


def test_a_link_is_as_quick_as_its_slower_end(tree: SysTree) -> None:
    tree.node(0, "0-1", "10")
    slow = {"max_link_speed": "8.0 GT/s PCIe", "max_link_width": 8}
    tree.device("pci0000:00/0000:00:01.0", BRIDGE, **slow)
    tree.device("pci0000:00/0000:00:01.0/0000:01:00.0", GPU)
    (pci,) = find(tree, FakeNvml([FakeGpu("0000:01:00.0")])).pci
    assert (pci.speed, pci.width, pci.gb_s) == ("8.0 GT/s PCIe", 8, 6.0)


def test_a_link_with_fewer_lanes_in_use_is_that_slow_and_noted(tree: SysTree) -> None:
    tree.node(0, "0-1", "10")
    tree.device("pci0000:00/0000:01:00.0", GPU, current_link_width=4)
    machine = find(tree, FakeNvml([FakeGpu("0000:01:00.0")]))
    assert machine.pci[0].gb_s == 6.0
    assert machine.notes == ("0000:01:00.0 uses 4 of the 16 lanes of its PCIe link",)


@pytest.mark.parametrize(
    "files",
    [
        {"max_link_speed": "Unknown"},
        {"max_link_width": 255},
    ],
)
def test_a_link_that_is_not_told_in_full_is_noted(tree: SysTree, files: dict[str, object]) -> None:
    tree.node(0, "0-1", "10")
    tree.device("pci0000:00/0000:01:00.0", GPU, **files)
    machine = find(tree, FakeNvml([FakeGpu("0000:01:00.0")]))
    assert any("0000:01:00.0 is not known in full" in note for note in machine.notes)
    assert machine.pci[0].gb_s > 0


def test_a_gpu_that_sys_does_not_show_is_noted(tree: SysTree) -> None:
    two_sockets(tree)
    machine = find(tree, FakeNvml([FakeGpu("0000:aa:00.0")]))
    assert machine.bus_id_of(0) == "0000:aa:00.0"
    assert any("how 0000:aa:00.0 is linked" in note for note in machine.notes)


@pytest.mark.parametrize("numa", [-1, None])
def test_a_device_without_numa_node_is_at_the_only_one_or_apart(
    tree: SysTree, numa: object
) -> None:
    tree.node(0, "0-1", "10")
    one = tree.below_switch("0000:10", 0x13, numa_node=numa)
    other = tree.below_switch("0000:20", 0x23, numa_node=numa)
    nvml = FakeNvml([FakeGpu(one), FakeGpu(other)])
    assert [cpu.numa for cpu in find(tree, nvml).cpus] == [0]
    tree.node(1, "2-3", "32 10")
    machine = find(tree, nvml)
    assert [cpu.numa for cpu in machine.cpus] == [0, 1, -1]
    assert machine.cpu_of(0) is machine.cpu_of(1) is machine.cpus[2]
    assert any("NUMA node of 0000:11:00.0 is not known" in note for note in machine.notes)


def test_network_cards(tree: SysTree) -> None:
    *_, card = two_sockets(tree)
    plain = tree.below_switch("0000:10", 0x15, NIC)
    tree.infiniband("mlx5_0", card, "400 Gb/sec (4X NDR)")
    tree.network("ib0", card, "400000")  # the same card
    tree.network("eth0", plain, "25000")
    tree.network("lo", "none", "0")
    tree.network("eth1", tree.below_switch("0000:10", 0x16, NIC), "-1")
    machine = find(tree)
    assert [(n.name, n.gb_s) for n in machine.nics] == [
        ("mlx5_0", 50.0),
        ("eth0", 3.125),
        ("eth1", 0.0),
    ]
    assert machine.cpus[machine.nics[0].cpu].numa == 1


def test_nvlinks_to_gpus_switches_and_cpus(tree: SysTree) -> None:
    first, second, third, _ = two_sockets(tree)
    links = (
        (1, second, 0),
        (0, second, 0),  # down
        (1, second, None),  # a driver that does not tell the type
        (1, "", 2),  # a switch that the host does not see
        (1, "0000:c4:00.0", 2),
        (1, "0000:c5:00.0", None),
        (1, "0004:04:00.0", 1),
        (1, "", 0),
    )
    nvml = FakeNvml([FakeGpu(first, links=links), FakeGpu(second, (8, 0)), FakeGpu(third)])
    machine = find(tree, nvml)
    assert {(n.target, n.end): n.lanes for n in machine.nvlinks} == {
        (second, "gpu"): 2,
        ("fffffff:ff:ff.0", "switch"): 1,
        ("0000:c4:00.0", "switch"): 1,
        ("0000:c5:00.0", "switch"): 1,
        ("0004:04:00.0", "cpu"): 1,
    }
    assert {n.gb_s for n in machine.nvlinks} == {20.6}
    assert f"NVLink 7 of {first} is up; NVML hides its end" in machine.notes
    assert nvml.started == 0
    fabric = machine.fabric()
    assert (fabric.kinds[0, 1], fabric.gb_s(0, 1)) == ("NVL", pytest.approx(41.2))


def test_nvlinks_that_are_not_for_peers_are_left_out(tree: SysTree) -> None:
    first, second, *_ = two_sockets(tree)
    links = ((1, second, 0), (1, second, 0))
    gpus = [FakeGpu(first, links=links), FakeGpu(second)]
    machine = find(tree, FakeNvml(gpus, not_for_peers=frozenset({1})))
    assert [n.lanes for n in machine.nvlinks] == [1]
    assert f"NVLink 1 of {first} is up, but not for peers" in machine.notes


def test_links_of_a_gpu_to_its_own_cpu(tree: SysTree) -> None:
    first, second, *_ = two_sockets(tree)
    lanes = ((1, 44712), (0, 44712), (1, 44712))
    machine = find(tree, FakeNvml([FakeGpu(first, c2c=lanes), FakeGpu(second, (8, 0), c2c=lanes)]))
    assert [(c.gpu, c.lanes, c.gb_s) for c in machine.c2c] == [(0, 2, 44.712)]


def test_peer_access_of_gpus_is_detected(tree: SysTree) -> None:
    first, second, third, _ = two_sockets(tree)
    nvml = FakeNvml(
        [FakeGpu(first), FakeGpu(second), FakeGpu(third)],
        p2p={(0, 1): 0, (1, 0): 2, (0, 2): 6},
        ancestors={(0, 1): 10, (1, 2): 50},
    )
    machine = find(tree, nvml)
    found = {(p.gpu, p.other): (p.read, p.write, p.nvlink, p.ancestor) for p in machine.p2p}
    assert found[0, 1] == ("OK", "OK", "OK", "PIX")
    assert found[1, 0] == ("GNS", "GNS", "GNS", "")
    assert found[0, 2] == ("", "", "", "")
    assert found[1, 2] == ("", "", "", "SYS")
    fabric = machine.fabric()
    assert (1, 0) not in fabric.routes
    assert (0, 1) in fabric.routes
    assert "NVML does not tell of all pairs who may reach whose memory" in machine.notes
    assert "refuses peer access (GNS): gpu1>gpu0" in topology.describe(machine)


def test_gpus_are_known_by_what_they_are(tree: SysTree) -> None:
    first, *_ = two_sockets(tree)
    (gpu,) = find(tree, FakeNvml([FakeGpu(first, name=b"NVIDIA A100")])).gpus
    assert (gpu.dev, gpu.name, gpu.uuid, gpu.cc) == (0, "NVIDIA A100", f"GPU-of-{first}", 90)


@pytest.mark.parametrize(
    ("function", "note"),
    [
        ("nvmlDeviceGetHandleByIndex", "NVML does not tell of GPU 0, which is left out: GPU is"),
        ("nvmlDeviceGetPciInfo", "NVML does not tell of GPU 0, which is left out: Not Supported"),
        ("nvmlDeviceGetName", "NVML does not tell the name of 0000:13:00.0: Not Supported"),
        ("nvmlDeviceGetCudaComputeCapability", "compute capability of 0000:13:00.0: Not"),
    ],
)
def test_missing_answers_of_nvml_are_noted(tree: SysTree, function: str, note: str) -> None:
    first, second, *_ = two_sockets(tree)
    gpus = [FakeGpu(first, missing=frozenset({function})), FakeGpu(second)]
    machine = find(tree, FakeNvml(gpus, p2p={(0, 1): 0, (1, 0): 0}))
    assert any(note in text for text in machine.notes), machine.notes
    assert second in [machine.bus_id_of(gpu) for gpu in range(len(machine.gpus))]


def test_without_the_driver_gpus_are_known_by_pci(tree: SysTree) -> None:
    first, second, third, _ = two_sockets(tree)
    tree.device("pci0000:00/0000:00:02.0", "0x030000", vendor="0x1a03")  # another's display
    machine = find(tree, FakeNvml([], starts=False))
    assert [machine.bus_id_of(gpu) for gpu in range(3)] == [first, second, third]
    assert machine.gpus[0].cc is None
    assert any("NVML does not start" in note for note in machine.notes)


def test_without_pynvml_gpus_are_known_by_pci(
    tree: SysTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = two_sockets(tree)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it fails
    machine = detect(tree.root, cpuinfo=tree.root / "none", arch="x86_64")
    assert machine.bus_id_of(0) == first
    assert any("pip install nvidia-ml-py" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [("", ()), ("3", (3,)), ("0-2,8", (0, 1, 2, 8)), ("x", ())],
)
def test_lists_of_cores(listed: str, expected: tuple[int, ...]) -> None:
    assert sysfs.cores(listed) == expected


def test_a_list_of_cores_cannot_take_the_memory() -> None:
    assert len(sysfs.cores("0-999999")) == 65537
