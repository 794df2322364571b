"""The life of a communicator: forks, threads, ends of every kind, and many lives in a row."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import CommAbortedError, RingKernError
from tests.comm.exits import scenarios_of
from tests.comm.test_processes import owned
from tests.ranks import Pool

Scenario = Callable[..., list[dict[str, Any]]]
NEVER = timedelta(seconds=600)  # an event earlier than this was not caused by it
# Communicators made and closed one after the other; `make faults` runs many more.
LIVES = int(os.environ.get("RK_TEST_LIVES", "300"))


@pytest.fixture(scope="module")
def scenarios() -> Iterator[Scenario]:
    with scenarios_of("tests.faults.lives") as run:
        yield run


def show(ranks: list[dict[str, Any]]) -> str:
    return "\n".join(f"{rank['status']}: {rank['stderr']}" for rank in ranks)


# ---- forked children ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("killed_beside_its_worker", 3),
        ("killed_beside_its_worker_with_messages_due", 2),
        ("killed_beside_a_data_loader", 2),
    ],
)
def test_a_killed_rank_does_not_live_on_in_its_children(
    scenarios: Scenario, tmp_path: Path, name: str, size: int
) -> None:
    ranks = scenarios(name, size, tmp_path)
    print(show(ranks))
    assert [rank["status"] for rank in ranks] == [0, -9, 0][:size], show(ranks)


def test_a_forked_child_may_have_a_ring_of_its_own(scenarios: Scenario, tmp_path: Path) -> None:
    ranks = scenarios("child_has_a_ring_of_its_own", 2, tmp_path)
    assert ranks == [{"status": 0, "stderr": ""}] * 2, show(ranks)


# ---- the end of a process while it waits --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status"), [("terminated_while_it_waits", -15), ("os_exit_while_it_waits", 4)]
)
def test_a_rank_that_waits_can_be_ended(
    scenarios: Scenario, tmp_path: Path, name: str, status: int
) -> None:
    first, second = scenarios(name, 2, tmp_path)
    assert first == {"status": status, "stderr": ""}
    assert second["status"] == 0, second["stderr"]
    assert "rank 0" in second["stderr"]


def test_an_interrupt_is_heard_when_the_call_fails(scenarios: Scenario, tmp_path: Path) -> None:
    ranks = scenarios("interrupted_for_good", 2, tmp_path)
    assert [rank["status"] for rank in ranks] == [5, 0], show(ranks)


def test_an_exception_while_a_call_is_pending(scenarios: Scenario, tmp_path: Path) -> None:
    first, second = scenarios("exception_with_calls_pending", 2, tmp_path)
    assert first["status"] == 1
    assert first["stderr"].endswith("LookupError: on purpose\n")
    assert second == {"status": 0, "stderr": ""}


def test_the_end_while_a_thread_looks_for_neighbours(scenarios: Scenario, tmp_path: Path) -> None:
    ranks = scenarios("thread_looks_for_neighbours", 2, tmp_path)
    assert ranks == [{"status": 0, "stderr": ""}] * 2, show(ranks)


@pytest.mark.parametrize("name", ["store_ends_first", "folder_of_the_store_goes_first"])
def test_the_end_after_that_of_the_store(scenarios: Scenario, tmp_path: Path, name: str) -> None:
    ranks = scenarios(name, 2, tmp_path)
    assert ranks == [{"status": 0, "stderr": ""}] * 2, show(ranks)


# ---- the first call -----------------------------------------------------------------------------


def test_a_rank_that_fails_while_it_connects(scenarios: Scenario, tmp_path: Path) -> None:
    ranks = scenarios("no_memory_on_one_rank", 3, tmp_path)
    assert [rank["status"] for rank in ranks] == [0] * 3, show(ranks)
    text = re.search(r"SharedMemoryError: (.*)", ranks[1]["stderr"])
    assert text, ranks[1]["stderr"]
    for other in (ranks[0], ranks[2]):
        assert f"RendezvousError: rank 1 could not join the ring: {text[1]}" in other["stderr"]


def test_the_store_dies(scenarios: Scenario, tmp_path: Path) -> None:
    ranks = scenarios("store_dies", 2, tmp_path)
    assert ranks[0]["status"] == 0, show(ranks)
    assert "torch's store" in ranks[0]["stderr"]


def test_abort_does_not_wait_for_the_store(scenarios: Scenario, tmp_path: Path) -> None:
    ranks = scenarios("store_stops", 2, tmp_path)
    print(show(ranks))
    assert ranks[0]["status"] == 0, show(ranks)
    assert "aborted by rank 0: on purpose" in ranks[0]["stderr"]


# ---- abort() ------------------------------------------------------------------------------------


def _ends(what: str, call: Callable[[], Any], others: list[threading.Thread]) -> str:
    """Makes calls in a thread, and waits for it and for the other threads."""
    start = time.monotonic()
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(30)
    took = time.monotonic() - start
    for other in others:
        other.join(30)
    assert not any(t.is_alive() for t in [thread, *others]), what
    return f"{what}: abort() returned after {took:.4f} s"


def _in_thread(call: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(RingKernError):
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _abort_returns(rank: int, size: int) -> list[str]:
    """Aborts on rank 0 in each wait for rank 1, which never comes."""
    figures = []

    def connected() -> ringkern.Communicator:
        communicator = ringkern.Communicator(timeout=NEVER)
        communicator.all_reduce(torch.ones(10))
        dist.barrier()
        return communicator

    waits = connected()
    if rank == 0:
        call = _in_thread(lambda: waits.all_reduce(torch.ones(10)))
        time.sleep(0.2)
        figures.append(_ends("a call waits", waits.abort, [call]))
    dist.barrier()

    closes = connected()
    if rank == 0:
        work = closes.all_reduce(torch.ones(10), async_op=True)
        close = _in_thread(closes.close)
        time.sleep(0.2)
        figures.append(_ends("close() waits", closes.abort, [close]))
        with pytest.raises(CommAbortedError):
            work.wait()
    dist.barrier()

    connects = ringkern.Communicator(timeout=NEVER)
    if rank == 0:
        change_mind = lambda: connects.abort("changed my mind")  # noqa: E731
        call = _in_thread(lambda: connects.all_reduce(torch.ones(10)))
        time.sleep(0.2)
        figures.append(_ends("the first call looks for rank 1", change_mind, [call]))
    dist.barrier()
    if rank == 1:
        with pytest.raises(RingKernError, match="changed my mind"):
            connects.all_reduce(torch.ones(10))
    for communicator in (waits, closes, connects):
        communicator.close()
    dist.barrier()
    return figures


def test_abort_returns_whatever_waits(ranks: Pool) -> None:
    print(*ranks(2).run(_abort_returns)[0], sep="\n")
    ranks(2).run(_one_life)


# ---- threads ------------------------------------------------------------------------------------


def _two_threads(rank: int, size: int, calls: int, shared: bool) -> None:
    """Runs two threads with a communicator each, or with one for both. In the second case their
    calls are equal, because the pairing is undefined.
    """
    first = ringkern.Communicator(timeout=timedelta(seconds=60))
    communicators = [first, first if shared else ringkern.Communicator()]
    wrong: list[object] = []

    def work(thread: int) -> None:
        try:
            n = 1000 if shared else 500 + 4000 * thread
            for call in range(calls):
                value = 1 if shared else call * 10 + thread + rank
                expected = size if shared else size * (call * 10 + thread) + sum(range(size))
                x = torch.full((n,), value)
                communicators[thread].all_reduce(x)
                if not bool((x == expected).all()):
                    wrong.append((thread, call, x))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == [], wrong
    for communicator in communicators:
        communicator.close()


@pytest.mark.parametrize("shared", [True, False], ids=["one communicator", "one each"])
def test_two_threads(ranks: Pool, shared: bool) -> None:
    ranks(2).run(_two_threads, 2000, shared, timeout_s=200)


# ---- many lives ---------------------------------------------------------------------------------


def _one_life(rank: int, size: int) -> None:
    with ringkern.Communicator(timeout=timedelta(seconds=60)) as communicator:
        x = torch.ones(10)
        communicator.all_reduce(x)
        assert torch.equal(x, torch.full((10,), float(size)))


def resident_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def _many_lives(rank: int, size: int, lives: int, port: int) -> tuple[float, list[int]]:
    """Measures seconds per communicator, and the resident KiB over time."""
    store = dist.TCPStore("localhost", port, None, is_master=False)

    def live() -> None:
        with ringkern.Communicator.from_store(store, rank, size) as communicator:
            communicator.all_reduce(torch.ones(10))

    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return sum(1 for _ in maps)

    for _ in range(20):
        live()
    dist.barrier()
    before, mapped = owned(), mappings()
    resident = [resident_kib()]
    start = time.monotonic()
    for life in range(lives):
        live()
        if (life + 1) % (lives // 3) == 0:
            resident.append(resident_kib())
    took = (time.monotonic() - start) / lives
    dist.barrier()
    assert owned() == before
    # The allocator may vary by some; a leak would grow with each communicator.
    assert abs(mappings() - mapped) < min(100, lives // 3)
    # In the last third, when caches are full, the growth per communicator must be less than a cache
    # line.
    assert resident[-1] - resident[-2] < max(1024, lives // 3 // 16), resident
    return took, resident


def test_many_lives(ranks: Pool) -> None:
    """This process hosts the store, because every ring leaves some keys in it."""
    store = dist.TCPStore("localhost", 0, None, is_master=True, wait_for_workers=False)
    outcomes = ranks(2).run(_many_lives, LIVES, store.port, timeout_s=60 + LIVES / 10)
    for rank, (took, resident) in enumerate(outcomes):
        print(f"rank {rank}: {LIVES} lives, {1e3 * took:.2f} ms each; resident KiB {resident}")
