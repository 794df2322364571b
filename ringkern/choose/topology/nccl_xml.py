"""Reads NCCL's description of a machine, the XML that ``NCCL_TOPO_DUMP_FILE`` writes.

The meaning of the attributes is known from NCCL's ``src/graph/xml.cc`` and ``topo.cc``:

    <system version="1">
      <cpu numaid affinity arch vendor familyid modelid host_hash>   a NUMA node; logical CPUs as
                                                                     groups of 32 bits
        <pci busid class vendor device link_speed link_width>        bridge, switch or device
          <gpu dev sm rank gdr>                                      in the <pci> of the GPU
            <nvlink target count tclass/>                            bus id, lanes, PCI class
            <c2c bw count/>                                          MB/s of one lane
          <nic> <net name dev speed port guid gdr/>                  Mbit/s

Other elements and attributes are ignored. In a file without any <gpu> (as cloud providers publish
them, for NCCL to complete), each <pci> of the class of GPUs is a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from . import links
from .graph import C2c, Cpu, Gpu, Machine, Nic, NvLink, Pci, bus_id
from .xml_tree import MAX_BYTES, Element, parse

VERSION = 1


def read(path: str | Path) -> Machine:
    """Returns the machine that a file describes.

    Args:
        path: NCCL's XML, as written to ``NCCL_TOPO_DUMP_FILE``.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such description; the text names file, line and the expected content.
    """
    with Path(path).open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    try:
        return from_xml(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_xml(text: str | bytes) -> Machine:
    """Returns the machine that a text describes.

    Raises:
        ValueError: see :func:`read`.
    """
    system = parse(text)
    if system.name != "system":
        raise ValueError(f"{system} is the outermost element: <system> is expected")
    if (version := system.number("version", 0, 1 << 30)) != VERSION:
        raise ValueError(f"{system} has version {version}: {VERSION} is expected")
    return _Reader().machine(system)


class _Reader:
    def __init__(self) -> None:
        self.cpus: list[Cpu] = []
        self.pci: list[Pci] = []
        self.nics: list[Nic] = []
        self.gpus: list[tuple[Gpu, Element]] = []
        self.notes: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def machine(self, system: Element) -> Machine:
        for element in _named(system, "cpu"):
            self._cpu(element)
        if not self.cpus:
            raise ValueError(f"{system} has no <cpu>: at least one is expected")
        if not self.gpus:
            self._guess_gpus()
        hosts = list(dict.fromkeys(cpu.host for cpu in self.cpus))

        def host_of(cpu: int) -> int:
            return hosts.index(self.cpus[cpu].host)

        self.gpus.sort(key=lambda g: (host_of(self.pci[g[0].pci].cpu), g[0].dev))
        self.nics.sort(key=lambda n: (host_of(n.cpu), n.dev))
        nvlinks = [n for at, (gpu, e) in enumerate(self.gpus) for n in self._nvlinks(at, gpu, e)]
        c2c = [c for at, (_, e) in enumerate(self.gpus) for c in _c2c(at, e)]
        return Machine(
            name=system.text("name"),
            cpus=tuple(self.cpus),
            pci=tuple(self.pci),
            gpus=tuple(gpu for gpu, _ in self.gpus),
            nvlinks=tuple(nvlinks),
            c2c=tuple(c2c),
            nics=tuple(self.nics),
            notes=tuple(self.notes),
        )

    def _cpu(self, element: Element) -> None:
        cpu = Cpu(
            numa=element.number("numaid", -1, 1 << 16),
            host=element.text("host_hash"),
            cores=_cores(element),
            arch=element.text("arch"),
            vendor=element.text("vendor"),
            family=element.number("familyid", 0, 1 << 16, 0),
            model=element.number("modelid", 0, 1 << 16, 0),
        )
        if any((cpu.numa, cpu.host) == (other.numa, other.host) for other in self.cpus):
            raise ValueError(f"{element} with numaid {cpu.numa} occurs twice on one host")
        self.cpus.append(cpu)
        for child in element.children:
            if child.name == "pci":
                self._pci(child, None)
            elif child.name == "nic":
                self._nic(child, None)

    def _pci(self, element: Element, above: int | None) -> None:
        pci = Pci(
            bus_id=_bus_id(element, "busid"),
            cpu=len(self.cpus) - 1,
            above=above,
            pci_class=element.text("class"),
            vendor=element.text("vendor"),
            device=element.text("device"),
            subsystem_vendor=element.text("subsystem_vendor"),
            subsystem_device=element.text("subsystem_device"),
            speed=element.text("link_speed"),
            width=element.number("link_width", 0, 64, 0),
        )
        key = (self.cpus[pci.cpu].host, pci.bus_id)
        if key in self._seen:
            raise ValueError(f"{element} with busid {pci.bus_id} occurs twice on one host")
        self._seen.add(key)
        if links.pcie_gt_s(pci.speed) is None or not pci.width:
            self.notes.append(
                f"the PCIe link of {pci.bus_id} is not known in full: what is missing counts as "
                f"{links.PCIE_UNKNOWN_GT_S:g} GT/s or {links.PCIE_UNKNOWN_WIDTH} lanes"
            )
        self.pci.append(pci)
        position = len(self.pci) - 1
        for child in element.children:
            if child.name == "pci":
                self._pci(child, position)
            elif child.name == "gpu":
                self._gpu(child, position)
            elif child.name == "nic":
                self._nic(child, position)

    def _gpu(self, element: Element, pci: int) -> None:
        cc = element.number("sm", 0, 10_000, 0)
        gdr = bool(element.number("gdr", -1, 16, 0) > 0)
        self.gpus.append(
            (Gpu(element.number("dev", 0, 1 << 16), pci, cc or None, gdr=gdr), element)
        )

    def _guess_gpus(self) -> None:
        for position, pci in enumerate(self.pci):
            nvidia = pci.pci_class.startswith("0x0300") and pci.vendor == "0x10de"
            if pci.pci_class.startswith("0x0302") or nvidia:
                self.gpus.append((Gpu(len(self.gpus), position), Element("gpu", 0, {})))
        if self.gpus:
            self.notes.append(
                "the file names no GPU, so that their order, compute capability and NVLinks are "
                "not known: devices of their PCI class are taken for them"
            )
        elif any(not pci.pci_class for pci in self.pci):
            self.notes.append(
                "the file names no GPU, nor which class its PCI devices are of: some may be GPUs"
            )

    def _nvlinks(self, position: int, gpu: Gpu, element: Element) -> Iterator[NvLink]:
        bus_ids = {self.pci[g.pci].bus_id for g, _ in self.gpus}
        for child in _named(element, "nvlink"):
            target = _bus_id(child, "target")
            yield NvLink(
                position,
                target,
                child.text("tclass") or ("0x030200" if target in bus_ids else "0x068000"),
                child.number("count", 0, 1024),
                links.nvlink_gb_s(gpu.cc),
            )

    def _nic(self, element: Element, pci: int | None) -> None:
        for net in _named(element, "net"):
            # Ports that NCCL has joined to another port stay in the file with net="0".
            if "dev" not in net.attributes or net.text("net") == "0":
                continue
            self.nics.append(
                Nic(
                    name=net.text("name"),
                    dev=net.number("dev", 0, 1 << 16),
                    cpu=len(self.cpus) - 1,
                    pci=pci,
                    gb_s=max(0, net.number("speed", -1, 1 << 40, 0)) / 8000,
                    port=net.number("port", 0, 1 << 16, 0),
                    guid=net.text("guid"),
                    gdr=net.number("gdr", -1, 16, 0) > 0,
                )
            )


def _named(element: Element, name: str) -> Iterator[Element]:
    return (child for child in element.children if child.name == name)


def _c2c(position: int, element: Element) -> Iterator[C2c]:
    for child in _named(element, "c2c"):
        megabytes = child.number("bw", 0, 1 << 40)
        yield C2c(position, child.number("count", 0, 1024), megabytes / 1000)


def _bus_id(element: Element, key: str) -> str:
    if key not in element.attributes:
        raise ValueError(f"{element} has no {key}: a PCI bus id is expected")
    try:
        return bus_id(element.text(key))
    except ValueError as error:
        raise ValueError(f"{element}: {error}") from None


def _cores(element: Element) -> tuple[int, ...]:
    text = element.text("affinity")
    if not text:
        return ()
    if not re.fullmatch(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{1,8}){0,255}", text):
        raise ValueError(
            f"{element} has affinity={text[:40]!r}: groups of up to 8 hexadecimal digits are "
            f"expected, with commas"
        )
    mask = 0
    for group in text.split(","):
        mask = mask << 32 | int(group, 16)
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
