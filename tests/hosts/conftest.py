"""Fixtures of the tests on several hosts: namespaces, and ranks in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.hosts.groups import LAYOUTS, NAMES, NAMESPACES, Members
from tests.hosts.namespaces import Net, why_not
from tests.ranks import Named, Ranks


@pytest.fixture(scope="session")
def net() -> Iterator[Net]:
    """Three hosts that nobody cuts off."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with Net(len(NAMESPACES)) as made:
        yield made


Pools = Callable[[str], Ranks]


@pytest.fixture(scope="session")
def named() -> Iterator[Pools]:
    """``named("aba")``: three processes, the second on a host of its own, kept for the session."""
    pools: dict[str, Ranks] = {}

    def of(names: str) -> Ranks:
        if names not in pools:
            pools[names] = Ranks(len(names), place=Named(names))
        return pools[names]

    yield of
    for pool in pools.values():
        pool.close()


@pytest.fixture(scope="session")
def spaced(net: Net) -> Iterator[Ranks]:
    """Ranks in namespaces, as many a host as NAMESPACES says."""
    with closing(Ranks(sum(NAMESPACES), place=net.place(NAMESPACES))) as pool:
        yield pool


@pytest.fixture
def members(request: pytest.FixtureRequest, named: Pools) -> Callable[[str], Members]:
    """``members(layout)``: its ranks."""

    def of(layout: str) -> Members:
        pool, ranks = LAYOUTS[layout]
        if pool == "names":
            return Members(named(NAMES), ranks)
        return Members(request.getfixturevalue("spaced"), ranks)

    return of
