"""The location of a rank, as a record that it writes into the store of its group.

Another rank may read any bytes there, so every part of a record is checked.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch

from .. import decode, linux
from ..config import MOST_THREADS
from ..decode import Within

VERSION = 4
# Bytes of one record: room for the numbers of some thousands of cores.
MAX_BYTES = 1 << 16
MAX_TEXT = 256
Number = Annotated[int, Within(0, (1 << 63) - 1)]
Text = Annotated[str, Within(0, MAX_TEXT)]


@dataclass(frozen=True)
class Peer:
    """A rank, and the facts by which others decide whether they share memory with it.

    Attributes:
        rank: its number.
        host: the host's name; two hosts may have the same.
        boot_id: of the kernel, new at each boot; ranks with the same boot id are on one host.
        pid_namespace: inode of the process's PID namespace; 0: unknown.
        pid: process id in that namespace.
        cores: logical CPUs on which the process may run.
        network_namespace: inode of the process's network namespace; 0: unknown.
        named: the host's name in ``RINGKERN_HOST``; "" if that is not set.
        threads: the most threads for a large collective of CPU tensors.
        shares: whether it takes no more of them than its share of the cores.
    """

    rank: Number
    host: Text = ""
    boot_id: Text = ""
    pid_namespace: Number = 0
    pid: Number = 0
    cores: tuple[Number, ...] = ()
    network_namespace: Number = 0
    named: Text = ""
    threads: Annotated[int, Within(1, MOST_THREADS)] = 1
    shares: bool = True

    def to_json(self) -> str:
        """Returns the record that :meth:`from_json` reads."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, rank: int) -> Peer:
        """Reads the record of a rank.

        Raises:
            ValueError: it is no record, or that of another rank; the text names the rank.
        """
        where = f"the record of rank {rank}"
        if len(text) > MAX_BYTES:
            raise ValueError(f"{where} has {len(text)} bytes: at most {MAX_BYTES} are accepted")
        values = decode.load(text, where)
        if not isinstance(values, dict) or values.pop("version", None) != VERSION:
            raise ValueError(
                f"{where} is not of version {VERSION}: all ranks need the same ringkern"
            )
        peer: Peer = decode.build(cls, values, where)
        if peer.rank != rank:
            raise ValueError(f"{where} is of rank {peer.rank}: two ranks use the same number")
        return peer

    @property
    def host_key(self) -> str:
        """Returns the boot id, which ranks of one host share, or else the host's name."""
        return self.boot_id or self.host

    @property
    def memory_key(self) -> str:
        """Returns a text that is equal for ranks that can share memory.

        It is a name, or the machine and its network namespace: the Unix sockets at which ranks meet
        do not cross namespaces.
        """
        if self.named:
            return f"named {self.named}"
        return f"on {self.host_key} in {self.network_namespace}"

    def apart_from(self, other: Peer) -> str:
        """Returns why this rank and ``other`` cannot share memory; "" if no reason is known."""
        for what, mine, theirs in (
            ("boot id", self.boot_id, other.boot_id),
            ("network namespace", self.network_namespace, other.network_namespace),
        ):
            if mine and theirs and mine != theirs:
                return f"{what} {theirs} of {other.host}, {mine} of {self.host}"
        return ""


def this_peer(
    rank: int, *, named: str = "", threads: int | None = 1, proc_root: str | Path = "/proc"
) -> Peer:
    """Returns this process as a :class:`Peer`; an unknown fact keeps its default.

    Args:
        rank: its number.
        named: see :class:`Peer`.
        threads: the threads asked for; ``None``: its share of the cores.
        proc_root: the kernel's description of this process.
    """
    proc = Path(proc_root)
    cores = tuple(sorted(os.sched_getaffinity(0)))
    most = min(torch.get_num_threads(), len(cores), MOST_THREADS)
    return Peer(
        rank=rank,
        host=socket.gethostname()[:MAX_TEXT],
        boot_id=linux.text(proc / "sys/kernel/random/boot_id")[:MAX_TEXT],
        pid_namespace=_namespace(proc, "pid"),
        pid=os.getpid(),
        cores=cores,
        network_namespace=_namespace(proc, "net"),
        named=named,
        threads=most if threads is None else min(threads, most),
        shares=threads is None,
    )


def _namespace(proc: Path, kind: str) -> int:
    try:
        return (proc / "self/ns" / kind).stat().st_ino
    except OSError:
        return 0
