"""The map from ranks to hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from .. import decode
from ..decode import Within
from .peer import Peer

# The same maximum as in csrc/comm, and a number of 8 characters.
_Name = Annotated[str, Within(1, 256 + 8)]
_Json = tuple[tuple[_Name, ...], tuple[int, ...], bool]


@dataclass(frozen=True)
class Hosts:
    """The hosts of a group, numbered by their first ranks: the host of rank 0 is host 0.

    Attributes:
        names: of each host, all different.
        host_of: by rank, the number of its host.
        crowded: whether some machine is known to have fewer cores than ranks.
    """

    names: tuple[str, ...]
    host_of: tuple[int, ...]
    crowded: bool = False

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

    def to_json(self) -> str:
        """Returns the text for :meth:`from_json`."""
        return json.dumps([self.names, self.host_of, self.crowded], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, size: int) -> Hosts:
        """Returns the hosts of ``size`` ranks that ``text`` describes.

        Raises:
            ValueError: it does not describe these.
        """
        where = f"the text on the hosts of {size} ranks"
        names, host_of, crowded = decode.build(_Json, decode.load(text, where), where)
        good = len(host_of) == size and len(set(names)) == len(names)
        if not good or tuple(dict.fromkeys(host_of)) != tuple(range(len(names))):
            raise ValueError(f"{where} has {len(names)} names, and ranks on {host_of}"[:300])
        return cls(names, host_of, crowded)


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
    return Hosts(tuple(names), host_of, _crowded(peers))


def _crowded(peers: Sequence[Peer]) -> bool:
    """Returns whether ranks share cores; per machine, because its containers share cores, too."""
    machines: dict[str, list[Peer]] = {}
    for peer in peers:
        machines.setdefault(peer.host_key, []).append(peer)
    return any(
        len(ranks) > len({core for peer in ranks for core in peer.cores})
        for ranks in machines.values()
    )
