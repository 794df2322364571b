"""Reads NUMA nodes and PCI devices from ``/sys``.

Any of it may be missing, as in a container: then a value stays open, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...linux import cores, data_caches, text
from . import links
from .graph import Cache, Cpu, Nic, Pci, bus_id

_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def cpus(root: Path, cpuinfo: Path, arch: str) -> tuple[list[Cpu], list[str]]:
    """Returns the NUMA nodes that have cores, and notes.

    Args:
        root: the folder /sys.
        cpuinfo: the file /proc/cpuinfo.
        arch: as in ``platform.machine()``.
    """
    arch = {"aarch64": "arm64", "ppc64le": "ppc64", "AMD64": "x86_64"}.get(arch, arch)
    vendor, family, model = _identity(text(cpuinfo))
    system = root / "devices/system"
    numbers = sorted(
        int(path.name[4:]) for path in system.glob("node/node*") if path.name[4:].isdigit()
    )
    found = []
    for numa in numbers:
        node = system / f"node/node{numa}"
        own = cores(text(node / "cpulist"))
        if not own:
            continue  # memory without cores, such as that of a GPU or an expander
        distances = tuple(int(d) for d in re.findall(r"\d{1,5}", text(node / "distance")))
        caches = _caches(root, own[0])
        found.append(Cpu(numa, "", own, arch, vendor, family, model, distances, caches))
    if found:
        return found, []
    own = cores(text(system / "cpu/online"))
    caches = _caches(root, own[0]) if own else ()
    note = f"{system}/node names no NUMA node with cores: all cores count as one"
    return [Cpu(0, "", own, arch, vendor, family, model, (), caches)], [note]


def _identity(cpuinfo: str) -> tuple[str, int, int]:
    """Returns vendor, family and model of the first core."""
    values = dict(re.findall(r"^([a-z_ ]+?)\s*: (\S+)", cpuinfo, re.MULTILINE)[:32][::-1])

    def number(key: str) -> int:
        value = values.get(key, "")
        return int(value) if re.fullmatch(r"\d{1,5}", value) else 0

    return values.get("vendor_id", ""), number("cpu family"), number("model")


def _caches(root: Path, core: int) -> tuple[Cache, ...]:
    return tuple(Cache(*cache) for cache in data_caches(root, core))


class PciTree:
    """The requested devices, and the bridges above them.

    A switch appears as one bridge towards the CPU and one for each device below. Only the first is
    kept, as in NCCL's files, and no root port. So every other bridge above a device is left out.
    """

    def __init__(self, root: Path, cpus: list[Cpu]) -> None:
        self.devices: list[Pci] = []
        self.cpus = cpus
        self.notes: list[str] = []
        self._root = root / "bus/pci/devices"
        self._found: dict[str, int] = {}

    def of_class(self, *starts: str, vendor: str = "") -> Iterator[str]:
        """Yields the bus ids of devices whose class starts with one of ``starts``, in order."""
        for device in sorted(self._root.glob("*")):
            if not text(device / "class").startswith(starts):
                continue
            if _BUS_ID.fullmatch(device.name) and vendor in ("", text(device / "vendor")):
                yield bus_id(device.name)

    def add(self, bus: str) -> int:
        """Returns the position of a device; reads it and all above it unless that was done."""
        if bus in self._found:
            return self._found[bus]
        folder = self._root / bus
        try:
            path = folder.resolve(strict=True)
        except (OSError, RuntimeError):
            self.notes.append(
                f"{folder} is not there: how {bus} is linked with the CPU is not known"
            )
            return self._keep(Pci(bus, 0))
        chain = [part for part in path.parents if _BUS_ID.fullmatch(part.name)]
        above = None
        for bridge in reversed(chain[1::2]):
            if (known := self._found.get(bridge.name)) is None:
                known = self._keep(self._device(bridge, above))
            above = known
        return self._keep(self._device(path, above))

    def _keep(self, device: Pci) -> int:
        self.devices.append(device)
        self._found[device.bus_id] = len(self.devices) - 1
        return len(self.devices) - 1

    def _device(self, path: Path, above: int | None) -> Pci:
        ends = [folder for folder in (path, path.parent) if (folder / "max_link_speed").exists()]
        speeds = [text(folder / "max_link_speed") for folder in ends]
        known = [(gt_s, s) for s in speeds if (gt_s := links.pcie_gt_s(s)) is not None]
        widths = [int(w) for f in ends if (w := text(f / "max_link_width")).isdigit() and int(w)]
        width = min(widths, default=0)
        if not known or not 0 < width <= 64:
            self.notes.append(
                f"the PCIe link of {path.name} is not known in full: what is missing counts as "
                f"{links.PCIE_UNKNOWN_GT_S:g} GT/s or {links.PCIE_UNKNOWN_WIDTH} lanes"
            )
        now = text(path / "current_link_width")
        if now.isdigit() and 0 < int(now) < width:
            self.notes.append(f"{path.name} uses {now} of the {width} lanes of its PCIe link")
            width = int(now)
        return Pci(
            bus_id=path.name,
            cpu=self._cpu(path),
            above=above,
            pci_class=text(path / "class")[:10],
            vendor=text(path / "vendor")[:10],
            device=text(path / "device")[:10],
            subsystem_vendor=text(path / "subsystem_vendor")[:10],
            subsystem_device=text(path / "subsystem_device")[:10],
            speed=min(known)[1] if known else "",
            width=width if width <= 64 else 0,
        )

    def _cpu(self, path: Path) -> int:
        """Returns the position of a device's NUMA node, or of a separate node if it is unknown."""
        numa = text(path / "numa_node")
        if not re.fullmatch(r"\d{1,5}", numa):
            numa = "-1"
        for position, cpu in enumerate(self.cpus):
            if numa == str(cpu.numa):
                return position
        if len(self.cpus) == 1:
            return 0
        self.notes.append(f"the NUMA node of {path.name} is not known: it counts as one apart")
        first = self.cpus[0]
        self.cpus.append(
            Cpu(int(numa), "", (), first.arch, first.vendor, first.family, first.model)
        )
        return len(self.cpus) - 1


def nics(root: Path, tree: PciTree) -> list[Nic]:
    """Returns the ports of network cards: of InfiniBand and RoCE, and others, by name."""
    found: list[Nic] = []
    seen = set()
    for kind in ("infiniband", "net"):
        for folder in sorted((root / "class" / kind).glob("*")):
            device = (folder / "device").resolve()
            if not _BUS_ID.fullmatch(device.name) or (kind == "net" and device.name in seen):
                continue
            seen.add(device.name)
            if kind == "infiniband":
                rate = re.match(r"(\d{1,5})(?:\.\d+)? Gb/sec", text(folder / "ports/1/rate"))
                gb_s = int(rate[1]) / 8 if rate else 0.0
            else:
                speed = text(folder / "speed")
                gb_s = int(speed) / 8000 if re.fullmatch(r"\d{1,9}", speed) else 0.0
            pci = tree.add(bus_id(device.name))
            port = int(kind == "infiniband")
            found.append(Nic(folder.name, len(found), tree.devices[pci].cpu, pci, gb_s, port))
    return found
