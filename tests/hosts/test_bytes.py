"""The bytes between hosts, counted on their interfaces: no more than the theory predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.hosts.calls import integral, total
from tests.hosts.groups import Groups, Members
from tests.hosts.namespaces import Net
from tests.torch.rings import same

SIZE = 8 << 20  # bytes of the larger tensor
ELEMENTS = SIZE // 4
HEADERS = 0.08  # of TCP and IP, if no packets are merged, and of the ranks' own messages


def _all_reduce(rank: int, size: int, groups: Groups) -> None:
    x = integral(rank, ELEMENTS)
    ringkern.ring_all_reduce(x, group=groups.ring)
    assert same(x, total(size, ELEMENTS))


def _reduce_scatter(rank: int, size: int, groups: Groups) -> None:
    n = ELEMENTS // size
    out = torch.empty(n)
    dist.reduce_scatter_tensor(out, integral(rank, n * size), group=groups.ring)
    assert same(out, total(size, n * size)[rank * n : rank * n + n])


def _all_gather(rank: int, size: int, groups: Groups) -> None:
    n = ELEMENTS // size
    out = torch.empty(n * size)
    dist.all_gather_into_tensor(out, integral(rank, n), group=groups.ring)
    assert same(out, torch.cat([integral(r, n) for r in range(size)]))


def _broadcast(rank: int, size: int, groups: Groups) -> None:
    x = integral(rank, ELEMENTS)
    dist.broadcast(x, group=groups.ring, group_src=0)
    assert same(x, integral(0, ELEMENTS))


# The bytes that a host sends, in sizes of the larger tensor, with `h` hosts.
SENT: dict[Callable[[int, int, Groups], None], Callable[[int], float]] = {
    _all_reduce: lambda h: 2 * (h - 1) / h,
    _reduce_scatter: lambda h: (h - 1) / h,
    _all_gather: lambda h: (h - 1) / h,
}


class Crossed(NamedTuple):
    """The bytes that a host has sent in a call, in sizes of the larger tensor."""

    sent: float
    once: float  # without what TCP may have sent again

    def is_about(self, least: float) -> bool:
        return least <= self.sent and self.once < least * (1 + HEADERS)


def crossed(
    net: Net, members: Members, call: Callable[[int, int, Groups], None], hosts: int
) -> list[Crossed]:
    """Returns what each host has sent. The ranks have met before."""

    def counted() -> list[tuple[int, int]]:
        return [(net.bytes(host)[0], net.repeated(host)) for host in range(hosts)]

    members.run(call)
    before = counted()
    members.run(call)
    found = []
    for then, now in zip(before, counted()):
        sent, repeated = now[0] - then[0], now[1] - then[1]
        found.append(Crossed(sent / SIZE, (sent - repeated) / SIZE))
    return found


@pytest.mark.parametrize("call", SENT)
@pytest.mark.parametrize(("layout", "hosts"), [("2 hosts x 2", 2), ("3 hosts x 2", 3)])
def test_a_host_sends_the_least_bytes(
    net: Net,
    members: Callable[[str], Members],
    call: Callable[[int, int, Groups], None],
    layout: str,
    hosts: int,
) -> None:
    least = SENT[call](hosts)
    found = crossed(net, members(layout), call, hosts)
    assert all(host.is_about(least) for host in found), found


def test_a_broadcast_crosses_once(net: Net, members: Callable[[str], Members]) -> None:
    """Once to the other host, whose ranks share it."""
    root, other = crossed(net, members("2 hosts x 3"), _broadcast, 2)
    assert root.is_about(1), root
    assert other.once < HEADERS


def test_more_ranks_on_a_host_send_no_more(net: Net, members: Callable[[str], Members]) -> None:
    """Flat, a host of three would send 5/3 of the size."""
    found = crossed(net, members("2 hosts x 3"), _all_reduce, 2)
    assert all(host.is_about(1) for host in found), found
