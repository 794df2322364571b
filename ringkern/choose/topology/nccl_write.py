"""Writes a machine as NCCL does: see :mod:`nccl_xml`."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

from .graph import Cpu, Gpu, Machine, Nic
from .nccl_xml import VERSION


def write(machine: Machine, path: str | Path) -> None:
    """Writes a machine for NCCL to read, as by ``NCCL_TOPO_FILE``.

    Args:
        machine: what to write.
        path: of the file, which is replaced.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).write_text(to_xml(machine), encoding="utf-8")


def to_xml(machine: Machine) -> str:
    """A machine as NCCL writes it; a GPU's rank is its position.

    What NCCL's files have no place for is left out: names and UUIDs of GPUs, who may reach whose
    memory, distances, caches, notes.
    """
    return "\n".join(_Writer(machine).lines) + "\n"


class _Writer:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.lines: list[str] = []
        name: dict[str, object] = {"name": machine.name} if machine.name else {}
        self._open(0, "system", {"version": VERSION, **name})
        for position, cpu in enumerate(machine.cpus):
            self._cpu(position, cpu)
        self.lines.append("</system>")

    def _open(
        self, depth: int, element: str, attributes: dict[str, object], end: str = ">"
    ) -> None:
        text = "".join(f" {key}={quoteattr(str(value))}" for key, value in attributes.items())
        self.lines.append(f"{'  ' * depth}<{element}{text}{end}")

    def _cpu(self, position: int, cpu: Cpu) -> None:
        attributes: dict[str, object] = {"host_hash": cpu.host} if cpu.host else {}
        attributes["numaid"] = cpu.numa
        if cpu.cores:
            attributes["affinity"] = _affinity(cpu.cores)
        for key, value in (("arch", cpu.arch), ("vendor", cpu.vendor)):
            if value:
                attributes[key] = value
        if cpu.vendor:
            attributes.update(familyid=cpu.family, modelid=cpu.model)
        self._open(1, "cpu", attributes)
        for at, pci in enumerate(self.machine.pci):
            if pci.cpu == position and pci.above is None:
                self._pci(2, at)
        self._nics(2, [n for n in self.machine.nics if n.cpu == position and n.pci is None])
        self.lines.append("  </cpu>")

    def _pci(self, depth: int, position: int) -> None:
        pci = self.machine.pci[position]
        attributes: dict[str, object] = {"busid": pci.bus_id, "class": pci.pci_class}
        for key in ("vendor", "device", "subsystem_vendor", "subsystem_device"):
            if value := getattr(pci, key):
                attributes[key] = value
        attributes.update(link_speed=pci.speed, link_width=pci.width)
        self._open(depth, "pci", attributes)
        for at, gpu in enumerate(self.machine.gpus):
            if gpu.pci == position:
                self._gpu(depth + 1, at, gpu)
        self._nics(depth + 1, [n for n in self.machine.nics if n.pci == position])
        for at, below in enumerate(self.machine.pci):
            if below.above == position:
                self._pci(depth + 1, at)
        self.lines.append(f"{'  ' * depth}</pci>")

    def _gpu(self, depth: int, position: int, gpu: Gpu) -> None:
        attributes: dict[str, object] = {"dev": gpu.dev}
        if gpu.cc:
            attributes["sm"] = gpu.cc
        self._open(depth, "gpu", {**attributes, "rank": position, "gdr": int(gpu.gdr)})
        for link in (n for n in self.machine.nvlinks if n.gpu == position):
            where: dict[str, object] = {
                "target": link.target,
                "count": link.lanes,
                "tclass": link.target_class,
            }
            self._open(depth + 1, "nvlink", where, "/>")
        for c2c in (c for c in self.machine.c2c if c.gpu == position):
            lanes: dict[str, object] = {"bw": round(c2c.gb_s * 1000), "count": c2c.lanes}
            self._open(depth + 1, "c2c", lanes, "/>")
        self.lines.append(f"{'  ' * depth}</gpu>")

    def _nics(self, depth: int, nics: list[Nic]) -> None:
        if not nics:
            return
        self._open(depth, "nic", {})
        for nic in nics:
            net: dict[str, object] = {"name": nic.name, "dev": nic.dev}
            net.update(speed=round(nic.gb_s * 8000), port=nic.port)
            if nic.guid:
                net["guid"] = nic.guid
            self._open(depth + 1, "net", {**net, "gdr": int(nic.gdr)}, "/>")
        self.lines.append(f"{'  ' * depth}</nic>")


def _affinity(cores: tuple[int, ...]) -> str:
    mask = sum(1 << core for core in cores)
    groups = []
    while mask:
        groups.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join(reversed(groups))
