"""Fixtures of the tests on several hosts: namespaces, and ranks in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.hosts.groups import LAYOUTS, NAMES, NAMESPACES, Members
from tests.hosts.namespaces import Net, why_not
from tests.ranks import Pool, Ranks


@pytest.fixture(scope="session")
def net() -> Iterator[Net]:
    """Makes three hosts, whose links are never cut."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with Net(len(NAMESPACES)) as made:
        yield made


@pytest.fixture(scope="session")
def spaced(net: Net) -> Iterator[Ranks]:
    """Starts ranks in namespaces, with the numbers for each host in NAMESPACES."""
    with closing(Ranks(sum(NAMESPACES), place=net.place(NAMESPACES))) as pool:
        yield pool


@pytest.fixture
def members(request: pytest.FixtureRequest, ranks: Pool) -> Callable[[str], Members]:
    """``members(layout)``: its ranks."""

    def of(layout: str) -> Members:
        where, some = LAYOUTS[layout]
        pool = ranks(NAMES) if where == "names" else request.getfixturevalue("spaced")
        return Members(pool, some)

    return of
