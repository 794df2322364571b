"""Fixtures of all tests: ranks as processes, and a look at what a test leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.ranks import Ranks

# Ranks are slow to answer on a busy machine; a deadline would test the machine.
settings.register_profile(
    "ringkern",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("ringkern")


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """``ranks(k)``: k processes in a gloo group, kept for the session."""
    pools: dict[int, Ranks] = {}

    def of(size: int) -> Ranks:
        if size not in pools:
            pools[size] = Ranks(size)
        return pools[size]

    yield of
    for pool in pools.values():
        pool.close()


@pytest.fixture(autouse=True)
def nothing_in_dev_shm() -> Iterator[None]:
    """No test leaves a file in /dev/shm."""
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    yield
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert not after - before, f"left in /dev/shm: {sorted(after - before)}"
