"""Ranks that go on without others, or with new ones, for test_going_on.py; tests.comm.exits runs
it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import ringkern
from ringkern.errors import CommAbortedError, RingKernError
from tests.comm.exits import serve
from tests.faults.lives import leave_note, wait_for, wait_for_end_of
from tests.ranks import Named

NEVER = timedelta(seconds=600)
SHORT = timedelta(seconds=1)


def store_in(folder: Path, size: int) -> dist.Store:
    return dist.FileStore(f"{folder}/store", size)


def begun(rank: int, size: int, folder: Path, timeout: timedelta = NEVER) -> ringkern.Communicator:
    """Returns a communicator whose ranks have told their pids, and have made one call."""
    leave_note(folder / f"pid{rank}", str(os.getpid()))
    if hosts := os.environ.get("RK_TEST_HOSTS"):
        Named(hosts)(rank)
    made = ringkern.Communicator.from_store(store_in(folder, size), rank, size, timeout=timeout)
    check_sum(made, range(size))
    return made


def check_sum(communicator: ringkern.Communicator, people: Any, count: int = 1000) -> None:
    """Sums a number of each rank, which no other rank has; ``people``: the numbers of all."""
    people = list(people)
    assert communicator.size == len(people)
    x = torch.full((count,), 2.0 ** people[communicator.rank])
    communicator.all_reduce(x)
    assert torch.equal(x, torch.full((count,), float(sum(2**p for p in people)))), x


def call_until_it_fails(communicator: ringkern.Communicator) -> RingKernError:
    while True:
        try:
            communicator.all_reduce(torch.ones(100_000))
        except RingKernError as error:
            return error


def said(folder: Path, rank: int, **notes: Any) -> None:
    (folder / f"said{rank}").write_text(json.dumps(notes))


def note_of(communicator: ringkern.Communicator) -> dict[str, Any]:
    assert communicator.regrouped is not None
    return {"size": communicator.size, **asdict(communicator.regrouped)}


def error_of(call: Callable[[], object]) -> dict[str, str]:
    try:
        call()
    except Exception as error:
        return {"kind": type(error).__name__, "text": str(error)}
    raise AssertionError("the call has succeeded")


def memory_of(x: torch.Tensor) -> str:
    """Returns the file, device and offset in which a tensor is."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, _, *file = line.split(maxsplit=5)
        first, end = (int(address, 16) for address in place.split("-"))
        if first <= x.data_ptr() < end:
            return " ".join(file)
    raise AssertionError("the tensor is nowhere")


def pid_of(rank: int, folder: Path) -> int:
    return int(wait_for(folder / f"pid{rank}"))


def one_dies(rank: int, size: int, folder: Path) -> None:
    """Rank 0, which keeps nothing that the others need, dies in a call."""
    communicator = begun(rank, size, folder)
    if rank == 0:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
    call_until_it_fails(communicator)
    new = communicator.shrink()
    check_sum(new, range(1, size))
    closed = error_of(lambda: communicator.all_reduce(torch.ones(1)))
    said(folder, rank, **note_of(new), closed=closed["text"], threads=new.threads)
    new.close()


def two_die_one_by_one(rank: int, size: int, folder: Path) -> None:
    communicator = begun(rank, size, folder)
    for victim in (size - 1, 0):
        people = communicator.regrouped.ranks if communicator.regrouped else range(size)
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for_end_of(pid_of(victim, folder))
        communicator = communicator.shrink()  # between calls
        check_sum(communicator, [p for p in people if p != victim])
    said(folder, rank, **note_of(communicator))
    communicator.close()


def one_dies_and_another_meanwhile(rank: int, size: int, folder: Path) -> None:
    communicator = begun(rank, size, folder)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    call_until_it_fails(communicator)
    delay = float(os.environ["RK_TEST_DELAY"])
    if rank == 1:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    new = communicator.shrink()
    while True:  # the second death comes in shrink(), or after it
        people = new.regrouped
        try:
            for _ in range(1000):
                new.all_reduce(torch.ones(1000))
                time.sleep(0.001)
                if new.size == size - 2:
                    break
        except RingKernError:
            new = new.shrink()
        else:
            break
    assert people is not None
    check_sum(new, range(2, size))
    said(folder, rank, size=new.size)
    new.close()


def one_is_stopped(rank: int, size: int, folder: Path) -> None:
    communicator = begun(rank, size, folder, SHORT)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)  # rank 0 lets it go on
        first = error_of(lambda: communicator.all_reduce(torch.ones(100_000)))
        said(folder, rank, first=first, then=error_of(communicator.shrink))
        communicator.close()
        return
    call_until_it_fails(communicator)
    new = communicator.shrink()
    check_sum(new, [0, *range(2, size)])
    if rank == 0:
        os.kill(pid_of(1, folder), signal.SIGCONT)
    for _ in range(200):  # while rank 1 runs again
        check_sum(new, [0, *range(2, size)], 100_000)
    said(folder, rank, **note_of(new))
    new.close()


def one_is_stopped_as_it_writes(rank: int, size: int, folder: Path) -> None:
    """Rank 1 stops while it writes to the others' tensors, and goes on when these have gone on."""
    communicator = begun(rank, size, folder, SHORT)
    x = ringkern.empty(16 << 20).fill_(100)
    check_sum(communicator, range(size))  # all begin now
    if rank == 1:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    told = None
    while told is None:
        try:
            communicator.all_reduce(x, dist.ReduceOp.MAX)
        except RingKernError as error:
            told = error
    if rank == 1:
        said(folder, rank, then=error_of(communicator.shrink))
        return
    new = communicator.shrink()
    check_sum(new, [0, *range(2, size)])
    x.fill_(rank)
    if rank == 0:
        os.kill(pid_of(1, folder), signal.SIGCONT)
    wait_for(folder / "said1")
    right = bool(x.eq(rank).all())
    y = ringkern.empty(1 << 20).fill_(1)
    new.all_reduce(y)
    said(folder, rank, right=right, sum=y.sum().item())
    new.close()


def one_is_excluded(rank: int, size: int, folder: Path) -> None:
    communicator = begun(rank, size, folder)
    x = ringkern.empty(1000)
    communicator.all_reduce(x)
    if rank == 1:
        then = error_of(lambda: communicator.all_reduce(torch.ones(10)))
        said(folder, rank, first=then, then=error_of(communicator.shrink))
        return
    itself = error_of(lambda: communicator.shrink([rank]))
    unknown = error_of(lambda: communicator.shrink([size]))
    before = memory_of(x)
    new = communicator.shrink(exclude=[1])
    check_sum(new, [0, *range(2, size)])
    moved = memory_of(x) != before
    said(folder, rank, **note_of(new), itself=itself, unknown=unknown, moved=moved)
    new.close()


def meeting_is_aborted(rank: int, size: int, folder: Path) -> None:
    """The new ring of rank 1 is aborted once, as by a rank that could not join."""
    communicator = begun(rank, size, folder)
    if rank == 2:
        return
    meet, calls = ringkern.regroup._meet, []

    def fail_once(*args: Any) -> ringkern.Communicator:
        calls.append(args)
        if rank == 1 and len(calls) == 1:
            raise CommAbortedError("aborted by rank 0: another rank could not join")
        return meet(*args)

    ringkern.regroup._meet = fail_once
    new = communicator.shrink(exclude=[2])
    check_sum(new, [0, 1])
    said(folder, rank, **note_of(new), meetings=len(calls))
    new.close()


def interrupted(rank: int, size: int, folder: Path) -> None:
    """Ctrl-C ends the wait of rank 0 for rank 1, which then goes on alone."""
    communicator = begun(rank, size, folder)
    if rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            communicator.shrink()
        except KeyboardInterrupt:
            said(folder, rank, kind="KeyboardInterrupt")
        leave_note(folder / "over", "")
        communicator.close()
        return
    wait_for(folder / "over")
    new = communicator.shrink()
    said(folder, rank, **note_of(new))
    new.close()


def one_joins(rank: int, size: int, folder: Path) -> None:
    """The last process joins the others; then rank 0 dies, and the rest goes on."""
    store = store_in(folder, size)
    if rank == size - 1:
        new = ringkern.Communicator.join(store, timeout=timedelta(seconds=60))
    else:
        communicator = begun(rank, size - 1, folder)
        late = error_of(lambda: communicator.grow(store, name="nobody", timeout=SHORT))
        assert "0 of 1 processes have come to join 'nobody'" in late["text"]
        check_sum(communicator, range(size - 1))  # it is as before
        new = communicator.grow(store)
        assert ringkern.Communicator.waiting(store) == 0
    first = note_of(new)
    check_sum(new, range(size))
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    call_until_it_fails(new)
    last = new.shrink()
    check_sum(last, range(1, size))
    said(folder, rank, first=first, **note_of(last))
    last.close()


def one_replaces_the_dead(rank: int, size: int, folder: Path) -> None:
    """Rank 1 dies, and the last process takes its place, in one call of the rest."""
    store = store_in(folder, size)
    if rank == size - 1:
        wait_for_end_of(pid_of(1, folder))
        new = ringkern.Communicator.join(store, timeout=timedelta(seconds=60))
    else:
        communicator = begun(rank, size - 1, folder)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        call_until_it_fails(communicator)
        new = communicator.grow(store)
    check_sum(new, [0, *range(2, size - 1), 1])
    said(folder, rank, **note_of(new))
    new.close()


def joiner_dies(rank: int, size: int, folder: Path) -> None:
    """Two processes come, and one dies as it is invited."""
    store = store_in(folder, size)
    if rank == size - 1:

        def die(*_: Any) -> ringkern.Communicator:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

        ringkern.regroup._meet = die
        ringkern.Communicator.join(store, timeout=timedelta(seconds=60))
    if rank == size - 2:
        new = ringkern.Communicator.join(store, timeout=timedelta(seconds=60))
    else:
        new = begun(rank, size - 2, folder).grow(store, 2)
    check_sum(new, range(size - 1))
    said(folder, rank, **note_of(new))
    new.close()


def member_dies_as_one_joins(rank: int, size: int, folder: Path) -> None:
    """All have joined the new ring; rank 0 dies before it says so, and rank 1 says it late."""
    store = store_in(folder, size)
    if rank == size - 1:
        new = ringkern.Communicator.join(store, timeout=timedelta(seconds=20))
    else:
        welcome = ringkern.regroup.Joiners.welcome

        def late(*args: Any) -> None:
            if rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            wait_for_end_of(pid_of(0, folder))
            time.sleep(0.3)  # the process that joins sees the death meanwhile
            welcome(*args)

        ringkern.regroup.Joiners.welcome = late  # type: ignore[method-assign]
        new = begun(rank, size - 1, folder).grow(store)
    call_until_it_fails(new)
    last = new.shrink()
    check_sum(last, range(1, size))
    said(folder, rank, **note_of(last))
    last.close()


def member_dies_as_it_invites(rank: int, size: int, folder: Path) -> None:
    store = store_in(folder, size)
    if rank == size - 1:
        new = ringkern.Communicator.join(store, timeout=timedelta(seconds=60))
    else:
        communicator = begun(rank, size - 1, folder)
        if rank == 0:
            # The invitation is about to be written.
            ringkern.regroup.asdict = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        new = communicator.grow(store)
    check_sum(new, range(1, size))
    said(folder, rank, **note_of(new))
    new.close()


# ---- groups of the backend ----------------------------------------------------------------------


def group_of(rank: int, size: int, folder: Path, timeout: timedelta = NEVER, **kw: Any) -> None:
    """Makes the default group."""
    leave_note(folder / f"pid{rank}", str(os.getpid()))
    store = store_in(folder, size)
    dist.init_process_group(
        "ringkern", store=store, rank=rank, world_size=size, timeout=timeout, **kw
    )


def check_group(size: int) -> None:
    assert dist.get_world_size() == size
    x = torch.full((1000,), 2.0 ** dist.get_rank())
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((1000,), float(2**size - 1)))
    y = torch.ones(10)
    ringkern.ring_all_reduce(y)
    assert y.sum().item() == 10 * size


def group_fails() -> RingKernError:
    x = ringkern.empty(1 << 20).fill_(1)
    while True:
        try:
            dist.all_reduce(x)
        except RingKernError as error:
            return error


def group_shrinks(rank: int, size: int, folder: Path) -> None:
    """Rank 1 dies in a call. Rank 0 first takes it for alive."""
    group_of(rank, size, folder)
    check_group(size)
    if rank == 1:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
    group_fails()
    unaware = None
    if rank == 0:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        unaware = error_of(lambda: backend.shrink([2]))
    dist.shrink_group([1])
    check_group(size - 1)
    said(folder, rank, now=dist.get_rank(), unaware=unaware)
    dist.destroy_process_group()


def writer_in_a_group_stops(rank: int, size: int, folder: Path) -> None:
    """Like one_is_stopped_as_it_writes; the backend's ring is used, or one made over the group."""
    all_reduce = ringkern.ring_all_reduce if (folder / "over").exists() else dist.all_reduce
    config = importlib.import_module("ringkern.config").config
    object.__setattr__(config, "timeout_s", SHORT.total_seconds())
    group_of(rank, size, folder, SHORT)
    x = ringkern.empty(16 << 20).fill_(100)
    all_reduce(torch.ones(1))  # all begin now
    if rank == 1:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    told = None
    while told is None:
        try:
            all_reduce(x, dist.ReduceOp.MAX)
        except RingKernError as error:
            told = error
    if rank == 1:
        said(folder, rank, kind=type(told).__name__)
        return
    dist.shrink_group([1])
    check_group(size - 1)
    x.fill_(rank)
    if rank == 0:
        os.kill(pid_of(1, folder), signal.SIGCONT)
    wait_for(folder / "said1")
    said(folder, rank, right=bool(x.eq(rank).all()))


def group_takes_a_new_process(rank: int, size: int, folder: Path) -> None:
    """Rank 1 dies; the rest goes on, and then the last process takes the rank of the dead."""
    joins = rank == size - 1
    if joins:
        wait_for_end_of(pid_of(1, folder))
    group_of(1 if joins else rank, size - 1, folder, enable_reconfigure=True)
    store = store_in(folder, size)

    def renew(uuid: int, ranks: list[int]) -> None:
        handle = distributed_c10d._get_reconfigure_handle()
        store.set(f"{uuid}/{1 if joins else rank}", handle)
        handles = [store.get(f"{uuid}/{r}").decode() for r in ranks]
        distributed_c10d._reconfigure(uuid, handles, timeout=timedelta(seconds=60)).wait()
        check_group(len(ranks))

    everybody = list(range(size - 1))
    if not joins:
        renew(1, everybody)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group_fails()
        renew(2, [r for r in everybody if r != 1])
    renew(3, everybody)
    said(folder, rank, now=dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    serve(globals())
