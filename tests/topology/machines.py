"""Machines by hand, and by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from ringkern.choose.topology import C2c, Cpu, Gpu, Machine, Nic, NvLink, Pci
from ringkern.choose.topology.links import nvlink_gb_s

GPU, SWITCH, BRIDGE = "0x030200", "0x068000", "0x060400"
GEN4 = "16.0 GT/s PCIe"
INTEL = {"arch": "x86_64", "vendor": "GenuineIntel", "family": 6, "model": 106}


def pcie_machine(**changes: object) -> Machine:
    """Two sockets; on the first two switches, one with another below it, and a GPU at a root port.

    gpu0, gpu1: one switch. gpu2: below the switch that is below theirs. gpu3: the other switch.
    gpu4: a root port of the second socket, with 8 lanes.
    """

    def device(bus: str, cpu: int, above: int | None, kind: str = GPU, width: int = 16) -> Pci:
        return Pci(f"0000:{bus}:00.0", cpu, above, kind, speed=GEN4, width=width)

    pci = (
        device("01", 0, None, BRIDGE),
        device("02", 0, 0),
        device("03", 0, 0),
        device("04", 0, 0, BRIDGE),
        device("05", 0, 3),
        device("11", 0, None, BRIDGE),
        device("12", 0, 5),
        device("81", 1, None, width=8),
    )
    gpus = tuple(Gpu(dev, at, 80) for dev, at in enumerate((1, 2, 4, 6, 7)))
    parts: dict[str, object] = {"cpus": (Cpu(0, **INTEL), Cpu(1, **INTEL)), "pci": pci}
    return Machine(**{**parts, "gpus": gpus, **changes})


_HEX = st.integers(0, 0xFFFF).map(lambda n: f"0x{n:04x}")
# Characters that survive in XML: no control characters; typical names of kernels and people.
_WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=12)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Any machine that a file of NCCL's can hold, in the order in which it is read."""
    hosts = draw(st.sampled_from([("",), ("0xa",), ("0xa", "0xb")]))
    cpus, pci, gpu_pci, nics = [], [], [], []
    free = iter(range(1, 1 << 16))  # bus numbers

    def add(cpu: int, above: int | None, depth: int) -> None:
        number = next(free)
        kind = draw(st.sampled_from(["gpu", "bridge", "nic"] if depth < 4 else ["gpu", "nic"]))
        pci.append(
            Pci(
                f"{number >> 8:04x}:{number & 0xFF:02x}:00.0",
                cpu,
                above,
                {"gpu": GPU, "bridge": BRIDGE, "nic": "0x020700"}[kind],
                draw(_HEX),
                draw(_HEX),
                speed=draw(st.sampled_from(["2.5 GT/s PCIe", "8 GT/s", GEN4, "64.0 GT/s PCIe"])),
                width=draw(st.sampled_from([1, 4, 8, 16])),
            )
        )
        at = len(pci) - 1
        if kind == "gpu":
            gpu_pci.extend([at] * draw(st.integers(1, 2)))
        elif kind == "nic":
            nics.append((cpu, at))
        else:
            for _ in range(draw(st.integers(0, 3))):
                add(cpu, at, depth + 1)

    for host in hosts:
        for numa in range(draw(st.integers(1, 3))):
            cores = draw(st.sets(st.integers(0, 300), max_size=4))
            who = draw(st.sampled_from([INTEL, {"arch": "arm64"}, {}]))
            cpus.append(Cpu(numa, host, tuple(sorted(cores)), **who))
            for _ in range(draw(st.integers(0, 3))):
                add(len(cpus) - 1, None, 0)
            if draw(st.booleans()):
                nics.append((len(cpus) - 1, None))
    ccs = st.sampled_from([None, 60, 70, 80, 86, 90, 103])
    gpus = [Gpu(dev, at, draw(ccs), gdr=draw(st.booleans())) for dev, at in enumerate(gpu_pci)]
    ports = [
        Nic(
            draw(_WORDS),
            dev,
            cpu,
            at,
            draw(st.integers(0, 800_000)) / 8000,
            draw(st.integers(0, 2)),
            draw(st.sampled_from(["", "0x1f"])),
            draw(st.booleans()),
        )
        for dev, (cpu, at) in enumerate(nics)
    ]
    nvlinks, c2c = [], []
    for at, gpu in enumerate(gpus):
        targets = draw(st.lists(st.integers(0, len(pci) - 1), max_size=3, unique=True))
        for target in targets:
            lanes, kind = draw(st.integers(0, 18)), draw(st.sampled_from([GPU, SWITCH, "0x068001"]))
            nvlinks.append(NvLink(at, pci[target].bus_id, kind, lanes, nvlink_gb_s(gpu.cc)))
        if draw(st.booleans()):
            c2c.append(C2c(at, draw(st.integers(1, 10)), draw(st.integers(1, 60_000)) / 1000))
    parts = (cpus, pci, gpus, nvlinks, c2c, ports)
    return Machine(draw(_WORDS), *(tuple(part) for part in parts))
