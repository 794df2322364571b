"""Makes the :class:`~ringkern.choose.fabric.Fabric` of ranks on a machine's GPUs or CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..fabric import Edge, Fabric
from . import links
from .graph import Cpu, Machine


class _Route(NamedTuple):
    edges: tuple[Edge, ...]
    kind: str


class _Way(NamedTuple):
    """The edges from a GPU to its CPU, and back."""

    up: tuple[Edge, ...]
    down: tuple[Edge, ...]
    kind: str  # PCI, C2C, or NVL: an NVLink to the CPU

    @property
    def gb_s(self) -> float:
        return min(edge.gb_s for edge in self.up)


def gpu_fabric(machine: Machine, gpus: Sequence[int] | None) -> Fabric:
    """See :meth:`ringkern.choose.topology.Machine.fabric`."""
    chosen = range(len(machine.gpus)) if gpus is None else tuple(gpus)
    for gpu in chosen:
        if not 0 <= gpu < len(machine.gpus):
            raise ValueError(
                f"GPU {gpu} is not in the machine, which has {len(machine.gpus)} "
                f"(counted from 0, by position)"
            )
    router = _Router(machine)
    return _fabric(len(chosen), lambda a, b: router.route(chosen[a], chosen[b]))


def cpu_fabric(machine: Machine, numa_of_rank: Sequence[int]) -> Fabric:
    """See :meth:`ringkern.choose.topology.Machine.cpu_fabric`."""
    if len({cpu.host for cpu in machine.cpus}) > 1:
        raise ValueError("the machine is several hosts: NUMA nodes alone do not say which is meant")
    cpus = {cpu.numa: cpu for cpu in machine.cpus}
    for numa in numa_of_rank:
        if numa not in cpus:
            raise ValueError(
                f"NUMA node {numa} is not in the machine, which has "
                f"{', '.join(map(str, sorted(cpus))) or 'none'}"
            )

    def route(a: int, b: int) -> _Route:
        source, target = cpus[numa_of_rank[a]], cpus[numa_of_rank[b]]
        if source is target:
            return _Route((Edge(f"cpu{source.numa} memory", links.LOCAL_GB_S),), "LOC")
        return _Route((_between_cpus(machine, source, target),), "SYS")

    return _fabric(len(numa_of_rank), route)


def _fabric(size: int, route: Callable[[int, int], _Route | None]) -> Fabric:
    edges: dict[Edge, int] = {}
    routes: dict[tuple[int, int], tuple[int, ...]] = {}
    kinds: dict[tuple[int, int], str] = {}
    for pair in ((a, b) for a in range(size) for b in range(size) if a != b):
        if found := route(*pair):
            routes[pair] = tuple(edges.setdefault(edge, len(edges)) for edge in found.edges)
            kinds[pair] = found.kind
    return Fabric(size, tuple(edges), routes, kinds)


def _host_prefix(machine: Machine, cpu: Cpu) -> str:
    hosts = list(dict.fromkeys(cpu.host for cpu in machine.cpus))
    return f"host{hosts.index(cpu.host)}." if len(hosts) > 1 else ""


def _between_cpus(machine: Machine, source: Cpu, target: Cpu) -> Edge:
    """Returns a link of its own for each pair of NUMA nodes, as NCCL does."""
    prefix = _host_prefix(machine, source)
    gb_s = source.interconnect_gb_s or links.INTERCONNECT_UNKNOWN_GB_S
    return Edge(f"{prefix}cpu{source.numa}>{prefix}cpu{target.numa} interconnect", gb_s)


class _Router:
    """Chooses the route between two GPUs of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # If several ranks share a GPU, the first record has its links, as in NCCL's files.
        self._first: dict[int, int] = {}
        for position, gpu in enumerate(machine.gpus):
            self._first.setdefault(gpu.pci, position)
        self._refused = {
            (self._device(p.gpu), self._device(p.other))
            for p in machine.p2p
            if p.write not in ("", "OK")
        }

    def route(self, source: int, target: int) -> _Route | None:
        a, b = self._device(source), self._device(target)
        if a == b:
            return _Route((Edge(f"{self._name(a)} memory", links.LOCAL_GB_S),), "LOC")
        if (a, b) in self._refused:
            return None
        return self._nvlink(a, b) or self._nvswitch(a, b) or self._pcie(a, b)

    def _device(self, gpu: int) -> int:
        return self._first[self.machine.gpus[gpu].pci]

    def _name(self, gpu: int) -> str:
        cpu = self.machine.cpu_of(gpu)
        return f"{_host_prefix(self.machine, cpu)}gpu{self.machine.gpus[gpu].dev}"

    def _nvlink(self, a: int, b: int) -> _Route | None:
        bus_id = self.machine.bus_id_of(b)
        if self.machine.cpu_of(a).host != self.machine.cpu_of(b).host:
            return None
        found = [n for n in self.machine.nvlinks if (n.gpu, n.target, n.end) == (a, bus_id, "gpu")]
        if not any(n.lanes for n in found):
            return None
        gb_s = sum(n.lanes * n.gb_s for n in found)
        name = f"{self._name(a)}>{self._name(b)} NVLink"
        return _Route((Edge(name, gb_s, sum(n.lanes for n in found)),), "NVL")

    def _nvswitch(self, a: int, b: int) -> _Route | None:
        up, down = self._lanes_to(a, "switch"), self._lanes_to(b, "switch")
        if up is None or down is None:
            return None
        return _Route(
            (
                Edge(f"{self._name(a)}>switch NVLink", *up),
                Edge(f"switch>{self._name(b)} NVLink", *down),
            ),
            "NVS",
        )

    def _lanes_to(self, gpu: int, end: str) -> tuple[float, int] | None:
        """Returns GB/s and lanes of all NVLinks of a GPU to ends of one kind."""
        found = [n for n in self.machine.nvlinks if n.gpu == gpu and n.end == end and n.lanes]
        if not found:
            return None
        return sum(n.lanes * n.gb_s for n in found), sum(n.lanes for n in found)

    def _pcie(self, a: int, b: int) -> _Route | None:
        """Returns the route below one PCIe switch, or through one or two CPUs."""
        source, target = self.machine.cpu_of(a), self.machine.cpu_of(b)
        if source.host != target.host:
            return None
        up, down = self._way(a), self._way(b)
        if source is not target:
            between = _between_cpus(self.machine, source, target)
            return _Route((*up.up, between, *down.down), "SYS")
        if up.kind == down.kind == "PCI":
            return self._below_one_cpu(a, b)
        return _Route((*up.up, *down.down), "C2C" if up.kind == down.kind == "C2C" else "PHB")

    def _below_one_cpu(self, a: int, b: int) -> _Route:
        chain_a, chain_b = self._bridges(a), self._bridges(b)
        common = {pci for pci in chain_a if pci in chain_b}
        up = tuple(self._link(a, pci)[0] for pci in chain_a if pci not in common)
        down = tuple(self._link(b, pci)[1] for pci in reversed(chain_b) if pci not in common)
        if not common:
            return _Route((*up, *down), "PHB")
        return _Route((*up, *down), "PIX" if len(up) == len(down) == 1 else "PXB")

    def _bridges(self, gpu: int) -> list[int]:
        """Returns the positions of a GPU's own PCI device and of the bridges above it, upwards."""
        chain: list[int] = []
        pci: int | None = self.machine.gpus[gpu].pci
        while pci is not None:
            chain.append(pci)
            pci = self.machine.pci[pci].above
        return chain

    def _link(self, gpu: int, pci: int) -> tuple[Edge, Edge]:
        """Returns both directions of the link above one of the GPU's bridges, or above the GPU."""
        device = self.machine.pci[pci]
        cpu = self.machine.cpus[device.cpu]
        prefix = _host_prefix(self.machine, cpu)
        own = self.machine.gpus[gpu].pci == pci
        below = self._name(gpu) if own else f"{prefix}{device.bus_id}"
        above = (
            f"{prefix}cpu{cpu.numa}"
            if device.above is None
            else f"{prefix}{self.machine.pci[device.above].bus_id}"
        )
        gb_s, lanes = device.gb_s, device.width or links.PCIE_UNKNOWN_WIDTH
        return (
            Edge(f"{below}>{above} PCIe", gb_s, lanes),
            Edge(f"{above}>{below} PCIe", gb_s, lanes),
        )

    def _way(self, gpu: int) -> _Way:
        """Returns the fastest route from a GPU to its CPU; PCIe if others are no faster."""
        both = [self._link(gpu, pci) for pci in self._bridges(gpu)]
        ways = [_Way(tuple(e[0] for e in both), tuple(e[1] for e in reversed(both)), "PCI")]
        name, cpu = self._name(gpu), self.machine.cpu_of(gpu)
        end = f"{_host_prefix(self.machine, cpu)}cpu{cpu.numa}"
        own = [c for c in self.machine.c2c if c.gpu == gpu and c.lanes]
        c2c = (sum(c.lanes * c.gb_s for c in own), sum(c.lanes for c in own)) if own else None
        for found, kind in ((c2c, "C2C"), (self._lanes_to(gpu, "cpu"), "NVL")):
            if found:
                word = "C2C" if kind == "C2C" else "NVLink"
                up = Edge(f"{name}>{end} {word}", *found)
                down = Edge(f"{end}>{name} {word}", *found)
                ways.append(_Way((up,), (down,), kind))
        return max(ways, key=lambda way: way.gb_s)
