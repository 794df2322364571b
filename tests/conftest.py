"""Fixtures of all tests: ranks as processes, and checks for leftovers of a test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.ranks import Named, Pool, Ranks

ROOT = Path(__file__).resolve().parents[1]

# Ranks answer slowly on a busy machine; a deadline would test the machine.
settings.register_profile(
    "ringkern",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("ringkern")

# A script's `make test &` starts with Ctrl-C ignored. Each program that a test interrupts would
# inherit that and continue.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Folders of the library's own tests; the others test tools, pages, builds and measurements.
LIBRARY = {"comm", "core", "faults", "hosts", "integrations", "reduce", "torch"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the library, for ``make test``."""
    if settings.get_current_profile_name() != "ringkern":  # torch.testing._internal loads its own
        raise pytest.UsageError("a test module has loaded another profile of hypothesis")
    for item in items:
        if item.path.relative_to(ROOT / "tests").parts[0] in LIBRARY:
            item.add_marker("library")


@pytest.fixture(scope="session")
def ranks() -> Iterator[Pool]:
    """Returns ``ranks(k)``: k processes in a gloo group, kept for the session.

    ``ranks("aba")``: three processes, the second on a host of its own, by name.
    """
    pools: dict[str, Ranks] = {}

    def of(where: int | str) -> Ranks:
        hosts = where if isinstance(where, str) else "a" * where
        if hosts not in pools:
            pools[hosts] = Ranks(len(hosts), place=Named(hosts) if len(set(hosts)) > 1 else None)
        for others in set(pools.values()) - {pools[hosts]}:
            others.rest()
        return pools[hosts]

    yield of
    for pool in pools.values():
        pool.close()


@pytest.fixture(autouse=True, scope="session")
def no_tuning_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hides the user's tuned tables: tests and their ranks choose by the tables that ringkern
    ships.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def _in_dev_shm() -> set[str]:
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    # Tests create "ringkern-test-..." files for a moment, also in a concurrent run.
    return {n for n in names if n.startswith("ringkern") and not n.startswith("ringkern-test-")}


def _parent(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
    except OSError:
        return ""


def _is_ours(pid: str) -> bool:
    while pid not in ("", "0", "1"):
        if pid == str(os.getpid()):
            return True
        pid = _parent(pid)
    return False


def _holds(process: Path, file: str) -> bool:
    try:
        opened = any(os.path.realpath(fd) == file for fd in (process / "fd").iterdir())
        return opened or f" {file}\n" in (process / "maps").read_text()
    except OSError:
        return False


def _left_behind(names: set[str]) -> list[str]:
    """Returns this run's files that still exist and that no process of another run holds.

    A name has no token of the run; the processes that hold the file identify the run.
    """
    others = [p for p in Path("/proc").iterdir() if p.name.isdigit() and not _is_ours(p.name)]
    ours = [n for n in sorted(names) if not any(_holds(p, f"/dev/shm/{n}") for p in others)]
    return [name for name in ours if os.path.exists(f"/dev/shm/{name}")]


@pytest.fixture(autouse=True)
def nothing_in_dev_shm() -> Iterator[None]:
    """Fails a test that leaves a file of ringkern's in /dev/shm."""
    before = _in_dev_shm()
    yield
    new = _in_dev_shm() - before
    left = _left_behind(new) if new else []
    assert not left, f"left in /dev/shm: {left}"
