"""A machine as plain data: its devices, and the links between them.

Devices refer to each other by their position in the tuples of :class:`Machine`, because bus ids are
valid on one host only, and a description may be of several hosts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import links

if TYPE_CHECKING:
    from ..fabric import Fabric

# PCI classes, as /sys and NCCL's files write them: the first digits decide.
CLASS_NVSWITCH = "0x068000"
CLASS_CPU = "0x068001"  # an NVLink to a POWER CPU ends there
CLASS_GPU = "0x0302"


def bus_id(text: str) -> str:
    """Returns a PCI bus id as the rest of the package writes it: lower case, ``"0000:1b:00.0"``.

    The eight digits of NVML's domain become four if the first four are 0.

    Args:
        text: with a domain of up to 8 digits, in upper or lower case.

    Raises:
        ValueError: it is no bus id.
    """
    found = re.fullmatch(
        r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f])", text.lower()
    )
    if not found:
        raise ValueError(f"{text!r} is no PCI bus id: it has to look like 0000:1b:00.0")
    domain = found[1].lstrip("0") if len(found[1]) == 8 else found[1]
    return f"{domain:0>4}:{found[2]:0>2}:{found[3]:0>2}.{found[4]}"


@dataclass(frozen=True)
class Cpu:
    """One NUMA node.

    Attributes:
        numa: its number; -1: the host does not say.
        host: the host of the node, as NCCL's ``host_hash``; "" if there is one host.
        cores: numbers of the logical CPUs.
        arch: x86_64, arm64 or ppc64; "" if unknown, like ``vendor``.
        vendor: CPUID's, such as GenuineIntel; with ``family`` and ``model``.
        distances: to each NUMA node of the host, as given by the firmware (10: itself).
        caches: for each level, bytes of the largest cache and the number of cores that share it.
    """

    numa: int
    host: str = ""
    cores: tuple[int, ...] = ()
    arch: str = ""
    vendor: str = ""
    family: int = 0
    model: int = 0
    distances: tuple[int, ...] = ()
    caches: tuple[Cache, ...] = ()

    @property
    def interconnect_gb_s(self) -> float | None:
        """Returns one direction's GB/s to another NUMA node of the host, or ``None`` if unknown."""
        return links.interconnect_gb_s(self.arch, self.vendor, self.family, self.model)


@dataclass(frozen=True)
class Cache:
    """The data cache of one level: ``size`` bytes, shared by ``cores`` logical CPUs."""

    level: int
    size: int
    cores: int


@dataclass(frozen=True)
class Pci:
    """A device, bridge or switch, and its link towards the CPU.

    Attributes:
        bus_id: as :func:`bus_id` writes it.
        cpu: position of its NUMA node in ``Machine.cpus``.
        above: position of the bridge above it in ``Machine.pci``; ``None``: the CPU.
        pci_class: such as "0x060400"; "" if unknown, like the ids.
        vendor, device, subsystem_vendor, subsystem_device: ids, such as "0x10de".
        speed: of the link, such as "16.0 GT/s PCIe".
        width: lanes of the link; 0: unknown.
    """

    bus_id: str
    cpu: int
    above: int | None = None
    pci_class: str = ""
    vendor: str = ""
    device: str = ""
    subsystem_vendor: str = ""
    subsystem_device: str = ""
    speed: str = ""
    width: int = 0

    @property
    def gb_s(self) -> float:
        """Returns the GB/s of the link, in one direction."""
        return links.pcie_gb_s(self.speed, self.width)


@dataclass(frozen=True)
class Gpu:
    """A GPU, or one rank's use of it: several may have the same ``pci``.

    Attributes:
        dev: its number on its host in NVML and nvidia-smi.
        pci: position in ``Machine.pci``.
        cc: compute capability, such as 90; ``None``: unknown.
        name: as in NVML; "" if unknown, like ``uuid``.
        gdr: whether NICs can access its memory.
    """

    dev: int
    pci: int
    cc: int | None = None
    name: str = ""
    uuid: str = ""
    gdr: bool = False


@dataclass(frozen=True)
class NvLink:
    """All NVLinks from one GPU to one other end.

    Attributes:
        gpu: position in ``Machine.gpus``.
        target: bus id of the other end: a GPU, an NVSwitch, or a CPU's bridge.
        target_class: its PCI class.
        lanes: number of lanes.
        gb_s: of one lane, in one direction.
    """

    gpu: int
    target: str
    target_class: str
    lanes: int
    gb_s: float

    @property
    def end(self) -> str:
        """Returns the kind of the other end, "gpu", "cpu" or, as in NCCL for others, "switch"."""
        if self.target_class.startswith("0x03"):
            return "gpu"
        return "cpu" if self.target_class.startswith(CLASS_CPU) else "switch"


@dataclass(frozen=True)
class C2c:
    """A GPU's own link to its CPU (NVLink-C2C): ``lanes`` of ``gb_s`` each way."""

    gpu: int
    lanes: int
    gb_s: float


@dataclass(frozen=True)
class Nic:
    """A port of a network card.

    Attributes:
        name: such as mlx5_0.
        dev: its number.
        cpu: position of its NUMA node.
        pci: position in ``Machine.pci``; ``None``: unknown.
        gb_s: in one direction; 0: unknown.
        port: of the card.
        guid: of the card, as NCCL writes it.
        gdr: whether it can access GPUs' memory.
    """

    name: str
    dev: int
    cpu: int
    pci: int | None = None
    gb_s: float = 0.0
    port: int = 0
    guid: str = ""
    gdr: bool = False


@dataclass(frozen=True)
class P2p:
    """The driver's answer to whether one GPU may access another's memory.

    Attributes:
        gpu, other: positions in ``Machine.gpus``.
        read, write, nvlink: in nvidia-smi's words, such as "OK", "CNS" (not by this chipset), "GNS"
            (not by this GPU), "NS" (not supported); "" if unknown.
        ancestor: the PCIe route in the driver's words: PIX, PXB, PHB, NODE or SYS; "" if
            unknown.
    """

    gpu: int
    other: int
    read: str = ""
    write: str = ""
    nvlink: str = ""
    ancestor: str = ""


@dataclass(frozen=True)
class Machine:
    """One host, or several hosts that one NVSwitch system joins.

    Attributes:
        name: "" if it has none.
        cpus: NUMA nodes.
        pci: a device comes after the bridge above it.
        gpus: by host and ``dev``.
        nvlinks, c2c, nics: by GPU or number.
        p2p: for each ordered pair of GPUs; empty: the driver was not asked.
        notes: facts that could not be found out, one sentence each.
    """

    name: str = ""
    cpus: tuple[Cpu, ...] = ()
    pci: tuple[Pci, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nvlinks: tuple[NvLink, ...] = ()
    c2c: tuple[C2c, ...] = ()
    nics: tuple[Nic, ...] = ()
    p2p: tuple[P2p, ...] = ()
    notes: tuple[str, ...] = ()

    def cpu_of(self, gpu: int) -> Cpu:
        """Returns the NUMA node of a GPU."""
        return self.cpus[self.pci[self.gpus[gpu].pci].cpu]

    def bus_id_of(self, gpu: int) -> str:
        """Returns the PCI bus id of a GPU."""
        return self.pci[self.gpus[gpu].pci].bus_id

    def find_gpu(self, bus: str, host: str | None = None) -> int | None:
        """Returns the position of the first GPU with a bus id, on ``host`` if it is given."""
        for position in range(len(self.gpus)):
            if self.bus_id_of(position) == bus and host in (None, self.cpu_of(position).host):
                return position
        return None

    def fabric(self, gpus: Sequence[int] | None = None) -> Fabric:
        """Returns the links between ranks on GPUs: rank i is on ``gpus[i]``.

        Two GPUs use their direct NVLinks if they have any, otherwise NVSwitches, otherwise PCIe and
        the links between their CPUs. If the driver says that one may not write to the other's
        memory, the pair has no route.

        Args:
            gpus: positions in ``Machine.gpus``; ranks that share a GPU repeat its position.
                ``None``: all of them, in their order.

        Raises:
            ValueError: there is no such GPU.
        """
        from . import routes

        return routes.gpu_fabric(self, gpus)

    def cpu_fabric(self, numa_of_rank: Sequence[int]) -> Fabric:
        """Returns the same for ranks that compute on CPUs, on a machine with one host.

        Args:
            numa_of_rank: the NUMA node's number (not its position) of each rank.

        Raises:
            ValueError: there is no such NUMA node.
        """
        from . import routes

        return routes.cpu_fabric(self, numa_of_rank)
