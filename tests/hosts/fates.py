"""Faults of a rank, a host or a wire while the ranks call, for test_faults.py.

tests.comm.exits runs it: ranks are forked, and enter their hosts first. Each surviving rank writes
its error and the time: ``said<rank>`` in the folder. All times are of the machine's one clock, so
that processes can be compared.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringkern
from ringkern.hosts import engines
from ringkern.hosts.engines import _gloo
from tests.comm.exits import serve
from tests.comm.test_processes import owned
from tests.faults import fates
from tests.faults.lives import leave_note
from tests.hosts.jobs import Place
from tests.ranks import Named


@dataclass(frozen=True)
class Plan:
    """The program of the ranks.

    Attributes:
        place: of ranks in namespaces; None: ``names``.
        names: a letter for each rank: its host.
        timeout_s: of the communicator, or of the group.
        backend: whether the calls are dist.all_reduce of a group "ringkern", or those of a
            Communicator.
        n: elements of each call.
        deeds: the action of a rank in place of its fifth call.
        calls: how many there are, if nothing happens; 0: until something does.
        goes_on: whether the survivors go on without the others, with a Communicator.
        clean_s: seconds after which a rank reports its leftovers.
    """

    place: dict[str, Any] | None = None
    names: str = ""
    timeout_s: float = 600.0
    backend: bool = True
    n: int = 1000
    deeds: dict[str, str] | None = None
    calls: int = 0
    goes_on: bool = False
    clean_s: float = 20.0

    def write(self, folder: Path) -> None:
        (folder / "plan").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Plan:
        return cls(**json.loads((folder / "plan").read_text()))

    def settle(self, rank: int) -> None:
        """Takes this process to its host."""
        place = Named(self.names) if self.place is None else Place(**self.place)
        place(rank)


class Ring:
    """An object that makes the calls."""

    def __init__(self, plan: Plan, rank: int, size: int, store: dist.Store) -> None:
        limit = timedelta(seconds=plan.timeout_s)
        self.communicator: ringkern.Communicator | None = None
        if plan.backend:
            dist.init_process_group(
                "ringkern", store=store, rank=rank, world_size=size, timeout=limit
            )
        else:
            self.communicator = ringkern.Communicator.from_store(store, rank, size, timeout=limit)

    def all_reduce(self, x: torch.Tensor) -> None:
        if self.communicator is None:
            dist.all_reduce(x)
        else:
            self.communicator.all_reduce(x)

    def abort(self, reason: str) -> None:
        if self.communicator is None:
            dist.distributed_c10d._get_default_group().abort()
        else:
            self.communicator.abort(reason)

    def close(self) -> None:
        if self.communicator is None:
            dist.destroy_process_group()
        else:
            self.communicator.close()
            self.communicator = None


def store_of(plan: Plan, rank: int, size: int, folder: Path) -> dist.Store:
    """Makes the store at rank 0's address, like init_process_group; a file without a network."""
    if plan.place is None:
        return dist.FileStore(str(folder / "store"), size)
    place = Place(**plan.place)
    return dist.TCPStore(
        place.address, place.port, size, rank == 0, timedelta(seconds=60), wait_for_workers=False
    )


def error_of(call: Callable[[], object]) -> dict[str, Any]:
    """Returns the error of the first of these calls that fails, and when."""
    error = fates.error_of(call)
    return {"at": time.monotonic(), **error}


def calls(rank: int, size: int, folder: Path) -> None:
    plan = Plan.read(folder)
    plan.settle(rank)
    leave_note(folder / f"pid{rank}", str(os.getpid()))
    store = store_of(plan, rank, size, folder)
    before = _has_anyway(plan, rank, size, store)
    said = _calls_until(plan, rank, size, folder, store)
    start = time.monotonic()
    while (left := _more(before, owned())) and time.monotonic() - start < plan.clean_s:
        time.sleep(0.05)
    said["clean"] = {"after": time.monotonic() - start, "left": left}
    leave_note(folder / f"said{rank}", json.dumps(said))
    if rank == 0:  # it keeps the store, which others may still ask
        for other in range(1, size):
            pid = (folder / f"pid{other}").read_text()
            while not (folder / f"said{other}").exists() and Path(f"/proc/{pid}").exists():
                time.sleep(0.01)


def _has_anyway(plan: Plan, rank: int, size: int, store: dist.Store) -> dict[str, list[str]]:
    """Returns the resources that a process keeps after its first ring: a page, an event thread."""
    ring = Ring(plan, rank, size, dist.PrefixStore("before", store))
    ring.all_reduce(torch.ones(10))
    ring.close()
    time.sleep(0.2)
    return owned()


def _more(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    left = {kind: list((Counter(after[kind]) - Counter(before[kind])).elements()) for kind in after}
    return {kind: things for kind, things in left.items() if things}


def _calls_until(
    plan: Plan, rank: int, size: int, folder: Path, store: dist.Store
) -> dict[str, Any]:
    ring = Ring(plan, rank, size, store)
    count = 0
    slowest = 0.0

    def call(n: int = plan.n) -> None:
        nonlocal count, slowest
        count += 1
        if count == 5 and plan.deeds is not None and (deed := plan.deeds.get(str(rank))):
            leave_note(folder / f"deed{rank}", str(time.monotonic()))
            DEEDS[deed](ring, plan)
        x = torch.full((n,), float(rank + count % 3))
        start = time.monotonic()
        ring.all_reduce(x)
        slowest = max(slowest, time.monotonic() - start)
        if count == 4:
            leave_note(folder / f"ready{rank}", "")
        expected = sum(range(size)) + size * (count % 3)
        assert bool((x == expected).all()), f"wrong result of call {count}"
        if count == plan.calls:
            raise Done

    said: dict[str, Any] = {}
    try:
        said["first"] = error_of(call)
        said["again"] = error_of(lambda: ring.all_reduce(torch.ones(plan.n)))
        said["again"]["took"] = said["again"]["at"] - said["first"]["at"]
        if plan.goes_on:
            said["left"] = _go_on(ring, rank)
    except Done:
        pass
    said |= {"calls": count, "slowest": slowest}
    start = time.monotonic()
    ring.close()
    said["closing"] = time.monotonic() - start
    return said


def _go_on(ring: Ring, rank: int) -> tuple[int | None, ...]:
    """Returns the ranks that go on, which do not wait long for the others."""
    assert ring.communicator is not None
    ring.communicator = ring.communicator.shrink(timeout=timedelta(seconds=2))
    x = torch.full((1000,), 2.0**rank)
    ring.all_reduce(x)
    assert ring.communicator.regrouped is not None
    left = ring.communicator.regrouped.ranks
    assert x.eq(sum(2.0**one for one in left if one is not None)).all(), x
    return left


class Done(Exception):
    """All calls have been made."""


def _stop(ring: Ring, plan: Plan) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _other_size(ring: Ring, plan: Plan) -> None:
    ring.all_reduce(torch.ones(plan.n + 1))


def _exit(ring: Ring, plan: Plan) -> None:
    sys.exit(3)


def _raise(ring: Ring, plan: Plan) -> None:
    raise LookupError("on purpose")


DEEDS: dict[str, Callable[[Ring, Plan], None]] = {
    "stop": _stop,
    "sleep": lambda ring, plan: time.sleep(3 * plan.timeout_s),
    "other size": _other_size,
    "abort": lambda ring, plan: ring.abort("on purpose"),
    "exit": _exit,
    "raise": _raise,
    "kill": lambda ring, plan: os.kill(os.getpid(), signal.SIGKILL),
}


# ---- a rank that dies while the hosts are joined ------------------------------------------------


class _Within(dist.Store):
    """A store that asks another one."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self.get(keys[0])

    def clone(self) -> dist.Store:
        return self._store.clone()


class _Deadly(_Within):
    """A store whose owner dies when it asks where the others listen, once it has said that."""

    def get(self, key: str) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def _dies(*args: Any, **options: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _dies_listening(store: dist.Store, *args: Any) -> Any:
    return _gloo(_Deadly(store), *args)


def joined(rank: int, size: int, folder: Path) -> None:
    """Makes a group or a communicator, and its first call; the deeds define where each rank dies.

    The hosts of a group are joined when it is made, and those of a communicator in its first call.
    """
    plan = Plan.read(folder)
    plan.settle(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    deed = (plan.deeds or {}).get(str(rank))
    if deed == "before it comes":
        ringkern.comm.make_ring = _dies
    if deed == "before it listens":
        engines._BUILT_IN["gloo"] = _dies
    if deed == "after it listens":
        engines._BUILT_IN["gloo"] = _dies_listening
    store = store_of(plan, rank, size, folder)
    rings: list[Ring] = []

    def call() -> None:
        if not rings:
            rings.append(Ring(plan, rank, size, store))
            if deed == "before its first call":
                time.sleep(1)  # all have come
                _dies()
            if deed == "late":
                time.sleep(4)
        rings[0].all_reduce(torch.ones(plan.n))

    start = time.monotonic()
    first = error_of(call)
    took = time.monotonic() - start
    leave_note(folder / f"said{rank}", json.dumps({"first": first, "took": took}))


def _slowly(store: dist.Store, *args: Any) -> Any:
    """Looks into the store once more, when the others have all that they need."""
    made = _gloo(store, *args)
    time.sleep(1)
    threading.Timer(0.3, store.set, ("later", "")).start()
    store.wait(["later"])
    return made


class _Stale(_Within):
    """A store that tells how many ranks have joined the hosts when that is long over."""

    def add(self, key: str, value: int) -> int:
        found = super().add(key, value)
        if key.endswith(("/all", "/made")) and value == 0:
            time.sleep(3)
        return found


def _fails(*args: Any) -> Any:
    raise RuntimeError("no network here")


def left(rank: int, size: int, folder: Path) -> None:
    """Makes a group and leaves it; the deeds define how each rank is slow, and fails."""
    plan = Plan.read(folder)
    plan.settle(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    deed = (plan.deeds or {}).get(str(rank), "")
    store = store_of(plan, rank, size, folder)
    if "joins" in deed:
        engines._BUILT_IN["gloo"] = _slowly
    if "fails" in deed:
        engines._BUILT_IN["gloo"] = _fails
    if "reads" in deed:
        store = _Stale(store)
    if "late" in deed:
        time.sleep(1)
    Ring(plan, rank, size, store).close()


if __name__ == "__main__":
    serve(globals())
