"""The machines that ship with the package match their sources."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from ringkern.choose import topology
from ringkern.choose.fabric import Fabric

# NVIDIA's white paper of the DGX-1 with V100, and what nvidia-smi topo -m prints there.
DGX1_LANES = """
0 1 1 2 2 0 0 0
1 0 2 1 0 2 0 0
1 2 0 2 0 0 1 0
2 1 2 0 0 0 0 1
2 0 0 0 0 1 1 2
0 2 0 0 1 0 2 1
0 0 1 0 1 2 0 2
0 0 0 1 2 1 2 0
"""

# GPUs; lanes of NVLink and GB/s a GPU, one way; how often each kind is there among all pairs.
EXPECTED = {
    "dgx-a100": (8, 12, 240.0, {"NVS": 56}),
    "dgx-h100": (8, 18, 370.8, {"NVS": 56}),
    "dgx1-v100": (8, 6, 120.0, {"NVL": 32, "SYS": 24}),
    "gb300-tray": (4, 18, 721.8, {"NVS": 12}),
    "nvlink-pairs4": (4, 4, 48.0, {"NVL": 4, "PHB": 8}),
    "nvlink-pairs8": (8, 12, 240.0, {"NVL": 8, "PHB": 16, "SYS": 32}),
    "pcie4-1socket": (4, 0, 0.0, {"PHB": 12}),
    "pcie4-2sockets": (4, 0, 0.0, {"PHB": 4, "SYS": 8}),
    "pcie8-1socket": (8, 0, 0.0, {"PIX": 24, "PHB": 32}),
    "pcie8-2sockets": (8, 0, 0.0, {"PIX": 24, "SYS": 32}),
}


def text(name: str) -> str:
    return (resources.files(topology) / "machines" / f"{name}.xml").read_text()


def lanes(fabric: Fabric, a: int, b: int) -> int:
    if fabric.kinds.get((a, b)) != "NVL":
        return 0
    return sum(fabric.edges[edge].lanes for edge in fabric.routes[a, b])


def test_all_are_known_here() -> None:
    assert set(topology.recorded_names()) == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_links_are_those_of_the_source(name: str) -> None:
    machine = topology.recorded(name)
    gpus, per_gpu, gb_s, kinds = EXPECTED[name]
    assert (machine.name, len(machine.gpus)) == (name, gpus)
    for gpu in range(gpus):
        own = [link for link in machine.nvlinks if link.gpu == gpu]
        assert sum(link.lanes for link in own) == per_gpu
        assert sum(link.lanes * link.gb_s for link in own) == pytest.approx(gb_s)
    found = list(machine.fabric().kinds.values())
    assert {kind: found.count(kind) for kind in set(found)} == kinds


def test_the_mesh_of_the_dgx1() -> None:
    fabric = topology.recorded("dgx1-v100").fabric()
    rows = [[lanes(fabric, a, b) for b in range(8)] for a in range(8)]
    assert rows == [[int(n) for n in row.split()] for row in DGX1_LANES.strip().splitlines()]


@pytest.mark.parametrize("name", ["dgx1-v100", "nvlink-pairs8", "pcie8-2sockets"])
def test_links_are_the_same_from_both_ends(name: str) -> None:
    fabric = topology.recorded(name).fabric()
    for a, b in fabric.routes:
        assert fabric.kinds[a, b] == fabric.kinds[b, a]
        assert fabric.gb_s(a, b) == fabric.gb_s(b, a)
        assert lanes(fabric, a, b) == lanes(fabric, b, a)


def test_each_names_its_source() -> None:
    for name in EXPECTED:
        comment = " ".join(text(name).split("-->")[0].split())
        assert re.search(r"Sources?( for the \w+)?: |No particular machine: ", comment), name


def test_others_are_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"'dgx' is no recorded machine: dgx-a100, dgx-h100"):
        topology.recorded("dgx")
    with pytest.raises(ValueError, match="no recorded machine"):
        topology.recorded("../machines/dgx-a100")
