"""What crosses between hosts, counted on their interfaces: no more than the theory says."""

from __future__ import annotations

from collections.abc import Callable

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
HEADERS = 0.08  # of TCP and IP, where no packets cross as one, and of what the ranks say besides


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


# What a host sends, in sizes of the larger tensor, of `h` hosts.
SENT: dict[Callable[[int, int, Groups], None], Callable[[int], float]] = {
    _all_reduce: lambda h: 2 * (h - 1) / h,
    _reduce_scatter: lambda h: (h - 1) / h,
    _all_gather: lambda h: (h - 1) / h,
}


def crossed(
    net: Net, members: Members, call: Callable[[int, int, Groups], None], hosts: int
) -> list[float]:
    """What each host has sent, in sizes of the larger tensor. The ranks have met before."""
    members.run(call)
    before = [net.bytes(host)[0] for host in range(hosts)]
    members.run(call)
    return [(net.bytes(host)[0] - before[host]) / SIZE for host in range(hosts)]


@pytest.mark.parametrize("call", SENT)
@pytest.mark.parametrize(("layout", "hosts"), [("2 hosts x 2", 2), ("3 hosts x 2", 3)])
def test_bytes_of_a_host(
    net: Net,
    members: Callable[[str], Members],
    call: Callable[[int, int, Groups], None],
    layout: str,
    hosts: int,
) -> None:
    least = SENT[call](hosts)
    for sent in crossed(net, members(layout), call, hosts):
        assert least <= sent < least * (1 + HEADERS)


def test_bytes_of_a_broadcast(net: Net, members: Callable[[str], Members]) -> None:
    """Once to the other host, whose ranks share it."""
    root, other = crossed(net, members("2 hosts x 3"), _broadcast, 2)
    assert 1 <= root < 1 + HEADERS
    assert other < HEADERS


def test_more_ranks_on_a_host_send_no_more(net: Net, members: Callable[[str], Members]) -> None:
    """Flat, a host of three would send 5/3 of the size."""
    for sent in crossed(net, members("2 hosts x 3"), _all_reduce, 2):
        assert 1 <= sent < 1 + HEADERS
