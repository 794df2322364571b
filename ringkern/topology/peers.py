"""Who the ranks are: where each runs, and on which device.

Each rank writes a :class:`Peer` into a store of torch.distributed and reads everybody's. What it
reads may be any bytes, so all of it is checked.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from .. import decode, linux
from ..decode import Within
from .graph import Machine, bus_id

if TYPE_CHECKING:
    from ..fabric import Fabric

VERSION = 2
# Of one peer's JSON: room for the numbers of some thousands of cores.
MAX_BYTES = 1 << 16
Number = Annotated[int, Within(-1, (1 << 63) - 1)]
MAX_TEXT = 256
Text = Annotated[str, Within(0, MAX_TEXT)]


class Store(Protocol):
    """What is used of a store of torch.distributed."""

    def set(self, key: str, value: Any) -> Any:
        """Keeps ``value`` under ``key``; what it returns is not looked at."""

    def get(self, key: str) -> bytes:
        """What is under ``key``; waits for it."""

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> Any:
        """Until all ``keys`` are there; raises after the timeout."""


@dataclass(frozen=True)
class Peer:
    """A rank.

    Attributes:
        rank: its number.
        host: the host's name; two hosts may have the same.
        boot_id: of the kernel, anew at each boot; ranks with the same are on one host.
        pid_namespace: inode of the process's PID namespace; 0: not known.
        pid: process id in that namespace.
        device: "cpu" or "cuda".
        index: of the device among those that the process sees; 0 for a CPU.
        uuid: of the GPU, as "GPU-..."; "" for a CPU, or not known.
        bus_id: of the GPU, as "0000:1b:00.0"; "" for a CPU, or not known.
        numa: number of the NUMA node of the device, or in which the process may run; -1: not
            known, or in several.
        cores: logical CPUs on which the process may run.
        network_namespace: inode of the process's network namespace; 0: not known.
        named: how the rank's user calls its host, with ``RINGKERN_HOST``; "" where that is not set.
    """

    rank: Number
    host: Text = ""
    boot_id: Text = ""
    pid_namespace: Number = 0
    pid: Number = 0
    device: Literal["cpu", "cuda"] = "cpu"
    index: Number = 0
    uuid: Text = ""
    bus_id: Text = ""
    numa: Number = -1
    cores: tuple[Number, ...] = ()
    network_namespace: Number = 0
    named: Text = ""

    def to_json(self) -> str:
        """For :meth:`from_json`."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, rank: int) -> Peer:
        """The peer that a rank has written.

        Raises:
            ValueError: it is not one, or another rank's; the text names the rank.
        """
        where = f"what rank {rank} says of itself"
        if len(text) > MAX_BYTES:
            raise ValueError(f"{where} has {len(text)} bytes: at most {MAX_BYTES} are accepted")
        values = decode.load(text, where)
        if not isinstance(values, dict) or values.pop("version", None) != VERSION:
            raise ValueError(
                f"{where} is not of version {VERSION}: all ranks need the same ringkern"
            )
        peer: Peer = decode.build(cls, values, where)
        peer._check(where, rank)
        return peer

    def _check(self, where: str, rank: int) -> None:
        if self.rank != rank:
            raise ValueError(f"{where} is of rank {self.rank}: two ranks use the same number")
        if self.bus_id and (not self._has_bus_id() or self.bus_id != bus_id(self.bus_id)):
            raise ValueError(f"{where}: bus_id {self.bus_id!r} has to look like 0000:1b:00.0")

    def _has_bus_id(self) -> bool:
        try:
            return bool(bus_id(self.bus_id))
        except ValueError:
            return False

    @property
    def host_key(self) -> str:
        """What ranks of one host have in common, which is the boot id, else the host's name."""
        return self.boot_id or self.host

    @property
    def memory_key(self) -> str:
        """What those ranks have in common that share memory, which is a name, or else the machine.

        And its network namespace: the Unix sockets at which ranks meet do not cross these.
        """
        if self.named:
            return f"named {self.named}"
        return f"on {self.host_key} in {self.network_namespace}"

    def apart_from(self, other: Peer) -> str:
        """Why this rank and ``other`` cannot share memory, in words; "" where nothing is known."""
        for what, mine, theirs in (
            ("boot id", self.boot_id, other.boot_id),
            ("network namespace", self.network_namespace, other.network_namespace),
        ):
            if mine and theirs and mine != theirs:
                return f"{what} {theirs} of {other.host}, {mine} of {self.host}"
        return ""

    def shares_device(self, other: Peer) -> bool:
        """Whether the other rank uses the same GPU: by what it is, not by how a process counts."""
        if "cpu" in (self.device, other.device) or self.host_key != other.host_key:
            return False
        if self.bus_id and other.bus_id:
            # Parts of one GPU (MIG) have UUIDs of their own, and one bus id.
            return self.bus_id == other.bus_id
        return bool(self.uuid) and self.uuid == other.uuid


def cuda_identity(properties: Any) -> tuple[str, str]:
    """UUID and bus id of a GPU, for :func:`describe_self`; "" for what is not known.

    Args:
        properties: what ``torch.cuda.get_device_properties`` gives.
    """
    uuid = str(getattr(properties, "uuid", ""))
    if uuid and not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    numbers = [getattr(properties, f"pci_{n}_id", None) for n in ("domain", "bus", "device")]
    if any(number is None for number in numbers):
        return uuid, ""
    domain, bus, device = (int(number or 0) for number in numbers)
    return uuid, bus_id(f"{domain:04x}:{bus:02x}:{device:02x}.0")


def describe_self(
    rank: int,
    *,
    device: Literal["cpu", "cuda"] = "cpu",
    index: int = 0,
    uuid: str = "",
    bus: str = "",
    named: str = "",
    sys_root: str | Path = "/sys",
    proc_root: str | Path = "/proc",
) -> Peer:
    """This process as a :class:`Peer`; what is not known stays as it is by default.

    Args:
        rank: its number.
        device, index: as in :class:`Peer`.
        uuid, bus: of the GPU, as CUDA or torch tells them, in any spelling of a bus id.
        named: as in :class:`Peer`.
        sys_root, proc_root: where the kernel describes the machine and this process.
    """
    bus = bus_id(bus) if bus else ""
    proc = Path(proc_root)
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    return Peer(
        rank=rank,
        host=socket.gethostname()[:MAX_TEXT],
        boot_id=linux.text(proc / "sys/kernel/random/boot_id")[:MAX_TEXT],
        pid_namespace=_namespace(proc, "pid"),
        pid=os.getpid(),
        device=device,
        index=index,
        uuid=uuid,
        bus_id=bus,
        numa=_numa(Path(sys_root), bus, allowed),
        cores=allowed,
        network_namespace=_namespace(proc, "net"),
        named=named,
    )


def _namespace(proc: Path, kind: str) -> int:
    """Inode of this process's namespace of that kind; 0: not known."""
    try:
        return (proc / "self/ns" / kind).stat().st_ino
    except OSError:
        return 0


def _numa(root: Path, bus: str, allowed: tuple[int, ...]) -> int:
    """The NUMA node of a GPU; else the only one that has all allowed cores."""
    if bus:
        found = linux.text(root / "bus/pci/devices" / bus / "numa_node")
        return int(found) if re.fullmatch(r"\d{1,5}", found) else -1
    for node in sorted((root / "devices/system/node").glob("node*")):
        own = linux.cores(linux.text(node / "cpulist"))
        if node.name[4:].isdigit() and set(allowed) <= set(own):
            return int(node.name[4:])
    return -1


def gather(
    store: Store, prefix: str, rank: int, size: int, timeout: float, peer: Peer | None = None
) -> tuple[Peer, ...]:
    """Everybody's :class:`Peer`, by rank. All ranks have to call it, with a prefix of that call.

    Args:
        store: of torch.distributed.
        prefix: of the keys in it.
        rank, size: this rank's number, and how many there are.
        timeout: seconds for all ranks together.
        peer: this rank; :func:`describe_self` by default.

    Raises:
        TimeoutError: a rank has not come; the text names the first one.
        ValueError: what a rank wrote is no peer; the text names it.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not one of {size} ranks")
    own = peer or describe_self(rank)
    store.set(f"{prefix}/{rank}", own.to_json())
    deadline = time.monotonic() + timeout
    peers = []
    for other in range(size):
        key = f"{prefix}/{other}"
        left = datetime.timedelta(seconds=max(deadline - time.monotonic(), 0.001))
        try:
            store.wait([key], left)
        except (RuntimeError, TimeoutError) as error:
            raise TimeoutError(
                f"rank {other} has not said within {timeout:g} s where it runs: {error}"
            ) from error
        peers.append(Peer.from_json(store.get(key), other))
    return tuple(peers)


def fabric_of(machine: Machine, peers: Sequence[Peer]) -> Fabric:
    """What the ranks' data crosses, by rank.

    Args:
        machine: the host of the ranks, or several if NVSwitches join them.
        peers: all on GPUs or all on CPUs, by rank.

    Raises:
        ValueError: they are on GPUs and CPUs, on several hosts of which the machine is one, or on
            a device that is not in it; the text names the rank.
    """
    kinds = {peer.device for peer in peers}
    if len(kinds) > 1:
        on = "; ".join(f"{k}: rank {next(p.rank for p in peers if p.device == k)}" for k in kinds)
        raise ValueError(f"ranks are on several kinds of devices ({on})")
    if len({cpu.host for cpu in machine.cpus}) <= 1:
        for peer in peers:
            if peer.host_key != peers[0].host_key:
                raise ValueError(
                    f"rank {peer.rank} is on {peer.host}, rank {peers[0].rank} on "
                    f"{peers[0].host}: the machine is one host"
                )
    if kinds == {"cuda"}:
        return machine.fabric([_gpu(machine, peer) for peer in peers])
    only = machine.cpus[0].numa if len(machine.cpus) == 1 else None
    numas = []
    for peer in peers:
        numa = peer.numa if any(cpu.numa == peer.numa for cpu in machine.cpus) else only
        if numa is None:
            raise ValueError(
                f"rank {peer.rank} is not bound to one NUMA node of the machine, so that nothing "
                f"is known of its way to others: bind it, as with numactl --cpunodebind"
            )
        numas.append(numa)
    return machine.cpu_fabric(numas)


def _gpu(machine: Machine, peer: Peer) -> int:
    """Position of a rank's GPU."""
    for position, gpu in enumerate(machine.gpus):
        if peer.uuid and gpu.uuid == peer.uuid:
            return position
    hosts = {cpu.host for cpu in machine.cpus}
    if len(hosts) > 1 and peer.host_key not in hosts:
        raise ValueError(
            f"the machine is several hosts, and which one rank {peer.rank} is on is not known: "
            f"none is called {peer.host_key!r}"
        )
    host = peer.host_key if len(hosts) > 1 else None
    if peer.bus_id and (found := machine.find_gpu(peer.bus_id, host)) is not None:
        return found
    what = peer.bus_id or peer.uuid or f"device {peer.index}, of which neither UUID nor bus id"
    raise ValueError(f"the GPU of rank {peer.rank} ({what}) is not in the machine")
