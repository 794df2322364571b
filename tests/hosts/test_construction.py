"""Construction of a communicator, by all ranks together; and ranks that do not take part in it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import PeerLostError, RendezvousError
from tests.hosts.test_find import Broken, in_threads
from tests.ranks import Pool

LONG = timedelta(seconds=60)
SOON = timedelta(seconds=0.5)

Make = Callable[..., ringkern.Communicator]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a communicator of a rank, with a connection of its own to the store."""

    def of(rank: int, timeout: timedelta = LONG, size: int = 2) -> ringkern.Communicator:
        # Not a HashStore, whose ranks do not wait for each other.
        store = dist.FileStore(str(tmp_path / "store"), size)
        return ringkern.Communicator.from_store(store, rank, size, timeout=timeout)

    return of


def reduces(rings: dict[int, ringkern.Communicator]) -> None:
    tensors = [torch.ones(3) for _ in rings]
    in_threads(list(rings), lambda rank: rings[rank].all_reduce(tensors[rank]))
    assert [x.tolist() for x in tensors] == [[float(len(rings))] * 3] * len(rings)
    for ring in rings.values():
        ring.close()


def test_making_a_communicator_waits_for_all_ranks(make: Make) -> None:
    began: dict[int, float] = {}

    def come(rank: int) -> ringkern.Communicator:
        time.sleep(0.2 * rank)
        began[rank] = time.monotonic()
        made = make(rank, size=3)
        assert time.monotonic() >= max(began[r] for r in range(3))
        return made

    rings = in_threads([0, 1, 2], come)
    assert {ring.hosts.count for ring in rings.values()} == {1}
    reduces(rings)


def test_a_rank_that_does_not_make_one(make: Make) -> None:
    with pytest.raises(RendezvousError, match=r"no ring of 2 .* did not come: rank 1") as caught:
        make(0, SOON)
    with pytest.raises(RendezvousError) as late:
        make(1)
    assert str(late.value) == str(caught.value)
    assert late.value.rank == caught.value.rank == 1
    reduces(in_threads([0, 1], make))  # the next attempt is another one


@pytest.mark.parametrize("works", [0, 3, 8])
def test_a_store_that_fails(works: int) -> None:
    store: Any = Broken(works)
    with pytest.raises(RendezvousError, match=r"torch's store.* has failed: connection reset"):
        ringkern.Communicator.from_store(store, 0, 2, timeout=LONG)


PROGRAM = """
import sys
import torch.distributed as dist, ringkern
ringkern.Communicator.from_store(dist.FileStore(sys.argv[1], 3), 1, 3)
"""


def test_a_rank_that_is_killed_meanwhile(make: Make, tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with subprocess.Popen([sys.executable, "-c", PROGRAM, path]) as victim:
        store = dist.FileStore(path, 3)
        while not store.check(["ringkern/hosts of ringkern/3/0/1"]):
            time.sleep(0.01)
        threading.Timer(0.2, victim.kill).start()
        with pytest.raises(PeerLostError, match=rf"rank 1 \(pid {victim.pid}\) died") as caught:
            make(0, size=3)
    assert caught.value.rank == 1


# ---- the communicator that a group's first call makes --------------------------------------------


def _asynchronous(rank: int, size: int) -> tuple[float, float]:
    group = dist.new_group()
    if rank == 1:
        time.sleep(0.3)
    begin = time.monotonic()
    work = ringkern.ring_all_reduce(torch.ones(3), group=group, async_op=True)
    end = time.monotonic()
    assert work is not None
    work.wait()
    dist.destroy_process_group(group)
    return begin, end


def test_an_asynchronous_first_call_waits_for_all(ranks: Pool) -> None:
    (_, returned), (came, _) = ranks(2).run(_asynchronous)
    assert returned > came


def _fails_first(rank: int, size: int) -> str:
    group = dist.new_group()
    config, timeout_s = ringkern.config.config, ringkern.config.config.timeout_s
    object.__setattr__(config, "timeout_s", 0.5)
    try:
        if rank == 1:
            dist.barrier()
        with pytest.raises(RendezvousError) as caught:
            ringkern.ring_all_reduce(torch.ones(3), group=group)
        if rank == 0:
            dist.barrier()
    finally:
        object.__setattr__(config, "timeout_s", timeout_s)
    x = torch.ones(3)
    ringkern.ring_all_reduce(x, group=group)
    assert x.tolist() == [2.0] * 3
    dist.destroy_process_group(group)
    return str(caught.value)


def test_the_call_after_one_that_failed_makes_another(ranks: Pool) -> None:
    texts = ranks(2).run(_fails_first)
    assert texts[0] == texts[1]
    assert "did not come: rank 1" in texts[0]


def _in_different_orders(rank: int, size: int) -> None:
    groups = [dist.new_group() for _ in range(2)]
    tensors = [torch.full((3,), 10.0 * i) for i in range(2)]

    def call(which: int) -> None:
        if which != rank:  # each rank begins with a different group, in which it is alone
            time.sleep(0.3)
        ringkern.ring_all_reduce(tensors[which], group=groups[which])

    threads = [threading.Thread(target=call, args=(which,), daemon=True) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [x.tolist() for x in tensors] == [[0.0] * 3, [20.0] * 3]
    for group in groups:
        dist.destroy_process_group(group)


def test_two_threads_call_in_two_groups(ranks: Pool) -> None:
    ranks(2).run(_in_different_orders)
