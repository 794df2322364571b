"""The map from ranks to hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from .. import decode
from ..config import MOST_THREADS
from ..decode import Within
from .peer import Peer

# The same maximum as in csrc/comm, and a number of 8 characters.
_Name = Annotated[str, Within(1, 256 + 8)]
_Threads = Annotated[int, Within(1, MOST_THREADS)]
_Json = tuple[tuple[_Name, ...], tuple[int, ...], bool, tuple[_Threads, ...]]


@dataclass(frozen=True)
class Hosts:
    """The hosts of a group, numbered by their first ranks: the host of rank 0 is host 0.

    Attributes:
        names: of each host, all different.
        host_of: by rank, the number of its host.
        crowded: whether some machine is known to have fewer cores than ranks.
        threads: by host, how many threads of each rank run a large collective of CPU tensors;
            empty: one.
    """

    names: tuple[str, ...]
    host_of: tuple[int, ...]
    crowded: bool = False
    threads: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Returns the number of hosts."""
        return len(self.names)

    def ranks_on(self, host: int) -> tuple[int, ...]:
        """Returns the group's ranks on ``host``, rising; the index of a rank is its local rank."""
        return tuple(rank for rank, on in enumerate(self.host_of) if on == host)

    def name_of(self, rank: int) -> str:
        """Returns the name of the host of ``rank``."""
        return self.names[self.host_of[rank]]

    def threads_of(self, rank: int) -> int:
        """Returns the threads of ``rank``, which are those of every rank on its host."""
        return self.threads[self.host_of[rank]] if self.threads else 1

    def to_json(self) -> str:
        """Returns the text for :meth:`from_json`."""
        parts = [self.names, self.host_of, self.crowded, self.threads]
        return json.dumps(parts, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, size: int) -> Hosts:
        """Returns the hosts of ``size`` ranks that ``text`` describes.

        Raises:
            ValueError: it does not describe these.
        """
        where = f"the text on the hosts of {size} ranks"
        names, host_of, crowded, threads = decode.read(_Json, text, where)
        good = len(host_of) == size and len(set(names)) == len(names)
        good = good and len(threads) in (0, len(names))
        if not good or tuple(dict.fromkeys(host_of)) != tuple(range(len(names))):
            raise ValueError(f"{where} has {len(names)} names, and ranks on {host_of}"[:300])
        return cls(names, host_of, crowded, threads)


def hosts_of(peers: Sequence[Peer]) -> Hosts:
    """Returns the hosts of these ranks.

    Args:
        peers: all ranks, by rank.

    Raises:
        ValueError: ranks with the same ``RINGKERN_HOST`` cannot share memory; the text names them.
    """
    first: dict[str, Peer] = {}
    for peer in peers:
        other = first.setdefault(peer.memory_key, peer)
        if peer.named and (difference := peer.apart_from(other)):
            raise ValueError(
                f"rank {other.rank} and rank {peer.rank} have RINGKERN_HOST={peer.named}, and "
                f"cannot share memory: {difference}. Give the ranks of each machine and container "
                "a name of their own, or leave it out"
            )
    numbers = {key: number for number, key in enumerate(first)}
    names: list[str] = []
    for peer in first.values():
        base = peer.named or peer.host or "unknown"
        name, times = base, 1
        while name in names:  # containers of one machine may have its name
            times += 1
            name = f"{base}#{times}"
        names.append(name)
    host_of = tuple(numbers[peer.memory_key] for peer in peers)
    # Per machine, because its containers share cores, too.
    machines: dict[str, list[Peer]] = {}
    for peer in peers:
        machines.setdefault(peer.host_key, []).append(peer)
    cores = {key: _cores_of(ranks) / len(ranks) for key, ranks in machines.items()}
    threads = tuple(
        min(_threads_of(peer, cores[peer.host_key]) for peer in peers if peer.memory_key == key)
        for key in first
    )
    crowded = any(share < 1 for share in cores.values())
    return Hosts(tuple(names), host_of, crowded, threads if any(n > 1 for n in threads) else ())


def _cores_of(peers: Sequence[Peer]) -> int:
    return len({core for peer in peers for core in peer.cores})


def _threads_of(peer: Peer, share_of_cores: float) -> int:
    return max(1, min(peer.threads, int(share_of_cores))) if peer.shares else peer.threads
