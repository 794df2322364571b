"""Scenarios in a rank's life, for test_life_cycle.py; tests.comm.exits runs it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ringkern
from ringkern.errors import (
    CommAbortedError,
    PeerLostError,
    RendezvousError,
    RingKernError,
    SharedMemoryError,
)
from tests.comm.exits import held, join, own, reduce_in_group, serve

NEVER_S = 600.0  # an event earlier than this was not caused by it


def report(error: BaseException) -> None:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)


def raised(call: Callable[[], object]) -> RingKernError:
    """Returns the exception of the call; prints it on standard error with the elapsed time."""
    start = time.monotonic()
    try:
        call()
    except RingKernError as error:
        print(f"after {time.monotonic() - start:.3f} s", file=sys.stderr)
        report(error)
        return error
    raise AssertionError("the call has succeeded")


def call_until_it_fails(communicator: ringkern.Communicator) -> RingKernError:
    """Calls until an error; data that a rank had sent before its death may still arrive, and is
    right.
    """

    def calls() -> None:
        while True:
            communicator.all_reduce(torch.ones(10))

    return raised(calls)


def wait_for(path: Path) -> str:
    """Returns the text of a file that another rank writes atomically."""
    while not path.exists():
        time.sleep(0.01)
    return path.read_text()


def leave_note(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def wait_for_end_of(pid: int) -> None:
    """Waits for the end of a rank, and until it has been reaped."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            time.sleep(0.01)


def reduces(communicator: ringkern.Communicator, size: int) -> None:
    x = torch.ones(1000)
    communicator.all_reduce(x)
    assert torch.equal(x, torch.full((1000,), float(size)))


# ---- forked children ----------------------------------------------------------------------------


def child_has_a_ring_of_its_own(rank: int, size: int, folder: Path) -> None:
    """Uses a child's ring while the parents' ring is in use, until the child's interpreter ends."""
    communicator = own(rank, size, folder)
    if (pid := os.fork()) == 0:
        ours = ringkern.Communicator.from_store(
            dist.FileStore(f"{folder}/children", size), rank, size
        )
        for _ in range(100):
            reduces(ours, size)
        sys.exit(7)
    for _ in range(100):
        reduces(communicator, size)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    reduces(communicator, size)


def stopped_worker(rank: int, folder: Path) -> None:
    """Starts a child with copies of all that its parent has, like a DataLoader's worker, and as
    slow to notice the parent's end.
    """
    if (pid := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    leave_note(folder / f"worker{rank}", f"{os.getpid()} {pid}")


def end_worker(rank: int, folder: Path) -> None:
    """Ends a worker that has outlived its parent."""
    os.kill(int(wait_for(folder / f"worker{rank}").split()[1]), signal.SIGKILL)


def killed_beside_its_worker(rank: int, size: int, folder: Path) -> None:
    communicator = own(rank, size, folder, timeout_s=NEVER_S)
    if rank == 1:
        stopped_worker(rank, folder)
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for(folder / "worker1")
    error = call_until_it_fails(communicator)
    assert isinstance(error, PeerLostError | CommAbortedError)
    assert "rank 1" in str(error)
    if rank == 0:
        end_worker(1, folder)


def killed_beside_its_worker_with_messages_due(rank: int, size: int, folder: Path) -> None:
    join(rank, size, folder, "ringkern", timeout=timedelta(seconds=NEVER_S))
    x = torch.ones(10)
    if rank == 1:
        dist.send(x, 0)
        stopped_worker(rank, folder)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(x, 1)
    wait_for(folder / "worker1")
    error = raised(lambda: dist.recv(x, 1))
    assert isinstance(error, PeerLostError)
    assert "rank 1" in str(error)
    end_worker(1, folder)


def killed_beside_a_data_loader(rank: int, size: int, folder: Path) -> None:
    """Kills a rank in a training, with batches from workers and a gradient reduced for each."""
    join(rank, size, folder)
    reduce_in_group()
    loader = torch.utils.data.DataLoader(torch.arange(1000.0), batch_size=4, num_workers=2)

    def train() -> None:
        for step, batch in enumerate(loader):
            if rank == 1 and step == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            ringkern.ring_all_reduce(batch)

    error = raised(train)
    assert isinstance(error, PeerLostError | CommAbortedError)
    assert "rank 1" in str(error)


# ---- the end of a process while it waits --------------------------------------------------------


def _wait_in(rank: int, size: int, folder: Path, end: Callable[[], object]) -> None:
    """Rank 0 waits for rank 1 until `end`, called in a thread, ends its process."""
    communicator = own(rank, size, folder, timeout_s=NEVER_S)
    if rank == 0:
        leave_note(folder / "pid", str(os.getpid()))
        threading.Timer(0.2, end).start()
        communicator.all_reduce(torch.ones(10))
        raise AssertionError("nobody makes this call with rank 0")
    wait_for_end_of(int(wait_for(folder / "pid")))
    error = call_until_it_fails(communicator)
    assert isinstance(error, PeerLostError | CommAbortedError)


def terminated_while_it_waits(rank: int, size: int, folder: Path) -> None:
    _wait_in(rank, size, folder, lambda: os.kill(os.getpid(), signal.SIGTERM))


def os_exit_while_it_waits(rank: int, size: int, folder: Path) -> None:
    _wait_in(rank, size, folder, lambda: os._exit(4))


def interrupted_for_good(rank: int, size: int, folder: Path) -> None:
    """Sends Ctrl-C while rank 0 waits: it takes effect when the call has ended, in any way."""
    communicator = own(rank, size, folder, timeout_s=NEVER_S)
    if rank == 1:
        wait_for(folder / "interrupted")
        os._exit(0)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        leave_note(folder / "interrupted", "")

    threading.Timer(0.2, interrupt).start()
    try:
        with contextlib.suppress(RingKernError):
            communicator.all_reduce(torch.ones(10))
        time.sleep(30)
    except KeyboardInterrupt:
        sys.exit(5)


def exception_with_calls_pending(rank: int, size: int, folder: Path) -> None:
    ringkern.comm._PATIENCE_AT_EXIT_S = 0.5
    communicator = own(rank, size, folder, timeout_s=NEVER_S)
    if rank == 0:
        held.append(communicator.all_reduce(torch.ones(10), async_op=True))
        raise LookupError("on purpose")


def thread_looks_for_neighbours(rank: int, size: int, folder: Path) -> None:
    """Ends the interpreter while a daemon thread makes a first call that no other rank makes."""
    ringkern.comm._PATIENCE_AT_EXIT_S = 0.5
    store = dist.FileStore(f"{folder}/own", size)
    communicator = ringkern.Communicator.from_store(
        store, rank, size, timeout=timedelta(seconds=NEVER_S)
    )
    held.append(communicator)

    def call() -> None:
        with contextlib.suppress(CommAbortedError):
            communicator.all_reduce(torch.ones(10))

    if rank == 1:  # otherwise its end would tell rank 0 that it does not come
        return wait_for_end_of(int(wait_for(folder / "pid")))
    leave_note(folder / "pid", str(os.getpid()))
    threading.Thread(target=call, daemon=True).start()
    time.sleep(0.3)


def store_ends_first(rank: int, size: int, folder: Path) -> None:
    """Ends rank 0's store before communicators that were never used."""
    if rank == 0:
        store = dist.TCPStore("localhost", 0, None, is_master=True, wait_for_workers=False)
        leave_note(folder / "server", f"{store.port} {os.getpid()}")
    port, pid = map(int, wait_for(folder / "server").split())
    if rank == 1:
        store = dist.TCPStore("localhost", port, None, is_master=False)
        leave_note(folder / "connected", "")
    # Some connections to a TCPStore take torch 2.13 five seconds: rank 0 would report the wait.
    wait_for(folder / "connected")
    held.extend(ringkern.Communicator.from_store(store, rank, size) for _ in range(3))
    if rank == 0:
        wait_for(folder / "made")
        return
    leave_note(folder / "made", "")
    wait_for_end_of(pid)


def folder_of_the_store_goes_first(rank: int, size: int, folder: Path) -> None:
    """Connects ranks in a TemporaryDirectory of rank 0, removed before the program ends."""
    (folder / "temporary").mkdir(exist_ok=True)
    store = dist.FileStore(f"{folder}/temporary/own", size)
    held.append(ringkern.Communicator.from_store(store, rank, size))
    leave_note(folder / f"made{rank}", "")
    if rank == 0:
        for other in range(size):
            wait_for(folder / f"made{other}")
        shutil.rmtree(folder / "temporary")
        leave_note(folder / "removed", "")
    wait_for(folder / "removed")


# ---- the first call -----------------------------------------------------------------------------


def no_memory_on_one_rank(rank: int, size: int, folder: Path) -> None:
    """Fails while one rank connects; all ranks get its error text. The next ring works."""
    store = dist.FileStore(f"{folder}/own", size)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    communicator = ringkern.Communicator.from_store(store, rank, size, name="first")
    error = raised(lambda: communicator.all_reduce(torch.ones(10)))
    assert (type(error) is SharedMemoryError) == (rank == 1)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    reduces(ringkern.Communicator.from_store(store, rank, size, name="second"), size)


def _store_of_rank_1(rank: int, folder: Path) -> tuple[dist.TCPStore, int]:
    """Returns the store, and the process that hosts it."""
    if rank == 1:
        server = dist.TCPStore("localhost", 0, None, is_master=True, wait_for_workers=False)
        leave_note(folder / "server", f"{server.port} {os.getpid()}")
        return server, os.getpid()
    port, pid = map(int, wait_for(folder / "server").split())
    return dist.TCPStore("localhost", port, None, is_master=False), pid


def store_dies(rank: int, size: int, folder: Path) -> None:
    """Kills the store's process while rank 0 waits for rank 1 to make its communicator."""
    store, pid = _store_of_rank_1(rank, folder)
    if rank == 1:
        return wait_for_end_of(os.getpid())  # waits forever
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    never = timedelta(seconds=NEVER_S)
    error = raised(lambda: ringkern.Communicator.from_store(store, 0, 2, timeout=never))
    assert type(error) is RendezvousError


def store_stops(rank: int, size: int, folder: Path) -> None:
    """Stops the store's process while rank 0 connects to rank 1; abort() does not wait for it."""
    store, pid = _store_of_rank_1(rank, folder)
    never = timedelta(seconds=NEVER_S)
    communicator = ringkern.Communicator.from_store(store, rank, 2, timeout=never)
    held.append(communicator)
    if rank == 1:
        wait_for(folder / "done")
        return
    errors: list[BaseException] = []
    caller = threading.Thread(
        target=lambda: errors.append(raised(lambda: communicator.all_reduce(torch.ones(10))))
    )
    caller.start()
    time.sleep(0.3)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.2)
    start = time.monotonic()
    communicator.abort("on purpose")
    print(f"abort() took {time.monotonic() - start:.3f} s", file=sys.stderr)
    os.kill(pid, signal.SIGCONT)
    caller.join(30)
    assert not caller.is_alive()
    assert type(errors[0]) is CommAbortedError
    leave_note(folder / "done", "")
    communicator.close()


if __name__ == "__main__":
    serve(globals())
