"""Matrices as ``nvidia-smi topo -m`` prints them, with bandwidths."""

from __future__ import annotations

from ..fabric import Fabric
from . import links
from .graph import Machine

_LEGEND = {
    "X": "the same rank",
    "NVL": "NVLinks from GPU to GPU, and how many",
    "NVS": "NVLinks over NVSwitches, and how many",
    "C2C": "each GPU's own link to their CPU",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches, not the CPU",
    "PHB": "PCIe and their CPU",
    "SYS": "PCIe, and what is between two NUMA nodes",
    "LOC": "one device",
    "-": "no way from memory to memory",
}


def describe(what: Machine | Fabric) -> str:
    """Returns a description of ``what``, a machine or the links between ranks, in a few lines.

    GB/s are those of one direction of a pair without other traffic; each cell has them after the
    kind of the slowest link.
    """
    return _fabric(what, "rank") if isinstance(what, Fabric) else _machine(what)


def _machine(machine: Machine) -> str:
    parts = []
    for position, cpu in enumerate(machine.cpus):
        name = f"cpu{cpu.numa}" + (f" of {cpu.host}" if cpu.host else "")
        caches = ", ".join(f"L{c.level} {_size(c.size)} for {c.cores}" for c in cpu.caches)
        cores = f"{len(cpu.cores)} cores" if cpu.cores else "cores not known"
        own = [f"gpu{at}" for at in range(len(machine.gpus)) if machine.cpu_of(at) is cpu]
        own += [n.name for n in machine.nics if n.cpu == position]
        parts.append(f"{name}: " + "; ".join(filter(None, (cores, caches, " ".join(own)))))
    for position, gpu in enumerate(machine.gpus):
        cc = f"cc {gpu.cc // 10}.{gpu.cc % 10}" if gpu.cc else "cc not known"
        link = machine.pci[gpu.pci]
        name = f"{gpu.name}, " if gpu.name else ""
        parts.append(
            f"gpu{position}: {name}{cc}, {machine.bus_id_of(position)}, PCIe {link.gb_s:g} GB/s"
        )
    if machine.gpus:
        parts.append(_fabric(machine.fabric(), "gpu"))
    elif len(machine.cpus) > 1 and len({cpu.host for cpu in machine.cpus}) == 1:
        parts.append(_fabric(machine.cpu_fabric([cpu.numa for cpu in machine.cpus]), "cpu"))
    refused = [p for p in machine.p2p if p.write not in ("", "OK")]
    for status in sorted({p.write for p in refused}):
        pairs = " ".join(f"gpu{p.gpu}>gpu{p.other}" for p in refused if p.write == status)
        parts.append(f"the driver refuses peer access ({status}): {pairs}")
    notes = list(machine.notes)
    if len(machine.cpus) > 1 and any(cpu.interconnect_gb_s is None for cpu in machine.cpus):
        notes.append(
            f"the bandwidth between NUMA nodes of this CPU is not known: it counts as "
            f"{links.INTERCONNECT_UNKNOWN_GB_S:g} GB/s"
        )
    parts.append("\n".join(f"not found: {note}" for note in notes) or "not found: nothing")
    return "\n".join(parts)


def _fabric(fabric: Fabric, word: str) -> str:
    names = [f"{word}{number}" for number in range(fabric.size)]
    cells = [["", *names]]
    used = {"X"}
    for a in range(fabric.size):
        row = [names[a]]
        for b in range(fabric.size):
            kind = "X" if a == b else fabric.kinds.get((a, b), "-")
            used.add(kind)
            row.append(_cell(fabric, a, b, kind))
        cells.append(row)
    width = max(len(cell) for row in cells for cell in row)
    lines = ["".join(f"{cell:<{width + 2}}" for cell in row).rstrip() for row in cells]
    legend = [f"{kind:<3} = {text}" for kind, text in _LEGEND.items() if kind in used]
    return "\n".join([*lines, "", *legend])


def _cell(fabric: Fabric, a: int, b: int, kind: str) -> str:
    if kind in ("X", "-", "LOC"):
        return kind
    lanes = ""
    if kind in ("NVL", "NVS"):
        lanes = str(min(fabric.edges[edge].lanes for edge in fabric.routes[a, b]))
    return f"{kind}{lanes} {fabric.gb_s(a, b):.4g}"


def _size(number: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >> shift:
            return f"{number / (1 << shift):g} {unit}"
    return f"{number} B"
